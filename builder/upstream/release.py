"""Releases of the package index, and the few of their members that say what a build would do.

Nothing is downloaded whole: METADATA comes by PEP 658 or from the wheel by HTTP range, and an sdist
is read from its beginning up to the folder of the sources, since its members are sorted. What was
read is kept by the sdist's digest. A prefix cannot be hashed: what it says is as true as the index
and the connection to it; the bytes that are built are hashed when they are fetched.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import requests
from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from builder.cache import InputCache
from builder.files import write_bytes
from builder.index import TIMEOUT, IndexFile, PackageIndex, target_tags
from builder.upstream.policy import Watched
from kvreg.errors import NetworkError, NotFoundError, UsageError

PREFIX_LIMIT = 16 * 1024 * 1024
"""Compressed bytes of an sdist after which it is given up: build files come within the first."""

_KEPT_SCHEMA = 1


@dataclass(frozen=True)
class Release:
    """One version of the package index. `sdist` is None where the release has none."""

    package: str
    version: str
    sdist: IndexFile | None
    yanked: str | None = None

    @property
    def tag(self) -> str:
        """The git tag that upstream gives a version."""
        return f"v{self.version}"


@dataclass(frozen=True)
class ReleaseFiles:
    """What was read of a release.

    metadata: METADATA, and where it was read (a file name). files: build files by their path in
    the sdist, without its top folder.
    """

    release: Release
    metadata: RawMetadata
    metadata_source: str
    raw_metadata: bytes
    files: Mapping[str, str]

    @property
    def requires_python(self) -> SpecifierSet:
        """The Python range; everything where none is stated."""
        try:
            return SpecifierSet(self.metadata.get("requires_python", ""))
        except InvalidSpecifier:
            return SpecifierSet()

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """Every requirement that can be read."""
        found = []
        for text in self.metadata.get("requires_dist", []):
            try:
                found.append(Requirement(text))
            except InvalidRequirement:
                continue
        return tuple(found)


def parse_tag(tag: str) -> Version:
    """The version of a tag, with or without its ``v``. Raises UsageError."""
    try:
        return Version(tag.removeprefix("v"))
    except InvalidVersion:
        raise UsageError(
            "this is not the tag of a release", expected="such as v0.18.1", found=repr(tag)
        ) from None


def releases(package: str, index: PackageIndex, since: Version) -> tuple[Release, ...]:
    """Final releases from `since` on, oldest first. Raises NotFoundError, NetworkError."""
    found: dict[Version, IndexFile | None] = {}
    yanked: dict[Version, str | None] = {}
    for file in index.files(package):
        version = _version(file.filename)
        if version is None or version < since or version.is_prerelease:
            continue
        found.setdefault(version, None)
        yanked.setdefault(version, file.yanked)
        if not file.filename.endswith(".whl"):
            found[version], yanked[version] = file, file.yanked
    return tuple(Release(package, str(v), found[v], yanked[v]) for v in sorted(found))


def find_release(package: str, index: PackageIndex, tag: str) -> Release:
    """The release of a tag. Raises NotFoundError with the newest ones."""
    wanted = parse_tag(tag)
    for release in releases(package, index, wanted):
        if Version(release.version) == wanted:
            return release
    known = releases(package, index, Version("0"))
    raise NotFoundError(
        f"the package index has no {package} {wanted}",
        expected=", ".join(r.tag for r in known[-5:]) or "a release",
        found=tag,
    )


def read_release(
    release: Release, watched: Watched, index: PackageIndex, cache: InputCache
) -> ReleaseFiles:
    """METADATA and build files of a release. Raises NotFoundError, NetworkError.

    From the input cache when it has the sdist or what was read of it before.
    """
    if release.sdist is None:
        raise NotFoundError(f"{release.package} {release.version} has no sdist")
    kept = cache.folder("upstream") / f"{release.sdist.sha256}.json"
    texts = _kept(kept)
    if texts is None:
        texts = _read_members(release.sdist, watched, index, cache)
        name, raw = _metadata(release, texts.get("PKG-INFO"), index)
        texts = {**texts, "METADATA": raw.decode("utf-8", "replace"), "METADATA source": name}
        document = {"schema": _KEPT_SCHEMA, "filename": release.sdist.filename, "files": texts}
        write_bytes(kept, json.dumps(document).encode())
    raw = texts["METADATA"].encode()
    metadata, _ = parse_email(raw)
    files = {k: v for k, v in texts.items() if not k.startswith("METADATA") and k != "PKG-INFO"}
    return ReleaseFiles(release, metadata, texts["METADATA source"], raw, files)


def torch_cuda(version: str, python: tuple[int, int], index: PackageIndex) -> str | None:
    """The CUDA version that the index's torch of a version is built for; None when it has none.

    Read from what its wheel requires: ``nvidia-cuda-runtime-cu12==12.8.90`` or
    ``cuda-toolkit[...]==13.0.2``.
    """
    try:
        metadata, _ = parse_email(
            index.metadata(index.best_wheel("torch", version, target_tags(python)))
        )
    except NotFoundError:
        return None
    for text in metadata.get("requires_dist", []):
        requirement = Requirement(text)
        named = requirement.name == "cuda-toolkit" or requirement.name.startswith(
            "nvidia-cuda-runtime"
        )
        if named and (pin := exact_pin(requirement)):
            return pin
    return None


def exact_pin(requirement: Requirement) -> str | None:
    """The version that a requirement pins, None when it pins none.

    >>> exact_pin(Requirement("torch==2.10.0")), exact_pin(Requirement("numpy"))
    ('2.10.0', None)
    """
    pins = [s.version for s in requirement.specifier if s.operator in ("==", "===")]
    return pins[0] if len(pins) == 1 and "*" not in pins[0] else None


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None  # nothing that an installer takes


def _kept(path: Path) -> dict[str, str] | None:
    try:
        document = json.loads(path.read_text("utf-8"))
        return document["files"] if document["schema"] == _KEPT_SCHEMA else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _metadata(release: Release, pkg_info: str | None, index: PackageIndex) -> tuple[str, bytes]:
    """The wheel's, which is final; the sdist's own where there is no wheel for the target."""
    try:
        wheel = index.best_wheel(release.package, release.version, target_tags())
        return wheel.filename, index.metadata(wheel)
    except NotFoundError:
        assert release.sdist is not None
        return f"{release.sdist.filename}: PKG-INFO", (pkg_info or "").encode()


def _read_members(
    sdist: IndexFile, watched: Watched, index: PackageIndex, cache: InputCache
) -> dict[str, str]:
    wanted = (*watched.build_files, "PKG-INFO")
    if cache.has(sdist.sha256):
        with gzip.open(cache.path(sdist.sha256)) as stream:
            return _members(stream, wanted, watched.stop_before)
    try:
        with index.session.get(
            sdist.url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=TIMEOUT
        ) as response:
            response.raise_for_status()
            reader = io.BufferedReader(_Limited(response.raw), 128 * 1024)
            with gzip.GzipFile(fileobj=reader) as stream:
                return _members(stream, wanted, watched.stop_before)
    except (requests.RequestException, OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise NetworkError(
            f"{sdist.filename} could not be read from its beginning",
            found=f"{type(error).__name__}: {error}",
            remedy="run the command again; if it persists, look whether the index has the file",
        ) from error


def _members(stream: io.BufferedIOBase, wanted: tuple[str, ...], stop: str) -> dict[str, str]:
    found: dict[str, str] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if path.startswith(stop):
                break
            matches = any(path == w or (w.endswith("/") and path.startswith(w)) for w in wanted)
            if matches and member.isfile():
                data = archive.extractfile(member)
                assert data is not None
                found[path] = data.read().decode("utf-8", "replace")
    return found


class _Limited(io.RawIOBase):
    """What arrives, up to PREFIX_LIMIT bytes: an archive in another order must not be read whole
    without a word."""

    def __init__(self, raw: io.BufferedIOBase) -> None:
        self._raw, self._count = raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._count > PREFIX_LIMIT:
            raise OSError(f"its build files do not come within the first {PREFIX_LIMIT} bytes")
        data = self._raw.read(len(buffer))
        self._count += len(data)
        buffer[: len(data)] = data
        return len(data)
