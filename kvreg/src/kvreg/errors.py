"""Every error that the tools report on purpose, with the exit code it ends in.

An error says what was wrong, what was expected, what was found and what to do about it; a check
that finds several faults reports all of them at once as `Problem` values.

>>> error = NotFoundError("no profile named 't4'", expected="t4-probe", remedy="fix the name")
>>> print(error)
no profile named 't4'
  expected: t4-probe
  remedy:   fix the name
>>> error.exit_code
3
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One fault among several: `where` names the file, key or member that is at fault."""

    where: str
    what: str
    expected: str | None = None
    found: str | None = None

    def to_dict(self) -> dict[str, str]:
        """The problem as JSON-ready data, absent fields left out."""
        fields = {
            "where": self.where,
            "what": self.what,
            "expected": self.expected,
            "found": self.found,
        }
        return {key: value for key, value in fields.items() if value is not None}

    def __str__(self) -> str:
        details = [
            f"{label} {value}"
            for label, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        return f"{self.where}: {self.what}" + (f" ({'; '.join(details)})" if details else "")


class KvregError(Exception):
    """Base of all reported errors. `exit_code` is what a command ends with.

    `tried` says what was passed over before, and why: one `Problem` for each place.
    """

    exit_code = 1
    tried: tuple[Problem, ...] = ()

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.problems = tuple(problems)

    @property
    def kind(self) -> str:
        """The error's class in words that a program can match, such as ``network``."""
        words = re.findall(r"[A-Z][a-z]*", type(self).__name__.removesuffix("Error"))
        return "-".join(words).lower()

    def to_dict(self) -> dict[str, object]:
        """The error as JSON-ready data, absent fields left out."""
        result: dict[str, object] = {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "what": self.what,
        }
        for key in ("expected", "found", "remedy"):
            if (value := getattr(self, key)) is not None:
                result[key] = value
        if self.problems:
            result["problems"] = [problem.to_dict() for problem in self.problems]
        if self.tried:
            result["tried"] = [problem.to_dict() for problem in self.tried]
        return result

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  - {problem}" for problem in self.problems]
        lines += [f"  tried     {problem}" for problem in self.tried]
        for label in ("expected", "found", "remedy"):
            if (value := getattr(self, label)) is not None:
                lines.append(f"  {label + ':':<9} {value}")
        return "\n".join(lines)


class VerificationError(KvregError):
    """Bytes are not what a digest, a RECORD or a format says that they are."""

    exit_code = 1


class ContractError(KvregError):
    """A profile is invalid, or a host or wheel violates one."""

    exit_code = 1


class UsageError(KvregError):
    """The caller asked for something that cannot be meant."""

    exit_code = 2


class NotFoundError(KvregError):
    """A profile, artifact, tag or file that was asked for does not exist."""

    exit_code = 3


class NetworkError(KvregError):
    """A registry could not be reached, refused, or answered what makes no sense."""

    exit_code = 4


class StorageError(KvregError):
    """The disk is full, or the file system does not let us."""

    exit_code = 5
