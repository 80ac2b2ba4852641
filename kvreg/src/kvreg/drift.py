"""Drift: from which day published images of a notebook no longer fit a profile, and on what.

Only what a package list can tell is judged. What would be needed is a matter of what the fact is
bound to: native code to torch's C++ ABI, a wheel to the Python in its tags (one of the limited API,
``abi3``, to none), an overlay to Python and to the host's packages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.doctor.check import Check, worst
from kvreg.doctor.contract import contract_checks
from kvreg.errors import UsageError
from kvreg.facts.published import UNLISTED, Published, published_facts, read_published
from kvreg.model.fact import Status
from kvreg.model.profile import Profile
from kvreg.model.protected import is_protected

_TORCH = ("torch", "torch_cuda", "cxx11_abi")
_PYTHON = ("python", "python_tag")
_SYSTEM = ("glibc", "glibcxx", "cxxabi", "arch")
# Wheels of these recipes hold code that is linked against torch.
_LINKS_TORCH = ("vllm", "adopt", "thin")


@dataclass(frozen=True)
class Day:
    """One image judged. `changed` are the host's own packages that differ from the day before."""

    date: str
    folder: str
    checks: tuple[Check, ...]
    needs: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def status(self) -> Status:
        """The worst status of the facts that the lists tell."""
        return worst(check.status for check in self.checks)

    @property
    def violated(self) -> tuple[str, ...]:
        """The facts that the image violates."""
        return tuple(check.name for check in self.checks if check.status == "violated")

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "date": self.date,
            "folder": self.folder,
            "status": self.status,
            "violated": list(self.violated),
            "needs": list(self.needs),
            "changed": list(self.changed),
            "checks": [check.to_dict() for check in self.checks],
        }


@dataclass(frozen=True)
class Drift:
    """Images of several days judged by one profile, in order of time.

    `unlisted` are the facts that no package list can tell.
    """

    profile: str
    profile_digest: str
    days: tuple[Day, ...]
    unlisted: tuple[str, ...]

    @property
    def first_break(self) -> Day | None:
        """The first image that violates the profile."""
        return next((day for day in self.days if day.violated), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data; ``breaks`` lists for every violated fact the first date."""
        breaks: dict[str, str] = {}
        for day in self.days:
            for name in day.violated:
                breaks.setdefault(name, day.date)
        first = self.first_break
        return {
            "profile": {"name": self.profile, "digest": self.profile_digest},
            "first_break": first.date if first else None,
            "breaks": breaks,
            "days": [day.to_dict() for day in self.days],
            "not_judged": list(self.unlisted),
        }


def drift(profile: Profile, folders: Sequence[Path], wheel: str | None = None) -> Drift:
    """Judge the images whose lists lie in `folders`.

    `wheel` is the file name of the runtime's wheel where it is known: its tags say whether another
    Python needs another wheel. Raises what `read_published` raises.
    """
    if not folders:
        raise UsageError("no folder of package lists was named", expected="HOSTDIR...")
    images = sorted(map(read_published, folders), key=lambda image: image.day)
    days, unlisted = [], []
    before: Published | None = None
    for image in images:
        checks = list(contract_checks(profile, published_facts(image)))
        unlisted = [check.name for check in checks if check.reason == UNLISTED]
        told = tuple(check for check in checks if check.reason != UNLISTED)
        days.append(
            Day(
                image.day.isoformat(),
                str(image.folder),
                told,
                tuple(_needs(profile, told, wheel)),
                tuple(_changes(before, image)) if before else (),
            )
        )
        before = image
    return Drift(profile.name, profile.digest, tuple(days), tuple(unlisted))


def _needs(profile: Profile, checks: Sequence[Check], wheel: str | None) -> Iterator[str]:
    found = {check.name: check.found for check in checks if check.status == "violated"}
    if any(name in found for name in _SYSTEM):
        names = ", ".join(name for name in _SYSTEM if name in found)
        yield f"compile on a system as old as the image's ({names})"
    recompiled = False
    if any(name in found for name in _TORCH):
        values = {check.name: check.found for check in checks}
        if profile.build.recipe in _LINKS_TORCH:
            yield f"recompile the native wheel against torch {values['torch']}"
            recompiled = True
        else:
            yield f"a new profile for torch {values['torch']}; the wheel is not linked against it"
    if any(name in found for name in _PYTHON):
        yield from _python_needs(found, wheel, recompiled)
    if "nccl" in found:
        yield f"validate NCCL {found['nccl']} and require it"
    if "os" in found:
        yield f"validate {found['os']}"
    if found:
        yield "a new profile with its overlay locked for that image, and validation on real GPUs"


def _python_needs(
    found: dict[str, str | None], wheel: str | None, recompiled: bool
) -> Iterator[str]:
    target = found.get("python_tag") or found.get("python")
    if recompiled:
        yield f"compile that wheel for {target}, or as abi3"
    elif wheel is None:
        yield f"a new overlay for {target} if the wheel is abi3; else recompile it for {target}"
    elif "-abi3-" in wheel or "-none-" in wheel:
        yield f"a new overlay for {target}; the wheel {wheel} stays"
    else:
        yield f"recompile the wheel for {target}, or as abi3 ({wheel} is bound to its Python)"


def _changes(before: Published, after: Published) -> Iterator[str]:
    if before.python != after.python:
        yield f"Python {before.python} -> {after.python}"
    for name in sorted({*before.packages, *after.packages}):
        old, new = before.packages.get(name), after.packages.get(name)
        if old != new and is_protected(name):
            yield f"{name} {old or 'absent'} -> {new or 'absent'}"
