"""An OCI image layout directory as a source, ordinary or packed: three kinds of file, in place."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kvreg.errors import NotFoundError, VerificationError
from kvreg.model.digest import is_digest
from kvreg.model.layout import blob_file
from kvreg.model.oci import MAX_MANIFEST_BYTES, Descriptor, Index, Manifest, parse_json
from kvreg.reference import LayoutReference
from kvreg.sources import BlobStream, RawManifest, read_small, verified_manifest

_CHUNK = 1 << 20


class LayoutSource:
    """Reads a layout. Raises `NotFoundError` when the directory is not one."""

    def __init__(self, reference: LayoutReference) -> None:
        self.reference = reference
        self._root = reference.path
        marker = self._root / "oci-layout"
        if not marker.is_file():
            raise NotFoundError(
                f"{self._root} is not an OCI image layout",
                expected=f"the file {marker}",
                remedy="name the directory that holds oci-layout, index.json and blobs",
            )
        layout = parse_json(_read_small(marker), str(marker))
        version = layout.get("imageLayoutVersion") if isinstance(layout, dict) else None
        if version != "1.0.0":
            raise VerificationError(
                f"{marker} has an unknown version", expected="1.0.0", found=repr(version)
            )
        self._index = Index.parse(_read_small(self._root / "index.json"))

    def manifest(self, target: str) -> RawManifest | None:
        """See `Source.manifest`."""
        if is_digest(target):
            digest = target
        else:
            descriptor = self._index.tagged(target)
            if descriptor is None:
                return None
            digest = descriptor.digest
        path = self._blob(digest)
        return verified_manifest(_read_small(path), digest) if path.is_file() else None

    def manifest_digests(self) -> list[str]:
        """See `Source.manifest_digests`: what the index lists, each once."""
        return list(dict.fromkeys(descriptor.digest for descriptor in self._index.manifests))

    def local_path(self, descriptor: Descriptor) -> Path | None:
        """See `Source.local_path`."""
        path = self._blob(descriptor.digest)
        if not path.is_file():
            raise NotFoundError(f"the layout {self._root} lacks the blob {descriptor.digest}")
        return path

    def referrers(self, digest: str) -> list[Descriptor]:
        """See `Source.referrers`: among the manifests that the index lists."""
        return [
            replace(entry, artifact_type=manifest.artifact_type)
            for entry in self._index.manifests
            if (manifest := self._parsed(entry.digest)) is not None
            and manifest.subject is not None
            and manifest.subject.digest == digest
        ]

    def _parsed(self, digest: str) -> Manifest | None:
        """A manifest; None for an index, or what is damaged or absent: it refers to nothing."""
        with suppress(VerificationError):
            if (raw := self.manifest(digest)) is not None:
                return Manifest.parse(raw.raw)
        return None

    def read_small(self, descriptor: Descriptor) -> bytes:
        """See `Source.read_small`."""
        return read_small(self, descriptor)

    @contextmanager
    def stream(self, descriptor: Descriptor, start: int, end: int) -> Iterator[BlobStream]:
        """See `Source.stream`: to the end of the file, whatever was asked for."""
        path = self.local_path(descriptor)
        assert path is not None
        with path.open("rb") as file:
            file.seek(start)
            yield BlobStream(start, descriptor.size, iter(lambda: file.read(_CHUNK), b""))

    def _blob(self, digest: str) -> Path:
        return blob_file(self._root, digest)


def _read_small(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"the layout lacks {path}") from None
    if len(raw) > MAX_MANIFEST_BYTES:
        raise VerificationError(
            f"{path} is too large", expected=f"at most {MAX_MANIFEST_BYTES} bytes"
        )
    return raw
