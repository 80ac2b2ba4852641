"""What a store of artifacts is, and how one is opened from a reference."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, Self

from kvreg.errors import ContractError, UsageError, VerificationError
from kvreg.model.oci import MAX_MANIFEST_BYTES, Descriptor
from kvreg.reference import LayoutReference, Reference, is_tag, parse_reference
from registry.stream import BlobSource, HashedFile, Progress, Verified


class Store(Protocol):
    """A place for manifests and blobs. Every byte is verified on its way in and on its way out.

    Errors of every method: `VerificationError` (wrong bytes), `NetworkError` (registry),
    `StorageError` or `OSError` (disk). Manifest digests are ``sha256:<hex>``.
    """

    location: str
    """Where the store is, for people; a reference without tag or digest."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def twin(self) -> Self:
        """The same store for another thread; to be closed by itself."""

    def prepare(self) -> None:
        """Make the store ready to be written to; what cannot work fails here, not later."""

    def resolve(self, name: str) -> Descriptor | None:
        """The manifest that a tag or digest names, its bytes verified; None when absent."""

    def fetch_manifest(self, digest: str) -> bytes:
        """The raw bytes of a manifest. `NotFoundError` when it is absent."""

    def has_blob(self, descriptor: Descriptor) -> bool:
        """Whether a blob of that digest and size is there; its bytes are not read."""

    def read_blob(self, descriptor: Descriptor, progress: Progress | None = None) -> Verified:
        """A blob in chunks; what is wrong with it is raised at the latest after the last chunk."""

    def fetch_blob(
        self, descriptor: Descriptor, destination: Path, progress: Progress | None = None
    ) -> None:
        """Write a blob to a file that appears only when all of it was verified."""

    def blob_path(self, descriptor: Descriptor) -> Path | None:
        """The file of a blob where the store has one; its bytes are not verified by this."""

    def push_blob(
        self, source: BlobSource, descriptor: Descriptor, progress: Progress | None = None
    ) -> bool:
        """Put a blob there; False when it was there already."""

    def push_file(self, path: Path, progress: Progress | None = None) -> tuple[HashedFile, bool]:
        """`push_blob` of a file whose digest is not known yet; the file with its digest too."""

    def push_stream(self, chunks: Iterable[bytes], descriptor: Descriptor) -> bool:
        """`push_blob` from a stream that can be read once."""

    def mount(self, descriptor: Descriptor, source: "Store") -> bool:
        """Take a blob over from another repository of the same registry, moving no byte.

        False when that cannot be done, or the blob is there; `push_blob` is the way then.
        """

    def push_manifest(
        self, raw: bytes, media_type: str | None = None, tag: str | None = None
    ) -> Descriptor:
        """Put a manifest there, whose blobs are there, and tag it.

        A manifest with a ``subject`` is afterwards among `referrers` of that subject.
        """

    def tag(self, descriptor: Descriptor, tag: str, *, move: bool = True) -> None:
        """Let a tag name a manifest that is there.

        Without `move`, a tag that names another manifest is left alone: `ContractError`.
        """

    def untag(self, tag: str) -> None:
        """Take a tag away; the manifest that it named stays. `NotFoundError` when it is absent."""

    def delete(self, digest: str) -> None:
        """Take a manifest away, with every tag that names it and its place among `referrers`.

        `NotFoundError` when it is absent, `ContractError` when the store sees that an index lists
        it. Its blobs stay: the garbage collection of a layout or of a registry frees them.
        """

    def list_tags(self) -> tuple[str, ...]:
        """All tags, sorted, without those that the referrers tag schema makes."""

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Descriptor, ...]:
        """The manifests whose subject is `digest`, with artifact type and annotations."""


def open_store(reference: str | Reference) -> Store:
    """Open the store that a reference names; its tag or digest plays no part.

    Nothing is read or written yet. `UsageError` for a malformed reference.
    """
    if isinstance(reference, str):
        reference = parse_reference(reference)
    if isinstance(reference, LayoutReference):
        from registry.layout import Layout

        return Layout(reference.path)
    from registry.remote import Remote

    return Remote(reference)


def read_small(store: Store, descriptor: Descriptor) -> bytes:
    """A blob that belongs in memory, such as a config; `VerificationError` above 4 MiB."""
    if descriptor.size > MAX_MANIFEST_BYTES:
        raise VerificationError(
            f"{descriptor.digest} of {store.location} is too large for a config",
            expected=f"at most {MAX_MANIFEST_BYTES} bytes",
            found=f"{descriptor.size} bytes",
        )
    return b"".join(store.read_blob(descriptor))


def check_tag(tag: str) -> None:
    """`UsageError` when `tag` can be no tag."""
    if not is_tag(tag):
        raise UsageError(
            "this is not a valid tag",
            expected="1 to 128 of A-Z a-z 0-9 _ . - and no . or - first",
            found=repr(tag)[:200],
        )


def refuse_move(location: str, tag: str, current: Descriptor | None, wanted: Descriptor) -> None:
    """`ContractError` when `tag` names something other than `wanted` already."""
    if current is not None and current.digest != wanted.digest:
        raise ContractError(
            f"{location} has the tag {tag} already, and it is never moved",
            expected=wanted.digest,
            found=current.digest,
            remedy="publish under another date or version, or from the inputs of that day",
        )
