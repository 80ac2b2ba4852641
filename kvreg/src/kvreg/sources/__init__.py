"""Where artifacts are read from: one interface, an OCI layout and a registry behind it.

A source hands out bytes; it is the caller of `Source.stream` who hashes them, because only then is
"read but not verified" impossible. Manifests are small and are verified here.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvreg.errors import NetworkError, VerificationError
from kvreg.model.digest import is_digest, sha256_bytes
from kvreg.model.oci import MAX_MANIFEST_BYTES, Descriptor
from kvreg.reference import LayoutReference, Reference


@dataclass(frozen=True)
class RawManifest:
    """A manifest's exact bytes; `digest` is theirs, computed here and nowhere else."""

    raw: bytes
    digest: str


@dataclass(frozen=True)
class BlobStream:
    """The bytes of a blob from `offset` to `end`.

    `offset` is less than what was asked for where a server knows no ranges; `end` may be more or
    less than what was asked for.
    """

    offset: int
    end: int
    chunks: Iterator[bytes]


class Interrupted(Exception):
    """A transfer stopped before its end; asking again from there on may succeed."""


class Source(Protocol):
    """Read-only access to the artifacts of one layout or repository."""

    @property
    def reference(self) -> Reference:
        """What the source was opened as."""
        ...

    def manifest(self, target: str) -> RawManifest | None:
        """The manifest of a tag or digest, None when there is none; verified against a digest."""
        ...

    def manifest_digests(self) -> list[str]:
        """Digests of all manifests where they can be listed without a server, else nothing."""
        ...

    def local_path(self, descriptor: Descriptor) -> Path | None:
        """The file that holds the blob (its content not verified), where the source is local."""
        ...

    def referrers(self, digest: str) -> list[Descriptor]:
        """The manifests whose subject is `digest`, as far as the store lists them (untrusted)."""
        ...

    def read_small(self, descriptor: Descriptor) -> bytes:
        """A whole blob of a few MiB at most, verified."""
        ...

    def stream(
        self, descriptor: Descriptor, start: int, end: int
    ) -> AbstractContextManager[BlobStream]:
        """Read a range of a blob; iterating raises `Interrupted` when the transfer breaks off.

        Safe to use from several threads.
        """
        ...


def open_source(reference: Reference, *, timeout: float = 30.0) -> Source:
    """Open the layout or registry that `reference` names; `timeout` is of one read, in seconds."""
    if isinstance(reference, LayoutReference):
        from kvreg.sources.layout import LayoutSource

        return LayoutSource(reference)
    # A layout needs no HTTP client.
    from kvreg.sources.remote import RegistrySource
    from kvreg.sources.transport import Transport

    return RegistrySource(reference, Transport(read_timeout=timeout))


def read_small(source: Source, descriptor: Descriptor, attempts: int = 3) -> bytes:
    """`Source.read_small` on top of `Source.stream`: nothing unverified is returned.

    `VerificationError` for wrong bytes and for a blob above 4 MiB, `NetworkError` when the transfer
    breaks off `attempts` times.
    """
    where = f"the blob {descriptor.digest} of {source.reference}"
    if descriptor.size > MAX_MANIFEST_BYTES:
        raise VerificationError(
            f"{where} is too large to be read whole",
            expected=f"at most {MAX_MANIFEST_BYTES} bytes",
            found=f"{descriptor.size} bytes",
        )
    for _ in range(attempts):
        data = bytearray()
        try:
            with source.stream(descriptor, 0, descriptor.size) as stream:
                for chunk in stream.chunks:
                    data += chunk
                    if len(data) > descriptor.size:
                        break
        except Interrupted:
            continue
        found = sha256_bytes(bytes(data))
        if len(data) != descriptor.size or found != descriptor.digest:
            raise VerificationError(
                f"{where} does not match its digest",
                expected=f"{descriptor.digest}, {descriptor.size} bytes",
                found=f"{found}, {len(data)} bytes",
            )
        return bytes(data)
    raise NetworkError(f"the transfer of {where} keeps breaking off", remedy="try again")


def verified_manifest(raw: bytes, target: str, claimed: str | None = None) -> RawManifest:
    """Check a manifest's bytes against the digest that was asked for or claimed.

    `target` is what was asked for; when it is a tag there may be a digest that the server claims.
    """
    digest = sha256_bytes(raw)
    for expected in (target if is_digest(target) else None, claimed):
        if expected is not None and digest != expected:
            raise VerificationError(
                f"the manifest {target} does not match its digest",
                expected=expected,
                found=digest,
                remedy="the store is damaged or not to be trusted; try another one",
            )
    return RawManifest(raw, digest)
