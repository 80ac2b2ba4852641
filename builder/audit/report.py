"""The result of an audit: checks as values, with their text and JSON forms."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "note", "skip"]

_WIDTH = 100
_SHOWN = 10
_SAMPLES = 3
"""Places shown of a long list under a check that did not fail."""

_WORDS = {"pass": "pass", "fail": "FAIL", "note": "note", "skip": "skip"}


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    `status` is ``note`` for what is worth knowing and no failure, ``skip`` for what could not be
    asked. `where` names members, symbols or lines; `remedy` says what to do about it.
    """

    name: str
    status: Status
    required: str
    found: str
    where: tuple[str, ...] = ()
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; every place is listed."""
        return {
            "name": self.name,
            "status": self.status,
            "required": self.required,
            "found": self.found,
            "where": list(self.where),
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Module:
    """One shared object of the wheel, and what the checks saw of it; `sha256` is hex."""

    path: str
    size: int
    sha256: str
    needed: tuple[str, ...] = ()
    versions: Mapping[str, str] | None = None
    sass: Mapping[str, int] | None = None
    ptx: Mapping[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; `sass` and `ptx` are counts of entries by architecture."""
        return {
            "path": self.path,
            "size": self.size,
            "sha256": self.sha256,
            "needed": list(self.needed),
            "versions": dict(self.versions or {}),
            "sass": _ordered(self.sass or {}),
            "ptx": _ordered(self.ptx or {}),
        }


@dataclass(frozen=True)
class AuditReport:
    """All checks of one wheel against one profile. `sha256` and `torch_sha256` are hex."""

    filename: str
    size: int
    sha256: str
    profile: str
    torch_wheel: str | None
    torch_sha256: str | None
    modules: tuple[Module, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def complete(self) -> bool:
        """Whether no check was skipped: what a gate wants besides `ok`."""
        return all(check.status != "skip" for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "fail")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; the same wheel and profile give the same data."""
        return {
            "wheel": {"filename": self.filename, "size": self.size, "sha256": self.sha256},
            "profile": self.profile,
            "torch_wheel": (
                {"filename": self.torch_wheel, "sha256": self.torch_sha256}
                if self.torch_wheel
                else None
            ),
            "ok": self.ok,
            "complete": self.complete,
            "modules": [module.to_dict() for module in self.modules],
            "checks": [check.to_dict() for check in self.checks],
        }

    def text(self) -> str:
        """The report for people, at most 100 columns wide."""
        lines = [
            f"{self.filename} against profile {self.profile}",
            f"  {self.size:,} bytes, sha256:{self.sha256}",
        ]
        if self.torch_wheel:
            lines.append(f"  symbols of {self.torch_wheel}")
        lines += ["", *_module_table(self.modules), ""]
        width = max((len(check.name) for check in self.checks), default=0)
        for check in self.checks:
            lines += _check_lines(check, width)
        lines += ["", self._summary()]
        return "\n".join(lines)

    def _summary(self) -> str:
        counts = {status: sum(check.status == status for check in self.checks) for status in _WORDS}
        parts = [f"{counts['pass']} passed"]
        parts += [f"{counts['note']} to note"] if counts["note"] else []
        parts += [f"{counts['skip']} skipped"] if counts["skip"] else []
        parts += [f"{counts['fail']} failed"]
        verdict = "accepted" if self.ok else "REFUSED"
        return f"{verdict}: {', '.join(parts)}"


def _module_table(modules: tuple[Module, ...]) -> list[str]:
    if not modules:
        return ["  no shared objects"]
    width = max(len(module.path) for module in modules)
    lines = [f"  {'module':<{width}} {'bytes':>13}  device code"]
    for module in modules:
        code = summarise({**(module.sass or {}), **(module.ptx or {})})
        lines += _wrap(f"  {module.path:<{width}} {module.size:>13,}  {code or '-'}", width + 18)
    return lines


def summarise(counts: Mapping[str, int]) -> str:
    """Counts in one line.

    >>> summarise({"sm_90a": 22, "sm_75": 43})
    '43 sm_75, 22 sm_90a'
    """
    return ", ".join(f"{counts[name]} {name}" for name in sorted(counts, key=architecture_key))


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts, key=architecture_key)}


def _unbroken(text: str) -> str:
    """Keeps a count and its architecture on one line."""
    return re.sub(r"(?<=\d) (?=[a-z]\w*_\d)", "\N{NO-BREAK SPACE}", text)


def architecture_key(name: str) -> tuple[str, int, str]:
    """Sorts ``sm_75`` before ``sm_100``, and machine code before PTX.

    >>> sorted(["sm_100", "compute_80", "sm_75"], key=architecture_key)
    ['sm_75', 'sm_100', 'compute_80']
    """
    prefix, _, rest = name.partition("_")
    digits = rest.rstrip("af")
    return "" if prefix == "sm" else prefix, int(digits) if digits.isdigit() else 0, rest


def _check_lines(check: Check, width: int) -> list[str]:
    indent = width + 8
    lines = _wrap(f"{_WORDS[check.status]}  {check.name:<{width}}  {check.found}", indent)
    if check.status == "pass":
        return lines
    details = [f"required: {check.required}"]
    shown = _SHOWN if check.status == "fail" or len(check.where) <= _SHOWN else _SAMPLES
    details += [f"- {place}" for place in check.where[:shown]]
    if len(check.where) > shown:
        details.append(f"- and {len(check.where) - shown} more (all of them with --json)")
    if check.remedy:
        details.append(f"remedy: {check.remedy}")
    for detail in details:
        lines += _wrap(" " * indent + detail, indent + 2)
    return lines


def _wrap(text: str, indent: int) -> list[str]:
    lines = textwrap.wrap(
        _unbroken(text),
        _WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
