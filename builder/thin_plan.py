"""What thinning makes of a whole wheel, decided and judged before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.audit.wheel import Wheel
from builder.elf_layout import LayoutError
from builder.fatbin_choice import Capability, parse_capability
from builder.thin_module import ModulePlan, plan_module, summary
from kvreg.errors import ContractError, Problem
from kvreg.model.profile import Profile


@dataclass(frozen=True)
class Wanted:
    """What shall stay.

    gpus: compute capabilities, as numbers. ptx: whether intermediate code stays where there is no
    machine code for them. empty, drop: members whose device code goes, and that go themselves,
    each with the reason; the profile's omissions.
    """

    gpus: tuple[Capability, ...]
    ptx: bool = True
    empty: Mapping[str, str] = field(default_factory=dict)
    drop: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Profile, architectures: Sequence[str] = ()) -> Wanted:
        """What a profile asks for. `architectures` must be its own, where given."""
        own = {parse_capability(text) for text in profile.build.compute_capabilities}
        named = {parse_capability(text) for text in architectures}
        if named and named != own:
            raise ContractError(
                f"profile {profile.name} is for other GPUs",
                expected=", ".join(_text(gpu) for gpu in sorted(own)),
                found=", ".join(_text(gpu) for gpu in sorted(named)),
            )
        omissions = profile.build.omissions
        return cls(
            gpus=tuple(sorted(own)),
            ptx=profile.build.ptx,
            empty={path: item.reason for item in omissions for path in item.empty},
            drop={path: item.reason for item in omissions for path in item.drop},
        )


@dataclass(frozen=True)
class WheelPlan:
    """The plan of every member that holds device code; other members stay as they are."""

    upstream: str
    wanted: Wanted
    modules: tuple[ModulePlan, ...]
    dropped: tuple[ModulePlan, ...] = ()

    def module(self, path: str) -> ModulePlan | None:
        """The plan of a member, None for one that is not thinned."""
        return next((item for item in self.modules if item.path == path), None)

    def to_dict(self) -> dict[str, Any]:
        """Modules with what is kept and removed of each, by architecture."""
        return {
            "architectures": [_text(gpu) for gpu in self.wanted.gpus],
            "ptx": self.wanted.ptx,
            "modules": [item.to_dict() for item in self.modules],
            "dropped": [
                {
                    "path": item.path,
                    "reason": self.wanted.drop[item.path],
                    "removed": summary(item.removed),
                }
                for item in self.dropped
            ],
        }


def plan_wheel(
    wheel: Wheel, wanted: Wanted, progress: Callable[[int], object] | None = None
) -> WheelPlan:
    """Choose what stays of every module.

    `progress` is called with numbers of unpacked bytes. Raises ContractError with every module that
    would be left without the code that upstream built for these GPUs, and when no module has any,
    or the profile names members that the wheel does not have.
    """
    paths = {info.filename for info in wheel.members}
    unknown = [path for path in (*wanted.empty, *wanted.drop) if path not in paths]
    if unknown:
        raise ContractError(
            f"{wheel.filename} does not have what the profile leaves out of it",
            problems=[Problem(path, "no such member") for path in unknown],
            remedy="correct the paths in [[build.omission]]",
        )
    modules, dropped = [], []
    for info in wheel.members:
        drop = info.filename in wanted.drop
        if drop or is_module(info.filename):
            with wheel.open(info) as (data, _):
                plan = _plan(info.filename, data, wanted) or ModulePlan(info.filename, ())
            if drop:
                dropped.append(plan)
            elif plan.choices:
                modules.append(plan)
        if progress:
            progress(info.file_size)
    whole = WheelPlan(wheel.filename, wanted, tuple(modules), tuple(dropped))
    _judge(whole)
    return whole


def is_module(path: str) -> bool:
    """Whether a member is a shared object by its name.

    >>> is_module("vllm/_C.abi3.so"), is_module("lib/libx.so.1"), is_module("a.solution")
    (True, True, False)
    """
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name


def _plan(path: str, data: Any, wanted: Wanted) -> ModulePlan | None:
    try:
        emptied = wanted.drop.get(path) or wanted.empty.get(path)
        return plan_module(path, data, wanted.gpus, ptx=wanted.ptx, emptied=emptied)
    except LayoutError:
        if bytes(data[:4]) == b"\x7fELF":
            raise
        return None  # a linker script or a link's target, which is no code


def _judge(plan: WheelPlan) -> None:
    wanted = ", ".join(_text(gpu) for gpu in plan.wanted.gpus)
    problems = [
        Problem(
            item.path,
            f"would be left without code for {wanted}",
            found=f"only {', '.join(summary(item.available))}",
        )
        for item in plan.modules
        if item.bereft
    ]
    if problems:
        raise ContractError(
            f"{plan.upstream} has code for {wanted} that thinning would take away",
            problems=problems,
            remedy="set build.ptx, or say in [[build.omission]] with `empty` or `drop` why the"
            " module may do without",
        )
    if not any(item.kept for item in plan.modules):
        raise ContractError(
            f"{plan.upstream} has no code for {wanted}",
            found=", ".join(summary(e for item in plan.modules for e in item.removed))
            or "no device code",
            remedy="name a compute capability that upstream built for",
        )


def _text(gpu: Capability) -> str:
    return f"{gpu[0]}.{gpu[1]}"
