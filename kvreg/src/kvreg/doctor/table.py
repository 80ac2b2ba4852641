"""Diagnoses for people: every check in a table, and below it what to do."""

from collections.abc import Sequence

from kvreg.doctor.check import SEVERITY, Check, Diagnosis
from kvreg.model.fact import Status

_WORDS = {
    "ok": "ok",
    "compatible-not-validated": "not validated",
    "unknown": "UNKNOWN",
    "violated": "VIOLATED",
}
_WIDEST = 44


def table(diagnosis: Diagnosis, *, strict: bool = False) -> str:
    """The whole diagnosis as text; what is too long for the table stands in full below it."""
    rows = [("check", "status", "found", "required", "validated")]
    rows += [_row(check) for check in diagnosis.checks]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [summary(diagnosis, strict=strict), ""]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[4]]).rstrip())
    for status in reversed(SEVERITY):
        lines += _told([check for check in diagnosis.checks if check.status == status], status)
    if diagnosis.notes:
        lines += ["", *(f"note: {note}" for note in diagnosis.notes)]
    return "\n".join(lines)


def summary(diagnosis: Diagnosis, *, strict: bool = False) -> str:
    """One line: the verdict and how many checks have which status."""
    counts = ", ".join(
        f"{diagnosis.count(status)} {_WORDS[status].lower()}"
        for status in reversed(SEVERITY)
        if diagnosis.count(status)
    )
    passes = diagnosis.passes(strict=strict)
    verdict = "fits" if passes else "does not fit"
    if passes and diagnosis.status != "ok":
        verdict = "fits as far as known" if diagnosis.status == "unknown" else "should fit"
    if not passes and diagnosis.status != "violated":
        verdict = "does not fit (--strict)"
    return f"{diagnosis.profile}: this host {verdict} ({counts})"


def ranking(diagnoses: Sequence[Diagnosis], *, strict: bool = False) -> str:
    """All profiles, the best first, and the whole table of the best one."""
    lines = [summary(item, strict=strict) for item in diagnoses]
    best = diagnoses[0]
    word = "best" if best.passes(strict=strict) else "nearest"
    return "\n".join([*lines, "", f"{word}: {table(best, strict=strict)}"])


def _told(checks: Sequence[Check], status: Status) -> list[str]:
    """Reasons and remedies, those of one remedy together."""
    if not checks or status == "ok":
        return []
    groups: dict[str | None, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.remedy, []).append(check)
    lines = ["", f"{_WORDS[status].lower()}:"]
    for remedy, group in groups.items():
        lines += [f"  {check.name}: {check.reason}" for check in group]
        lines += [f"    -> {remedy}"] if remedy else []
    return lines


def _row(check: Check) -> tuple[str, str, str, str, str]:
    return (
        check.name,
        _WORDS[check.status],
        _short(check.found or "?"),
        _short(check.required),
        _short(check.validated or ""),
    )


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
