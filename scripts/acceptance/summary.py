"""The record of an acceptance as a page for people."""

from __future__ import annotations

from typing import Any

from acceptance.state import Record


def table(profile: str, record: Record) -> str:
    """Markdown: the stages with times and reasons, then the cells of the sweep."""
    lines = [f"# Acceptance of {profile}", ""]
    host = record.outcomes.get("facts")
    if host is not None:
        lines += [f"- {name}: {_text(value)}" for name, value in host.facts.items()] + [""]
    rows = [
        (
            o.stage,
            o.state,
            f"{o.seconds:.0f}",
            o.reason.replace("|", "\\|").replace("\n", " ")[:400],
        )
        for o in record.outcomes.values()
    ]
    lines += _rows(("stage", "state", "seconds", "reason"), rows)
    judged = record.outcomes.get("judged")
    if judged is not None and judged.facts.get("cells"):
        cells = judged.facts["cells"]
        names = list(dict.fromkeys(name for cell in cells for name in cell))
        lines += ["", "## Cells", ""]
        lines += _rows(
            tuple(names), [tuple(_text(cell.get(n, "")) for n in names) for cell in cells]
        )
    sessions = ", ".join(f"{s['began']} ({s.get('seconds', '?')} s)" for s in record.sessions)
    return "\n".join([*lines, "", f"Sessions: {sessions}.", ""])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        return " ".join(f"{name} {_text(item)}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _rows(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
