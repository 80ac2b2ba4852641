"""Facts of a host: what a profile requires, what it was validated with, and the judgement.

`require` is a PEP 440 specifier set when it starts with one of ``< > = ! ~``, accepts anything
when it is ``*``, and is an exact value otherwise.

>>> torch = Fact(require="==2.10.0", validated="2.10.0+cu128")
>>> torch.judge("2.10.0+cu128").status
'ok'
>>> torch.judge("2.10.0+cu126").status
'compatible-not-validated'
>>> torch.judge("2.11.0+cu128").status
'violated'
"""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "compatible-not-validated", "violated", "unknown"]

ANYTHING = "*"
_OPERATORS = "<>=!~"


@dataclass(frozen=True)
class Verdict:
    """The judgement of one fact, with its reason."""

    status: Status
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the fact lies within what is required."""
        return self.status in ("ok", "compatible-not-validated")


@dataclass(frozen=True)
class Fact:
    """What is required of one host fact, and the value that the profile was tested with."""

    require: str
    validated: str

    @property
    def is_specifier(self) -> bool:
        """Whether `require` is a PEP 440 specifier set."""
        return self.require.startswith(tuple(_OPERATORS))

    def problem(self) -> str | None:
        """Why this fact makes no sense, or None: its validated value must satisfy `require`."""
        if not self.is_specifier:
            if self.require not in (ANYTHING, self.validated):
                return f"the validated value {self.validated!r} is not {self.require!r}"
            return None
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(self.require)
        except InvalidSpecifier:
            return f"{self.require!r} is not a PEP 440 specifier set such as '>=12.4,<13'"
        accepted = self._accepts(self.validated)
        if accepted is None:
            return f"the validated value {self.validated!r} is not a version"
        return None if accepted else f"{self.validated!r} does not satisfy {self.require!r}"

    def judge(self, found: str | None) -> Verdict:
        """Compare the value found on a host (None when it could not be determined)."""
        if found is None:
            return Verdict("unknown", f"not determined; required {self.require}")
        if self.require != ANYTHING:
            accepted = self._accepts(found)
            if accepted is None:
                return Verdict("unknown", f"{found!r} is not a version; required {self.require}")
            if not accepted:
                return Verdict("violated", f"found {found}, required {self.require}")
        if self._is_validated(found):
            return Verdict("ok", f"{found} is the validated value")
        return Verdict(
            "compatible-not-validated",
            f"found {found}, within {self.require}, but validated with {self.validated}",
        )

    def to_dict(self) -> dict[str, str]:
        """The inline table of the profile."""
        return {"require": self.require, "validated": self.validated}

    def _accepts(self, found: str) -> bool | None:
        """Whether `require` holds for `found`; None when that is not a version."""
        if not self.is_specifier:
            return self.require == ANYTHING or found == self.require
        from packaging.specifiers import SpecifierSet
        from packaging.version import InvalidVersion, Version

        try:
            version = Version(found)
        except InvalidVersion:
            return None
        # A host that runs a pre-release runs it: whether it satisfies is a matter of order.
        return SpecifierSet(self.require).contains(version, prereleases=True)

    def _is_validated(self, found: str) -> bool:
        if found == self.validated:
            return True
        if not self.is_specifier:
            return False
        from packaging.version import InvalidVersion, Version

        try:
            return Version(found) == Version(self.validated)
        except InvalidVersion:
            return False
