"""What an activated runtime would hide of the host, and what would hide the runtime."""

from collections.abc import Iterator
from pathlib import Path

from kvreg.doctor.check import Check
from kvreg.facts.model import HostFacts
from kvreg.facts.packages import normalised
from kvreg.model.profile import Profile
from kvreg.model.protected import is_protected
from kvreg.runtime import Runtime


def shadowing_checks(
    profile: Profile, runtime: Runtime, facts: HostFacts, folder: Path | None
) -> Iterator[Check]:
    """The packages on both sides, and modules in `folder` (None: not looked at).

    `folder` is the working directory: ``python -m`` and ``python -c`` look there first.
    """
    yield _packages(runtime, facts)
    if folder is not None:
        yield _folder(profile, folder)


def _packages(runtime: Runtime, facts: HostFacts) -> Check:
    name = "runtime.shadows"
    required = "no package that belongs to the host is hidden"
    if facts.packages is None:
        reason = facts.reason("packages") or "not determined"
        return Check(name, required, None, None, "unknown", reason)
    both = []
    for wheel in runtime.wheels:
        host = facts.packages.get(normalised(wheel.name))
        if host is not None:
            both.append((wheel.name, host, wheel.version))
    found = ", ".join(f"{key} {old} by {new}" for key, old, new in both if old != new)
    found = found or "hides nothing of another version"
    protected = [key for key, _, _ in both if is_protected(key)]
    if protected:
        return Check(
            name, required, None, found, "violated", "would hide " + ", ".join(protected),
            "do not use this runtime; publish its artifact again without them",
        )  # fmt: skip
    return Check(name, required, None, found, "ok", "none that belongs to the host alone")


def _folder(profile: Profile, folder: Path) -> Check:
    name = "runtime.shadowed"
    names = sorted({module.partition(".")[0] for module in profile.runtime.modules})
    required = f"no other {', '.join(names)} in the working directory"
    hiding = [
        str(path)
        for module in names
        for path in (folder / module, folder / f"{module}.py")
        if path.exists()
    ]
    if not hiding:
        return Check(name, required, None, "none", "ok", "nothing hides the runtime")
    found = ", ".join(hiding)
    reason = f"python -m and python -c would import {found} instead of the runtime"
    return Check(name, required, None, found, "violated", reason, "change to another directory")
