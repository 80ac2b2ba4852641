"""What a comparison finds, as values. ``a`` and ``b`` are the two wheels, in the order given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from builder.comparison.reasons import REASONS

Verdict = Literal["identical", "different", "not-comparable"]
Change = Literal["changed", "only-in-a", "only-in-b"]

MOST_MEMBERS, MOST_PARTS = 100, 40
"""How many differing members, and places in one, are listed; all of them are counted."""


@dataclass(frozen=True)
class Part:
    """One place where two files differ.

    where: a section, an entry of device code, lines. what: how it differs, in words. reasons: keys
    of `REASONS` that together account for it, empty where none is known. lines: a short diff, or
    what each side has there.
    """

    where: str
    what: str
    reasons: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"where": self.where, "what": self.what}
        if self.reasons:
            found["reasons"] = [{"code": code, "because": REASONS[code]} for code in self.reasons]
        return found | ({"lines": list(self.lines)} if self.lines else {})

    def text(self) -> str:
        because = "".join(f" [{code}: {REASONS[code]}]" for code in self.reasons)
        return "\n".join(
            [f"{self.where}: {self.what}{because}", *(f"  {line}" for line in self.lines)]
        )


@dataclass(frozen=True)
class Side:
    """A file on one side: `size` in bytes, `sha256` hex."""

    sha256: str
    size: int

    def to_dict(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "size": self.size}


@dataclass(frozen=True)
class Member:
    """A member that differs; a side is None where the wheel lacks it."""

    path: str
    kind: str
    change: Change
    a: Side | None
    b: Side | None
    parts: tuple[Part, ...] = ()

    @property
    def unexplained(self) -> bool:
        """Whether something in it differs for no known reason."""
        return not self.parts or not all(part.reasons for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "kind": self.kind,
            "change": self.change,
            "a": self.a.to_dict() if self.a else None,
            "b": self.b.to_dict() if self.b else None,
            "parts": [part.to_dict() for part in self.parts[:MOST_PARTS]],
            "partCount": len(self.parts),
        }

    def text(self) -> str:
        lines = [f"{self.path} ({self.kind}): {self.change}"]
        for part in self.parts[:MOST_PARTS]:
            lines += [f"  {line}" for line in part.text().splitlines()]
        if len(self.parts) > MOST_PARTS:
            lines.append(f"  and {len(self.parts) - MOST_PARTS} more places")
        return "\n".join(lines)


@dataclass(frozen=True)
class Comparison:
    """Two wheels compared. archive: what differs in the zip file around its members' bytes.

    `why` says why they cannot be compared; `same` counts members that are equal.
    """

    verdict: Verdict
    a: Side
    b: Side
    archive: tuple[Part, ...] = ()
    members: tuple[Member, ...] = ()
    same: int = 0
    why: str | None = None

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Paths of the members that differ for no known reason; "" stands for the archive."""
        found = [member.path for member in self.members if member.unexplained]
        return (*([""] if not all(part.reasons for part in self.archive) else []), *found)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data, long lists cut and counted."""
        return {
            "verdict": self.verdict,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "membersSame": self.same,
            "membersDifferent": len(self.members),
            "unexplained": list(self.unexplained[:MOST_MEMBERS]),
            "archive": [part.to_dict() for part in self.archive[:MOST_PARTS]],
            "members": [member.to_dict() for member in self.members[:MOST_MEMBERS]],
            **({"why": self.why} if self.why else {}),
        }

    def text(self) -> str:
        """As lines for a terminal."""
        lines = [self.verdict, f"  a sha256:{self.a.sha256}  {self.a.size:,} bytes"]
        lines.append(f"  b sha256:{self.b.sha256}  {self.b.size:,} bytes")
        if self.why:
            lines.append(f"  {self.why}")
        if self.verdict == "different":
            lines.append(f"  {self.same} members are equal, {len(self.members)} differ")
        for part in self.archive:
            lines += [f"  archive, {line}" for line in part.text().splitlines()]
        for member in self.members[:MOST_MEMBERS]:
            lines += [f"  {line}" for line in member.text().splitlines()]
        if len(self.members) > MOST_MEMBERS:
            lines.append(f"  and {len(self.members) - MOST_MEMBERS} more members")
        return "\n".join(lines)
