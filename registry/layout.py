"""An OCI image layout as a store: a directory with `oci-layout`, `index.json` and blobs.

Writers may run at the same time and may be killed at any time: blobs and the index appear by
rename, and the index is changed under a lock. Readers need neither lock nor write access, so a
layout on a read-only disk is a store like any other, and so is a packed one (`kvreg.model.layout`),
which is never written to.

>>> import tempfile
>>> layout = Layout(Path(tempfile.mkdtemp()) / "store")
>>> layout.prepare()
>>> layout.list_tags()
()
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvreg.console import storage_error
from kvreg.errors import ContractError, NotFoundError, StorageError, VerificationError
from kvreg.model.digest import is_digest, parse_digest, sha256_file
from kvreg.model.layout import BLOBS, blob_file, is_packed
from kvreg.model.oci import MAX_MANIFEST_BYTES, Descriptor, parse_json
from kvreg.reference import LAYOUT_PREFIX, is_tag
from registry.content import MANIFEST_TYPES, Content, parse_content
from registry.files import INCOMING_PREFIX, locked, remove_stale, write_atomically
from registry.index import LayoutIndex
from registry.referrers import filtered, is_fallback_tag
from registry.store import Store, check_tag, refuse_move
from registry.stream import (
    BlobSource,
    HashedFile,
    Progress,
    Verified,
    check_bytes,
    counted,
    file_chunks,
    hash_file,
    source_chunks,
    verified,
)

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_LOCK = ".lock"
_OWN_NAMES = {BLOBS, "index.json", "oci-layout", _LOCK}


class Layout:
    """The layout in the directory `path`, which is made by the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = f"{LAYOUT_PREFIX}{path}"
        self._index_path = path / "index.json"
        self._marker_path = path / "oci-layout"

    def __enter__(self) -> "Layout":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is held open between calls."""

    def twin(self) -> "Layout":
        """Itself: threads share a layout as processes do."""
        return self

    def prepare(self) -> None:
        """Make the directory a layout unless it is one; `StorageError` when that cannot be."""
        if self._marker_path.exists():
            self._check_marker()
            self._check_writable()
            return
        with _storage_errors(f"could not make the layout {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign_directory()
            (self.path / BLOBS / "sha256").mkdir(parents=True, exist_ok=True)
            with locked(self.path / _LOCK):
                if not self._index_path.exists():
                    write_atomically(self._index_path, [LayoutIndex().to_bytes()])
                # Last: a directory with this file is a whole layout.
                write_atomically(self._marker_path, [_MARKER])

    def resolve(self, name: str) -> Descriptor | None:
        """See `registry.store.Store.resolve`."""
        index = self.index()
        entry = index.with_digest(name) if is_digest(name) else index.tagged(name)
        if entry is None:
            # A manifest below an index has no entry of its own.
            return self._content(name).descriptor if self._is_manifest(name) else None
        content = self._content(entry.digest, entry.media_type)
        if content.descriptor.size != entry.size:
            raise VerificationError(
                f"index.json of {self.location} has the wrong size for {entry.digest}",
                expected=f"{content.descriptor.size} bytes",
                found=f"{entry.size} bytes",
            )
        return content.descriptor

    def fetch_manifest(self, digest: str) -> bytes:
        """See `registry.store.Store.fetch_manifest`."""
        self._check_marker()
        path = self._regular(digest)
        if path is None:
            raise NotFoundError(f"{self.location} has no manifest {digest}")
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise VerificationError(
                f"{digest} of {self.location} is too large for a manifest",
                expected=f"at most {MAX_MANIFEST_BYTES} bytes",
                found=f"{path.stat().st_size} bytes",
            )
        return check_bytes(path.read_bytes(), digest, self.location)

    def has_blob(self, descriptor: Descriptor) -> bool:
        """See `registry.store.Store.has_blob`."""
        path = self._regular(descriptor.digest)
        return path is not None and path.stat().st_size == descriptor.size

    def read_blob(self, descriptor: Descriptor, progress: Progress | None = None) -> Verified:
        """See `registry.store.Store.read_blob`."""
        self._check_marker()
        path = self._regular(descriptor.digest)
        if path is None:
            raise NotFoundError(f"{self.location} has no blob {descriptor.digest}")
        return verified(file_chunks(path), descriptor, self.location, progress)

    def fetch_blob(
        self, descriptor: Descriptor, destination: Path, progress: Progress | None = None
    ) -> None:
        """See `registry.store.Store.fetch_blob`."""
        write_atomically(destination, self.read_blob(descriptor, progress))

    def blob_path(self, descriptor: Descriptor) -> Path | None:
        """See `registry.store.Store.blob_path`."""
        return self._regular(descriptor.digest)

    def push_blob(
        self, source: BlobSource, descriptor: Descriptor, progress: Progress | None = None
    ) -> bool:
        """See `registry.store.Store.push_blob`. A blob that is there but corrupt is replaced."""
        return self.push_stream(counted(source_chunks(source), progress), descriptor)

    def push_file(self, path: Path, progress: Progress | None = None) -> tuple[HashedFile, bool]:
        """See `registry.store.Store.push_file`."""
        file = hash_file(path)
        return file, self.push_blob(file, file.descriptor(), progress)

    def push_stream(self, chunks: Iterable[bytes], descriptor: Descriptor) -> bool:
        """See `registry.store.Store.push_stream`."""
        self.prepare()
        path = self._blob(descriptor.digest)
        # Reading what is there costs no more than writing it again, and heals what went bad.
        there = self._refresh(path) and self.has_blob(descriptor)
        if there and sha256_file(path) == descriptor.digest:
            return False
        with _storage_errors(f"could not write a blob to {self.location}"):
            write_atomically(path, verified(chunks, descriptor, "the source"), scratch=self.path)
        return True

    def mount(self, descriptor: Descriptor, source: Store) -> bool:
        """Always False: a layout is one repository."""
        return False

    def push_manifest(
        self, raw: bytes, media_type: str | None = None, tag: str | None = None
    ) -> Descriptor:
        """See `registry.store.Store.push_manifest`."""
        content = parse_content(raw, media_type)
        if tag is not None:
            check_tag(tag)
        self._check_parts(content, content.blobs + content.manifests)
        self.push_blob(raw, content.descriptor)
        found = content.descriptor

        def change(index: LayoutIndex) -> LayoutIndex:
            # Again, now that no collection of garbage can come in between.
            self._check_parts(content, content.blobs + content.manifests)
            return index.tag(found, tag) if tag else index.add(found)

        self._change(change)
        return found

    def tag(self, descriptor: Descriptor, tag: str, *, move: bool = True) -> None:
        """See `registry.store.Store.tag`. Deciding and tagging are one step for other writers."""
        check_tag(tag)

        def change(index: LayoutIndex) -> LayoutIndex:
            content = self._content(descriptor.digest)
            # Not the manifests of an index: others keep indexes of which they copied a part.
            self._check_parts(content, content.blobs)
            found = content.descriptor
            if not move:
                refuse_move(self.location, tag, index.tagged(tag), found)
            return index.tag(found, tag)

        self._change(change)

    def untag(self, tag: str) -> None:
        """See `registry.store.Store.untag`."""
        check_tag(tag)

        def change(index: LayoutIndex) -> LayoutIndex:
            if tag not in index.tags():
                raise NotFoundError(f"{self.location} has no tag {tag}")
            return index.untag(tag)

        self._change(change)

    def delete(self, digest: str) -> None:
        """See `registry.store.Store.delete`. A damaged manifest can be deleted as well."""
        path = self._blob(digest)
        with self.exclusive():
            index = self.index()
            if index.with_digest(digest) is None and not self._is_manifest(digest):
                raise NotFoundError(f"{self.location} has no manifest {digest}")
            after = index.without({digest})
            if parent := self._parent(after, digest):
                raise ContractError(
                    f"{digest} is part of another manifest of {self.location}",
                    found=parent,
                    remedy="delete that one first",
                )
            self.replace_index(after)
            path.unlink(missing_ok=True)

    def list_tags(self) -> tuple[str, ...]:
        """See `registry.store.Store.list_tags`."""
        return tuple(tag for tag in self.index().tags() if is_tag(tag) and not is_fallback_tag(tag))

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Descriptor, ...]:
        """See `registry.store.Store.referrers`: found among the entries of ``index.json``."""
        parse_digest(digest)
        found = []
        for entry in self.index().descriptors():
            if entry.media_type not in MANIFEST_TYPES or entry.digest == digest:
                continue
            content = self._content(entry.digest, entry.media_type)
            if content.subject is not None and content.subject.digest == digest:
                found.append(content.as_referrer)
        return filtered(found, artifact_type)

    def index(self) -> LayoutIndex:
        """What ``index.json`` says now."""
        self._check_marker()
        try:
            return LayoutIndex.parse(self._index_path.read_bytes())
        except FileNotFoundError:
            raise VerificationError(
                f"{self.location} has no index.json",
                remedy="fetch the layout again; it is not complete",
            ) from None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep every other writer of this program out; `StorageError` where nobody can write."""
        self._check_marker()
        self._check_writable()
        with _storage_errors(f"could not change {self.location}"), locked(self.path / _LOCK):
            yield

    def replace_index(self, index: LayoutIndex) -> None:
        """Write ``index.json`` unless it says that already; only inside `exclusive`."""
        if index != self.index():
            write_atomically(self._index_path, [index.to_bytes()])

    def blob_files(self) -> Iterator[tuple[str, Path]]:
        """Every blob that is there, as digest and file; files of other names are passed over."""
        folder = self.path / BLOBS / "sha256"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            digest = f"sha256:{path.name}"
            if is_digest(digest) and path.is_file():
                yield digest, path

    def _change(self, change: Callable[[LayoutIndex], LayoutIndex]) -> None:
        """Replace the index by what `change` makes of it, with no other writer in between."""
        with self.exclusive():
            self.replace_index(change(self.index()))
            remove_stale(self.path)

    def _refresh(self, path: Path) -> bool:
        """Make a blob that is there as young as a new one; False when there is none.

        A collection of garbage leaves young blobs alone. Under its lock, so that it has either
        taken the blob already or will see how young it is.
        """
        with self.exclusive():
            try:
                os.utime(path)
            except FileNotFoundError:
                return False
            except PermissionError:
                # Another user's file. The manifest that needs it is still checked before it is
                # listed, so the worst that can happen is a push that must be repeated.
                pass
            return True

    def _parent(self, index: LayoutIndex, digest: str) -> str | None:
        """A manifest of `index` that lists `digest` as a part of itself, if any."""
        for entry in index.descriptors():
            if entry.media_type not in MANIFEST_TYPES:
                continue
            try:
                content = self._content(entry.digest, entry.media_type)
            except (NotFoundError, VerificationError):
                continue
            if any(item.digest == digest for item in content.manifests):
                return entry.digest
        return None

    def _content(self, digest: str, media_type: str | None = None) -> Content:
        return parse_content(self.fetch_manifest(digest), media_type)

    def _is_manifest(self, name: str) -> bool:
        if not is_digest(name) or (path := self._regular(name)) is None:
            return False
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            return False
        try:
            self._content(name)
        except VerificationError:
            return False
        return True

    def _check_parts(self, content: Content, parts: Iterable[Descriptor]) -> None:
        """A layout never names a manifest whose parts it does not have."""
        for part in parts:
            if not self.has_blob(part):
                raise NotFoundError(
                    f"manifest {content.descriptor.digest} needs a part that {self.location} lacks",
                    expected=f"{part.digest}, {part.size} bytes",
                    remedy="push the blobs before the manifest",
                )

    def _blob(self, digest: str) -> Path:
        return blob_file(self.path, digest)

    def _regular(self, digest: str) -> Path | None:
        """The blob's file; None when there is none, or something else of that name."""
        path = self._blob(digest)
        try:
            return path if stat.S_ISREG(path.stat().st_mode) else None
        except FileNotFoundError:
            return None

    def _check_marker(self) -> None:
        try:
            raw = self._marker_path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                f"{self.path} is not an OCI image layout",
                expected=f"a file {self._marker_path}",
                remedy="check the path; publishing or copying to it makes a layout",
            ) from None
        table = parse_json(raw, "oci-layout")
        version = table.get("imageLayoutVersion") if isinstance(table, dict) else None
        if not isinstance(version, str) or not version.startswith("1."):
            raise VerificationError(
                f"{self._marker_path} is malformed",
                expected="imageLayoutVersion 1.0.0",
                found=repr(version),
            )

    def _check_writable(self) -> None:
        if is_packed(self.path):
            raise StorageError(
                f"{self.location} is a packed layout, which is only read",
                remedy=f"make an ordinary one of it: registry unpack {self.path} oci-layout:DIR",
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise StorageError(
                f"{self.location} cannot be written to",
                remedy="copy it to a directory that you may write to, and use the copy",
            )

    def _refuse_foreign_directory(self) -> None:
        foreign = sorted(
            path.name
            for path in self.path.iterdir()
            if path.name not in _OWN_NAMES and not path.name.startswith(INCOMING_PREFIX)
        )
        if foreign:
            raise StorageError(
                f"{self.path} is neither an OCI image layout nor empty",
                expected="an empty directory, or none",
                found=", ".join(foreign[:5]),
                remedy="choose another directory",
            )


@contextlib.contextmanager
def _storage_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing) from error
