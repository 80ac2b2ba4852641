"""A compile cache as an artifact of its own: CI runners start empty and restore it.

The config says which compilers it is for and names every entry with its sha256; the layers are tar
archives of the entries by their first hex digit, the same bytes for the same entries, so that a
push sends only the parts that changed. The tag names toolchain and compilers and moves.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.cache import storage_errors
from builder.compile_cache import ENTRY, SCHEMA, CompileCache, Sealed
from builder.workspace import give
from kvreg.errors import ContractError, NotFoundError, Problem, VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.model.oci import MEDIA_TYPE_MANIFEST, Descriptor, Manifest, parse_json
from kvreg.publickey import PublicKey
from kvreg.signatures import require_signature
from registry.signatures import StoreSignatures
from registry.store import Store, read_small
from registry.stream import Progress, hash_file

ARTIFACT_TYPE = "application/vnd.kvreg.compile-cache.v1"
MEDIA_TYPE_CONFIG = "application/vnd.kvreg.compile-cache.v1+json"
MEDIA_TYPE_PART = "application/vnd.kvreg.compile-cache.v1+tar"
PREFIX = "vnd.kvreg.compile-cache"


@dataclass(frozen=True)
class Moved:
    """What a push or pull did: the manifest, how many entries it has, entries and bytes moved."""

    digest: str
    tag: str
    entries: int
    moved_entries: int
    moved_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return dict(vars(self))


def cache_tag(cache: CompileCache) -> str:
    """``ccache-<toolchain>-<16 hex>``."""
    return f"ccache-{cache.name}"


def push(cache: CompileCache, store: Store, progress: Progress | None = None) -> Moved:
    """Save a compile cache. Raises NotFoundError for an empty one, VerificationError for one that
    was changed since its last build, and what the store raises."""
    cache.check()
    sealed = cache.seal()
    if not sealed:
        raise NotFoundError(
            f"the compile cache {cache.name} is empty", remedy="build something first"
        )
    parts: dict[str, list[str]] = defaultdict(list)
    for path in sorted(sealed):
        parts[path[0]].append(path)
    store.prepare()
    layers, sent = [], 0
    with tempfile.TemporaryDirectory(dir=cache.root, prefix=".push-") as scratch:
        for digit, paths in sorted(parts.items()):
            file = Path(scratch) / f"{digit}.tar"
            _pack(cache, paths, sealed, file)
            hashed = hash_file(file)
            layer = Descriptor(MEDIA_TYPE_PART, hashed.digest, hashed.size)
            sent += hashed.size if store.push_blob(hashed, layer, progress) else 0
            layers.append(layer)
            file.unlink()
    config = canonical_json(
        {
            "schema": SCHEMA,
            "toolchain": cache.toolchain,
            "compilers": cache.compilers,
            "entries": {path: [item.size, item.sha256] for path, item in sealed.items()},
        }
    )
    described = Descriptor.of_bytes(MEDIA_TYPE_CONFIG, config)
    store.push_blob(config, described)
    annotations = {
        f"{PREFIX}.toolchain": cache.toolchain,
        f"{PREFIX}.compilers": cache.compilers,
        f"{PREFIX}.entries": str(len(sealed)),
        f"{PREFIX}.bytes": str(sum(item.size for item in sealed.values())),
    }
    manifest = Manifest(described, tuple(layers), ARTIFACT_TYPE, annotations)
    tag = cache_tag(cache)
    found = store.push_manifest(manifest.to_bytes(), MEDIA_TYPE_MANIFEST, tag)
    return Moved(found.digest, tag, len(sealed), len(sealed), sent)


def pull(
    cache: CompileCache,
    store: Store,
    tag: str | None = None,
    *,
    keys: Sequence[PublicKey] = (),
    progress: Progress | None = None,
) -> Moved:
    """Restore a compile cache; entries that are there already stay as they are.

    With `keys`, one of them must have signed it.

    Every entry is hashed before it takes its place. Raises NotFoundError when the store has none
    for these compilers, ContractError when the one named is for others (both digests are said),
    VerificationError for bytes that are not what the artifact says, and what the store raises.
    """
    name = tag or cache_tag(cache)
    found = store.resolve(name)
    if found is None:
        raise NotFoundError(
            f"{store.location} has no compile cache for the compilers of {cache.toolchain}",
            expected=name,
            remedy="build without it; builder cache push saves what the build leaves",
        )
    if keys:
        require_signature(StoreSignatures(store), found.digest, keys, store.location)
    manifest = Manifest.parse(store.fetch_manifest(found.digest))
    if manifest.artifact_type != ARTIFACT_TYPE:
        raise VerificationError(
            f"{name} of {store.location} is no compile cache",
            expected=ARTIFACT_TYPE,
            found=manifest.artifact_type,
        )
    config = parse_json(read_small(store, manifest.config), "compile cache config")
    _check_compilers(cache, config, name)
    entries = _entries(config)
    cache.prepare()
    there = cache.entries()
    restorer = _Restorer(cache, entries, set(there))
    for layer in manifest.layers:
        with tempfile.TemporaryDirectory(dir=cache.root, prefix=".pull-") as scratch:
            file = Path(scratch) / "part.tar"
            store.fetch_blob(layer, file, progress)
            restorer.unpack(file)
    restorer.finish()
    cache.seal(restored=found.digest)
    return Moved(found.digest, name, len(entries), restorer.count, restorer.bytes)


def _pack(cache: CompileCache, paths: list[str], sealed: dict[str, Sealed], target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            # All that could differ between machines is fixed: time, owner and mode.
            member = tarfile.TarInfo(path)
            member.size, member.mode = sealed[path].size, 0o644
            with (cache.folder / path).open("rb") as stream:
                archive.addfile(member, stream)


def _check_compilers(cache: CompileCache, config: Any, name: str) -> None:
    if not isinstance(config, dict) or config.get("schema") != SCHEMA:
        raise VerificationError(f"{name} is a compile cache of another form", expected="schema 1")
    for key, ours in (("toolchain", cache.toolchain), ("compilers", cache.compilers)):
        if config.get(key) != ours:
            raise ContractError(
                f"the compile cache {name} is of another toolchain than the one here",
                expected=f"{key} {ours}",
                found=f"{key} {config.get(key)}",
                remedy="an image under the same name may have other compilers: see builder"
                " toolchain show",
            )


def _entries(config: dict[str, Any]) -> dict[str, Sealed]:
    found = {}
    listed = config.get("entries")
    for path, value in listed.items() if isinstance(listed, dict) else ():
        good = (
            ENTRY.fullmatch(path)
            and isinstance(value, list)
            and len(value) == 2
            and isinstance(value[0], int)
            and isinstance(value[1], str)
        )
        if not good:
            raise VerificationError(
                "the compile cache names something that is no entry", found=repr(path)[:200]
            )
        found[path] = Sealed(value[0], value[1])
    return found


class _Restorer:
    """Puts entries into place, each when its bytes are those that the artifact names."""

    def __init__(self, cache: CompileCache, entries: dict[str, Sealed], there: set[str]) -> None:
        self._cache, self._entries, self._there = cache, entries, there
        self._seen: set[str] = set()
        self.count = self.bytes = 0

    def unpack(self, file: Path) -> None:
        """One part."""
        try:
            with tarfile.open(file, "r:") as archive:
                for member in archive:
                    known = self._entries.get(member.name)
                    if known is None or not member.isreg() or member.name in self._seen:
                        raise VerificationError(
                            "a part of the compile cache holds what its config does not name",
                            found=repr(member.name)[:200],
                        )
                    self._seen.add(member.name)
                    stream = archive.extractfile(member)
                    assert stream is not None
                    self._place(member.name, known, stream)
        except tarfile.TarError as error:
            raise VerificationError(
                "a part of the compile cache is no tar archive", found=str(error)
            ) from error

    def _place(self, path: str, known: Sealed, stream: IO[bytes]) -> None:
        target = self._cache.folder / path
        state = hashlib.sha256()
        temporary = self._cache.root / f".entry-{os.getpid()}"
        with storage_errors("restore", target):
            for parent in reversed(target.relative_to(self._cache.folder).parents):
                folder = self._cache.folder / parent
                if not folder.is_dir():
                    folder.mkdir()
                    give(folder)
            try:
                with temporary.open("wb") as handle:
                    while chunk := stream.read(1 << 20):
                        state.update(chunk)
                        handle.write(chunk)
                found = state.hexdigest()
                if found != known.sha256:
                    raise VerificationError(
                        f"the entry {path} of the compile cache was changed",
                        problems=[
                            Problem(
                                path,
                                "is not what the artifact's config names",
                                f"sha256:{known.sha256}",
                                f"sha256:{found}",
                            )
                        ],
                        expected=f"sha256:{known.sha256}",
                        found=f"sha256:{found}",
                        remedy="nothing of it was kept; find out who wrote the artifact",
                    )
                if path in self._there:
                    return  # what this machine made or used last is at least as good
                give(temporary)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        self.count, self.bytes = self.count + 1, self.bytes + known.size

    def finish(self) -> None:
        """Raises VerificationError when entries did not come."""
        absent = sorted(set(self._entries) - self._seen)
        if absent:
            raise VerificationError(
                "the compile cache lacks entries that its config names",
                expected=f"{len(self._entries)} entries",
                found=f"{len(absent)} missing, such as {absent[0]}",
            )
