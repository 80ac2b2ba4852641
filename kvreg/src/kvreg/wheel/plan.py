"""Where a wheel's files go, decided before anything is written."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvreg.errors import ContractError, Problem, VerificationError
from kvreg.model.protected import PROTECTED_MODULES
from kvreg.wheel.archive import Member, WheelArchive, name_problems
from kvreg.wheel.content import Content
from kvreg.wheel.record import RecordRow
from kvreg.wheel.scripts import EntryPoint, read_entry_points

INSTALLER = "kvreg"
_STARTUP_MODULES = frozenset({"sitecustomize", "usercustomize"})
_SCHEMES = {"purelib": "", "platlib": "", "scripts": "bin/", "data": ""}


class Placement(NamedTuple):
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

    @property
    def content(self) -> Content:
        """What the wheel is read from."""
        return self.archive.content

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
    if len(plans) < 2:
        # Within a wheel nothing collides: `plan_wheel` has refused it.
        return
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
