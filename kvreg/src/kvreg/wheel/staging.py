"""Stages checked wheels as ``pip install --target --no-deps --no-compile`` does.

Differences from pip, all on purpose: every byte is compared with RECORD; ``INSTALLER`` says kvreg;
RECORD names files by where they lie in the directory (pip's names of scripts and data point out of
it); scripts are executable whether or not the archive marks them so; a file under ``lib`` of a
wheel's data directory, which pip loses, is kept; two wheels that bring different files of one name
are refused instead of one winning.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kvreg.errors import ContractError, Problem, VerificationError
from kvreg.model.protected import PROTECTED_MODULES
from kvreg.wheel.archive import DAMAGED, Member, WheelArchive, name_problems
from kvreg.wheel.record import RecordRow, write_record
from kvreg.wheel.scripts import EntryPoint, read_entry_points, rewritten

INSTALLER = "kvreg"
_STARTUP_MODULES = frozenset({"sitecustomize", "usercustomize"})
_SCHEMES = {"purelib": "", "platlib": "", "scripts": "bin/", "data": ""}
_CHUNK = 1 << 20
_WORKERS = 4


@dataclass(frozen=True)
class Staged:
    """What one wheel became: its RECORD, and the size in bytes of every file by path."""

    record: str
    record_sha256: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Placement:
    """Where a member goes, relative to the directory; scripts are rewritten and executable."""

    member: Member
    path: str
    is_script: bool


@dataclass(frozen=True)
class WheelPlan:
    """Everything that one wheel will write, decided before anything is written."""

    archive: WheelArchive
    placements: tuple[Placement, ...]
    entry_points: tuple[EntryPoint, ...]
    requested: bool

    def generated(self) -> dict[str, bytes]:
        """Small files that staging itself adds to the wheel's metadata."""
        files = {"INSTALLER": f"{INSTALLER}\n".encode()}
        if self.requested:
            files["REQUESTED"] = b""
        return {f"{self.archive.dist_info}/{name}": data for name, data in files.items()}

    def paths(self) -> Iterator[str]:
        """Every path that will exist, relative to the directory."""
        yield from (placement.path for placement in self.placements)
        yield from (f"bin/{entry.name}" for entry in self.entry_points)
        yield from self.generated()
        yield self.archive.record_name


def plan_wheel(archive: WheelArchive, *, requested: bool) -> WheelPlan:
    """Decide where a wheel's files go; raises when it would write what it must not.

    `VerificationError` for paths that make no sense, `ContractError` for host packages shadowed.
    """
    placements, problems = [], []
    for member in archive.members:
        if member.name in (f"{archive.dist_info}/INSTALLER", f"{archive.dist_info}/REQUESTED"):
            continue
        path = _destination(archive, member.name)
        if path is None:
            problems.append(Problem(member.name, "is in an unknown part of the data directory"))
        else:
            is_script = member.name.startswith(f"{archive.data}/scripts/")
            placements.append(Placement(member, path, is_script))
    entry_points, faults = _entry_points(archive)
    problems += faults
    plan = WheelPlan(archive, tuple(placements), tuple(entry_points), requested)
    problems += name_problems(plan.paths())
    if problems:
        raise VerificationError(
            f"the wheel {archive.name.filename} cannot be staged", problems=problems
        )
    _check_shadowing(plan)
    return plan


def check_together(plans: Sequence[WheelPlan]) -> None:
    """Raise `VerificationError` when wheels of one runtime bring different files of one name."""
    owners: dict[str, tuple[str, RecordRow | None]] = {}
    names: list[str] = []
    problems: list[Problem] = []
    for plan in plans:
        # A script differs by interpreter line, so it never counts as the same file.
        rows = {item.path: item.member.row for item in plan.placements if not item.is_script}
        for path in plan.paths():
            row = rows.get(path)
            owner, first = owners.setdefault(path, (plan.archive.name.filename, row))
            if owner == plan.archive.name.filename:
                names.append(path)
            elif row is None or first is None or row.fields()[1:] != first.fields()[1:]:
                problems.append(Problem(path, f"is also, differently, in {owner}"))
    problems += name_problems(names)
    if problems:
        raise VerificationError("the wheels of this runtime collide", problems=problems)


def stage(
    plan: WheelPlan,
    site: Path,
    interpreter: str,
    progress: Callable[[int], object] | None = None,
) -> Staged:
    """Write a planned wheel into `site`; `progress` gets counts of unpacked bytes.

    Raises `VerificationError` naming every member whose bytes differ from RECORD. The caller
    throws `site` away when this raises.
    """
    report = progress or (lambda count: None)
    for folder in sorted({os.path.dirname(path) for path in plan.paths()}):  # noqa: PTH120
        (site / folder).mkdir(parents=True, exist_ok=True)
    mask = _umask()

    def place(placement: Placement) -> RecordRow | Problem:
        return _place(plan.archive, placement, site, interpreter, mask, report)

    # Inflating and hashing release the interpreter's lock; large members first.
    ordered = sorted(plan.placements, key=lambda placement: -placement.member.size)
    workers = min(_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(place, ordered))
    problems = [result for result in results if isinstance(result, Problem)]
    if problems:
        raise VerificationError(
            f"the wheel {plan.archive.name.filename} does not match its RECORD",
            problems=sorted(problems, key=lambda problem: problem.where),
            remedy="do not use this wheel; build and publish it again",
        )
    rows = [result for result in results if isinstance(result, RecordRow)]
    for entry in plan.entry_points:
        path = f"bin/{entry.name}"
        rows.append(_write(site, path, entry.source(interpreter)))
        _make_executable(site / path, mask)
    rows += [_write(site, path, data) for path, data in plan.generated().items()]
    own_row = RecordRow(plan.archive.record_name, None, None, None)
    record = write_record([*rows, own_row])
    _write(site, own_row.path, record)
    sizes = {row.path: row.size or 0 for row in rows} | {own_row.path: len(record)}
    return Staged(own_row.path, hashlib.sha256(record).hexdigest(), sizes)


def _destination(archive: WheelArchive, name: str) -> str | None:
    """The path of a member in the directory; None for an unknown part of ``.data``."""
    if not name.startswith(f"{archive.data}/"):
        return name
    scheme, separator, rest = name.removeprefix(f"{archive.data}/").partition("/")
    if not separator:
        return None
    if scheme == "headers":
        return f"include/python/{archive.name.name}/{rest}"
    return f"{_SCHEMES[scheme]}{rest}" if scheme in _SCHEMES else None


def _entry_points(archive: WheelArchive) -> tuple[list[EntryPoint], list[Problem]]:
    path = f"{archive.dist_info}/entry_points.txt"
    for member in archive.members:
        if member.name == path:
            return read_entry_points(archive.read(member), path)
    return [], []


def _check_shadowing(plan: WheelPlan) -> None:
    modules = {_top_module(path) for path in plan.paths()}
    found = sorted(modules & (PROTECTED_MODULES | _STARTUP_MODULES | sys.stdlib_module_names))
    if found:
        raise ContractError(
            f"the wheel {plan.archive.name.filename} would shadow modules of the host",
            expected="no host package, standard module or start-up hook at its top level",
            found=", ".join(found),
            remedy="leave the package out of the runtime: the host's own is used",
        )


def _top_module(path: str) -> str:
    """The name that an import of this file (or of its top directory) begins with."""
    top, inside, _ = path.partition("/")
    if inside:
        return top
    return top.partition(".")[0] if top.endswith((".py", ".pyc", ".so")) else ""


def _place(
    archive: WheelArchive,
    placement: Placement,
    site: Path,
    interpreter: str,
    mask: int,
    report: Callable[[int], object],
) -> RecordRow | Problem:
    """Write one member; the row for the new RECORD, or what is wrong with its bytes."""
    row, path = placement.member.row, placement.path
    assert row.algorithm is not None
    state = hashlib.new(row.algorithm)
    size = 0
    target = site / path
    content = bytearray()
    try:
        with archive.open(placement.member) as source, target.open("xb") as output:
            while chunk := source.read(_CHUNK):
                state.update(chunk)
                size += len(chunk)
                report(len(chunk))
                if placement.is_script:
                    content += chunk
                else:
                    output.write(chunk)
    except FileExistsError:
        # Only where another wheel of the runtime brought the same file, see `check_together`.
        return replace(row, path=path, size=placement.member.size)
    except DAMAGED as error:
        return Problem(placement.member.name, f"cannot be read: {error}")
    if state.digest() != row.digest:
        where = placement.member.name
        return Problem(
            where, "does not match RECORD", _hash(row), f"{row.algorithm}={state.hexdigest()}"
        )
    if placement.is_script:
        row = _write(site, path, rewritten(bytes(content), interpreter))
    else:
        row = replace(row, path=path, size=size)
    if placement.is_script or placement.member.executable:
        _make_executable(target, mask)
    return row


def _hash(row: RecordRow) -> str:
    return f"{row.algorithm}={row.digest.hex() if row.digest else ''}"


def _write(site: Path, path: str, data: bytes) -> RecordRow:
    (site / path).write_bytes(data)
    return RecordRow(path, "sha256", hashlib.sha256(data).digest(), len(data))


def _make_executable(path: Path, mask: int) -> None:
    path.chmod((0o777 & ~mask) | 0o111)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
