"""Verifying an artifact where it is: every manifest and every blob is read and hashed again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kvreg.errors import KvregError, NotFoundError, VerificationError
from kvreg.model.oci import MEDIA_TYPE_PROFILE, MEDIA_TYPE_RUNTIME, Descriptor
from kvreg.model.profile import profile_from_canonical
from kvreg.model.signature import signature_tag
from kvreg.publickey import PublicKey
from kvreg.signatures import Signature, require_signature
from registry.content import Content, check_titles, parse_content
from registry.signatures import StoreSignatures
from registry.store import Store, read_small
from registry.stream import Progress

Status = Literal["ok", "missing", "corrupt"]
Part = Literal["manifest", "config", "layer", "referrer"]


@dataclass(frozen=True)
class Judgement:
    """One manifest or blob and whether its bytes are right; `reason` unless `status` is ok."""

    part: Part
    descriptor: Descriptor
    status: Status
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        found: dict[str, object] = {
            "part": self.part,
            **self.descriptor.to_dict(),
            "status": self.status,
        }
        return {**found, "reason": self.reason} if self.reason else found


@dataclass(frozen=True)
class Verification:
    """The judgement of everything that an artifact consists of.

    `signature` is the good one that was found, None when no key was asked for.
    """

    location: str
    descriptor: Descriptor
    judgements: tuple[Judgement, ...]
    signature: Signature | None = None

    @property
    def ok(self) -> bool:
        """Whether every byte is right."""
        return all(judgement.status == "ok" for judgement in self.judgements)

    @property
    def bytes_read(self) -> int:
        """How many bytes were hashed and right."""
        right = (item for item in self.judgements if item.status == "ok")
        return sum(item.descriptor.size for item in right)

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "location": self.location,
            **self.descriptor.to_dict(),
            "ok": self.ok,
            "bytesVerified": self.bytes_read,
            "signature": self.signature.to_dict() if self.signature else None,
            "parts": [item.to_dict() for item in self.judgements],
        }


def verify(
    store: Store,
    reference: str,
    with_referrers: bool = True,
    progress: Progress | None = None,
    keys: Sequence[PublicKey] = (),
) -> Verification:
    """Read and hash everything that the tag or digest `reference` names, with its referrers.

    What is missing or corrupt is a judgement, so that all of it is reported; `NotFoundError` only
    when there is no such name. A registry that cannot be reached raises `NetworkError`. With
    `keys`, one of them must have signed: `VerificationError`, before the bytes are read.
    """
    found = store.resolve(reference)
    if found is None:
        raise NotFoundError(f"{store.location} has no {reference}")
    signature = None
    if keys:
        signature = require_signature(StoreSignatures(store), found.digest, keys, store.location)
    work = _Verify(store, progress)
    judgements = list(work.manifest(found, "manifest"))
    if with_referrers:
        judgements += work.referrers(found.digest)
        tagged = store.resolve(signature_tag(found.digest))
        if tagged is not None:
            judgements += work.manifest(tagged, "referrer")
    return Verification(store.location, found, tuple(judgements), signature)


class _Verify:
    def __init__(self, store: Store, progress: Progress | None) -> None:
        self._store = store
        self._progress = progress
        self._seen: set[str] = set()

    def manifest(self, descriptor: Descriptor, part: Part) -> Iterator[Judgement]:
        if descriptor.digest in self._seen:
            return
        self._seen.add(descriptor.digest)
        try:
            raw = self._store.fetch_manifest(descriptor.digest)
            content = parse_content(raw, descriptor.media_type)
            check_titles(content)
            if len(raw) != descriptor.size:
                raise VerificationError(f"it has {len(raw)} bytes, not {descriptor.size}")
        except (VerificationError, NotFoundError) as error:
            yield _failed(part, descriptor, error)
            return
        yield Judgement(part, descriptor, "ok")
        for child in content.manifests:
            yield from self.manifest(child, part)
        for blob in content.blobs:
            yield from self._blob(blob, content)

    def referrers(self, digest: str) -> Iterator[Judgement]:
        for referrer in self._store.referrers(digest):
            if referrer.digest not in self._seen:
                yield from self.manifest(referrer, "referrer")
                yield from self.referrers(referrer.digest)

    def _blob(self, blob: Descriptor, content: Content) -> Iterator[Judgement]:
        if blob.digest in self._seen:
            return
        self._seen.add(blob.digest)
        is_config = content.config is not None and blob.digest == content.config.digest
        part: Part = "config" if is_config else "layer"
        is_profile = is_config and content.descriptor.artifact_type == MEDIA_TYPE_RUNTIME
        try:
            self._read(blob, is_profile)
        except (VerificationError, NotFoundError) as error:
            yield _failed(part, blob, error)
            return
        yield Judgement(part, blob, "ok")

    def _read(self, blob: Descriptor, is_profile: bool) -> None:
        if is_profile:
            if blob.media_type != MEDIA_TYPE_PROFILE:
                raise VerificationError(f"the config of a runtime is not a {MEDIA_TYPE_PROFILE}")
            profile_from_canonical(read_small(self._store, blob))
            return
        for chunk in self._store.read_blob(blob):
            if self._progress is not None:
                self._progress(len(chunk))


def _failed(part: Part, descriptor: Descriptor, error: KvregError) -> Judgement:
    details = [
        f"{name} {value}" for name in ("expected", "found") if (value := getattr(error, name))
    ]
    reason = f"{error.what}" + (f" ({', '.join(details)})" if details else "")
    status: Status = "missing" if isinstance(error, NotFoundError) else "corrupt"
    return Judgement(part, descriptor, status, reason)
