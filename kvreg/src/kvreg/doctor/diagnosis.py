"""Judging a host by a profile: all checks in one list."""

from collections.abc import Iterable
from pathlib import Path

from kvreg import catalogue
from kvreg.doctor.check import SEVERITY, Check, Diagnosis
from kvreg.doctor.contract import contract_checks
from kvreg.doctor.devicecode import device_code_check
from kvreg.doctor.native import native_checks
from kvreg.doctor.shadowing import shadowing_checks
from kvreg.doctor.surroundings import surrounding_checks
from kvreg.errors import KvregError, NotFoundError
from kvreg.facts.model import HostFacts
from kvreg.home import Home
from kvreg.model.profile import Profile
from kvreg.runtime import Runtime, read_runtime

_ELSEWHERE = (
    "the facts were read from a file: the runtime's files were not compared with that host's torch"
)


def diagnose(
    profile: Profile, facts: HostFacts, home: Home | None = None, *, here: bool = True
) -> Diagnosis:
    """Judge `facts` by `profile`, and its staged runtime in `home` with them.

    `here`: the facts are those of this host as it is now; else nothing that lies on this host's
    disk is compared with them.
    """
    checks, notes = [], []
    runtime, damage = _staged(profile, home)
    checks += contract_checks(profile, facts)
    checks += surrounding_checks(profile, facts, staged=runtime is not None)
    if damage is not None:
        checks.append(damage)
    elif runtime is None:
        notes.append(f"not staged: kvreg pull {profile.name} --registry REF")
    else:
        checks.append(device_code_check(profile, runtime, facts))
        checks += shadowing_checks(profile, runtime, facts, Path.cwd() if here else None)
        if here:
            checks += native_checks(profile, runtime)
        else:
            notes.append(_ELSEWHERE)
    return Diagnosis(
        profile=profile.name,
        profile_digest=profile.digest,
        facts=facts.digest,
        runtime=runtime.manifest_digest if runtime else None,
        checks=tuple(checks),
        notes=tuple(notes),
    )


def diagnose_all(
    facts: HostFacts, home: Home | None = None, *, here: bool = True
) -> list[Diagnosis]:
    """The host judged by every profile that is known, the best one first.

    The best has the fewest violated facts, then unknown ones, then ones that were not validated;
    among equals one that is staged, then one that is compiled for the host rather than adopted,
    and a real runtime rather than a probe.
    """
    found = []
    for entry in catalogue.entries():
        if entry.profile is not None:
            diagnosis = diagnose(entry.profile, facts, home, here=here)
            found.append((_rank(diagnosis, entry.profile), diagnosis))
    if not found:
        raise NotFoundError("no profiles are known", remedy=f"set ${catalogue.ENVIRONMENT}")
    return [diagnosis for _, diagnosis in sorted(found, key=lambda item: item[0])]


def _rank(diagnosis: Diagnosis, profile: Profile) -> tuple[object, ...]:
    counts = [diagnosis.count(status) for status in reversed(SEVERITY) if status != "ok"]
    kind = profile.runtime.role == "probe"
    adopted = profile.build.recipe == "adopt"
    return (*counts, kind, diagnosis.runtime is None, adopted, profile.name)


def _staged(profile: Profile, home: Home | None) -> tuple[Runtime | None, Check | None]:
    """The profile's staged runtime, or the check that says that it is damaged."""
    if home is None:
        return None, None
    try:
        return read_runtime(home.runtime(profile.digest)), None
    except NotFoundError:
        return None, None
    except KvregError as error:
        return None, Check(
            "runtime", "an intact staged runtime", None, "damaged", "violated", error.what,
            error.remedy,
        )  # fmt: skip


def with_checks(diagnosis: Diagnosis, checks: Iterable[Check]) -> Diagnosis:
    """The same diagnosis with more checks."""
    fields = {name: getattr(diagnosis, name) for name in diagnosis.__dataclass_fields__}
    return Diagnosis(**{**fields, "checks": (*diagnosis.checks, *checks)})
