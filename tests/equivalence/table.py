"""The table of ``docs/equivalence.md``: one row a wheel, between two marks in the page."""

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvreg.console import human_bytes
from tests.equivalence.comparison import ON_PURPOSE, Comparison
from tests.equivalence.makes import Make

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "equivalence.md"

_BEGIN = "<!-- table: python -m tests.equivalence -->"
_END = "<!-- end of table -->"
_HEAD = "| wheel | of what make | files | bytes | differences |\n|---|---|---|---|---|"
_ROW = re.compile(
    r"\| `(?P<wheel>[^`]+\.whl)` \| .+ \| (?P<files>[\d,]+|-) \| .+ \| (?P<found>.+) \|"
)


@dataclass(frozen=True)
class Row:
    """A wheel in the table."""

    make: Make
    comparison: Comparison

    def line(self) -> str:
        """The row as it is written."""
        found = self.comparison
        if found.refused is not None:
            cells = ("-", human_bytes(self.make.size), f"refused: {found.refused}")
        elif found.faults:
            cells = (f"{found.files:,}", human_bytes(found.bytes), f"FAULTS: {len(found.faults)}")
        else:
            kinds = [kind for kind in found.kinds if kind not in ("installer", "record")]
            cells = (f"{found.files:,}", human_bytes(found.bytes), ", ".join(kinds) or "none more")
        return f"| `{found.wheel}` | {'; '.join(self.make.words)} | {' | '.join(cells)} |"


def with_table(text: str, rows: Sequence[Row], pip: str) -> str:
    """The page with its table replaced."""
    before, _, rest = text.partition(_BEGIN)
    _, mark, after = rest.partition(_END)
    if not mark:
        raise ValueError(f"{DOCUMENT.name} lacks {_BEGIN} or {_END}")
    staged = [row for row in rows if row.comparison.refused is None]
    files = sum(row.comparison.files for row in staged)
    size = sum(row.comparison.bytes for row in staged)
    faults = sum(len(row.comparison.faults) for row in staged)
    summary = (
        f"{len(staged)} wheels, {files:,} files, {human_bytes(size)}, compared with pip {pip} under"
        f" CPython {platform.python_version()}: {faults} differences that are not meant."
    )
    lines = [_BEGIN, summary, "", _HEAD, *(row.line() for row in rows), "", meant(), _END]
    return before + "\n".join(lines) + after


def meant() -> str:
    """The list of differences that are meant."""
    return "\n".join(f"* **{kind}**: {text}" for kind, text in sorted(ON_PURPOSE.items()))


def read_rows(text: str) -> list[dict[str, str]]:
    """The rows of the table in a page: ``wheel``, ``files`` and ``found`` of each."""
    table = text.partition(_BEGIN)[2].partition(_END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    rows = [match.groupdict() for line in lines if (match := _ROW.fullmatch(line))]
    if len(rows) != len(lines):
        raise ValueError("a row of the table is malformed")
    return rows
