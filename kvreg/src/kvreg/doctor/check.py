"""One check of a host, and all checks of a host by one profile."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvreg.model.fact import Status

# From good to bad; what is unknown is no reason to refuse, unless one is strict.
SEVERITY: tuple[Status, ...] = ("ok", "compatible-not-validated", "unknown", "violated")


@dataclass(frozen=True)
class Check:
    """One judgement. `found` None: not determined; `remedy` None: nothing needs to be done.

    `validated` None: the check has no single value that the profile was tested with.
    """

    name: str
    required: str
    validated: str | None
    found: str | None
    status: Status
    reason: str
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True)
class Diagnosis:
    """All checks of one host by one profile. `facts` is the digest of the host's facts.

    `runtime` is the manifest digest of the staged runtime that was checked too, None without one.
    `notes` tell what was not looked at, and why.
    """

    profile: str
    profile_digest: str
    facts: str
    runtime: str | None
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """The worst status of all checks."""
        return worst(check.status for check in self.checks)

    def count(self, status: Status) -> int:
        """How many checks have a status."""
        return Counter(check.status for check in self.checks)[status]

    def passes(self, *, strict: bool = False) -> bool:
        """Whether the host may run the runtime; with `strict` nothing may be less than ok."""
        return self.status == "ok" if strict else self.status != "violated"

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "profile": {"name": self.profile, "digest": self.profile_digest},
            "facts": self.facts,
            "runtime": self.runtime,
            "status": self.status,
            "counts": {status: self.count(status) for status in SEVERITY},
            "checks": [check.to_dict() for check in self.checks],
            "notes": list(self.notes),
        }


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe status; ``ok`` of none.

    >>> worst(["ok", "unknown", "compatible-not-validated"])
    'unknown'
    """
    return max(statuses, key=SEVERITY.index, default="ok")


def bound(name: str, required: str, found: str, fits: bool, remedy: str) -> Check:
    """A check of a bound that no value was validated for: within it is ok."""
    if fits:
        return Check(name, required, None, found, "ok", f"{found} is within {required}")
    return Check(name, required, None, found, "violated", f"found {found}", remedy)


def undetermined(name: str, required: str, reason: str, remedy: str | None = None) -> Check:
    """A check whose value could not be found out."""
    return Check(name, required, None, None, "unknown", reason, remedy)
