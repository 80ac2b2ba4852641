"""Is it the wheel that the profile names? Metadata, file name, tags, RECORD, modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builder.audit.contents import Contents
from builder.audit.report import Check
from kvreg.errors import ContractError
from kvreg.model.profile import Profile

_MANYLINUX = re.compile(r"manylinux_(\d+_\d+)_")
_EXTENSIONS = (".abi3.so", ".so", ".py")


def check_metadata(contents: Contents, profile: Profile) -> Check:
    """METADATA's name and version are the profile's."""
    runtime = profile.runtime
    required = f"{runtime.package} {runtime.version}"
    found = f"{contents.name} {contents.version}"
    ok = (
        contents.name is not None
        and canonicalize_name(contents.name) == canonicalize_name(runtime.package)
        and contents.version == runtime.version
    )
    if ok:
        return Check("metadata", "pass", required, found)
    return Check(
        "metadata",
        "fail",
        f"METADATA with Name and Version {required}",
        found,
        where=(f"{contents.dist_info or '*.dist-info'}/METADATA",),
        remedy="build with the profile's version (vLLM: VLLM_VERSION_OVERRIDE), or correct "
        "runtime.package and runtime.version of the profile",
    )


def check_tags(contents: Contents, profile: Profile) -> Check:
    """The file name, WHEEL's tags and the host's Python and machine agree."""
    target = profile.host.python_tag.validated
    arch = profile.host.arch.validated
    required = f"a file name that agrees with METADATA and WHEEL, for {target} on {arch}"
    try:
        name, version, _, tags = parse_wheel_filename(contents.filename)
    except InvalidWheelFilename as error:
        remedy = "name the wheel NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
        return Check("tags", "fail", required, str(error), remedy=remedy)
    problems: list[str] = []
    if contents.name is None or canonicalize_name(contents.name) != name:
        problems.append(f"the file name says {name}, METADATA says {contents.name}")
    if _version(contents.version) != version:
        problems.append(f"the file name says {version}, METADATA says {contents.version}")
    glibc = profile.build.limits.glibc
    if not any(_runs_on(tag, target, arch, glibc) for tag in tags):
        host = f"{target} on {arch} with glibc {glibc}"
        problems.append(f"no tag of {_names(tags)} is for {host}")
    written = _written(contents.tags)
    renamed = written != tags
    if renamed:
        problems.append(f"the file name says {_names(tags)}, WHEEL says {_names(written)}")
    if not problems:
        return Check("tags", "pass", required, _names(tags))
    adopted = profile.build.recipe == "adopt" and problems == problems[-1:] and renamed
    return Check(
        "tags",
        "note" if adopted else "fail",
        required + (" (an adopted wheel may have been renamed)" if adopted else ""),
        "; ".join(problems),
        remedy=None
        if adopted
        else "retag with `wheel tags`, which keeps both in step; never rename a wheel",
    )


def _written(tags: Iterable[str]) -> frozenset[Tag]:
    found: set[Tag] = set()
    for text in tags:
        try:
            found |= parse_tag(text)
        except ValueError:  # not three parts: no tag, and so not the file name's
            continue
    return frozenset(found)


def _version(text: str | None) -> Version | None:
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


def _names(tags: frozenset[Tag]) -> str:
    return ", ".join(sorted(map(str, tags))) or "none"


def _runs_on(tag: Tag, python_tag: str, arch: str, glibc: str) -> bool:
    if (match := _MANYLINUX.match(tag.platform)) and Version(match[1].replace("_", ".")) > Version(
        glibc
    ):
        return False
    if tag.platform != "any" and not tag.platform.endswith(f"_{arch}"):
        return False
    version = python_version(python_tag)
    accepted = set(cpython_tags(version, platforms=[tag.platform]))
    accepted |= set(compatible_tags(version, python_tag, platforms=[tag.platform]))
    return tag in accepted


def python_version(python_tag: str) -> tuple[int, int]:
    """The version that a CPython tag stands for. Raises ContractError for any other tag.

    >>> python_version("cp312")
    (3, 12)
    """
    if (match := re.fullmatch(r"cp(\d)(\d+)", python_tag)) is None:
        raise ContractError(
            "the profile's host.python_tag cannot be audited",
            expected="a tag such as cp312",
            found=python_tag,
            remedy="correct host.python_tag.validated",
        )
    return int(match[1]), int(match[2])


def check_record(contents: Contents) -> Check:
    """RECORD lists every member with its true hash and size, and nothing else."""
    required = "RECORD lists every member once, with its sha256 and size"
    if contents.record is None:
        return Check(
            "record",
            "fail",
            required,
            "no readable RECORD in one .dist-info folder",
            remedy="pack the wheel with `wheel pack`, which writes RECORD",
        )
    problems = [f"{path}: {why}" for path, why in sorted(contents.refused.items())]
    problems += _record_problems(contents)
    if not problems:
        count = len(contents.members)
        return Check("record", "pass", required, f"{count:,} members, every hash right")
    return Check(
        "record",
        "fail",
        required,
        f"{len(problems):,} members disagree",
        where=tuple(problems),
        remedy="a wheel that was changed after it was built: build it again, or `wheel unpack` and "
        "`wheel pack` it if the change is meant",
    )


def _record_problems(contents: Contents) -> Iterator[str]:
    rows = {}
    for row in contents.record or ():
        if row.path in rows:
            yield f"{row.path}: listed more than once"
        rows[row.path] = row
    for member in contents.members:
        row = rows.pop(member.path, None)
        if row is None:
            yield f"{member.path}: not listed"
        elif member.path in contents.unhashed:
            continue
        elif row.algorithm != "sha256":
            yield f"{member.path}: no sha256 but {row.algorithm}"
        elif row.digest != member.record_digest:
            yield f"{member.path}: sha256={row.digest} listed, sha256={member.record_digest} found"
        elif row.size is not None and row.size != member.size:
            yield f"{member.path}: {row.size} bytes listed, {member.size} found"
    yield from (f"{path}: listed, but not there" for path in rows if path not in contents.refused)


def check_modules(contents: Contents, profile: Profile) -> Check:
    """Every module that the profile wants to import is a file of the wheel."""
    wanted = profile.runtime.modules
    paths = {member.path for member in contents.members}
    missing = tuple(name for name in wanted if module_member(name, paths) is None)
    required = f"members for {', '.join(wanted) or 'no modules'}"
    if not missing:
        return Check("modules", "pass", required, "all are there")
    return Check(
        "modules",
        "fail",
        required,
        f"missing: {', '.join(missing)}",
        where=missing,
        remedy="the recipe left out an extension that is imported; build it, or correct "
        "runtime.modules of the profile",
    )


def module_member(name: str, paths: set[str]) -> str | None:
    """The member that ``import name`` would load, or None.

    >>> module_member("vllm._C", {"vllm/_C.abi3.so", "vllm/__init__.py"})
    'vllm/_C.abi3.so'
    >>> module_member("vllm", {"vllm/_C.abi3.so", "vllm/__init__.py"})
    'vllm/__init__.py'
    """
    stem = name.replace(".", "/")
    for candidate in (f"{stem}/__init__.py", *(stem + end for end in _EXTENSIONS)):
        if candidate in paths:
            return candidate
    tagged = (path for path in sorted(paths) if path.startswith(f"{stem}.cpython-"))
    return next((path for path in tagged if PurePosixPath(path).suffix == ".so"), None)
