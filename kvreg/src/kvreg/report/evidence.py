"""What a report is drawn from: an analysis, communication fits, and the raw files behind both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.errors import ContractError
from kvreg.model.digest import sha256_file

Data = Mapping[str, Any]


@dataclass(frozen=True)
class RawFile:
    """A file that numbers come from: its path as the report names it, size in bytes, digest."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Evidence:
    """Everything that a report may say.

    `analysis` is an `Analysis.to_dict`, `cells` the canonical cell table as CSV, `communication`
    are results of `kvreg.nccl.fit.analyse` by file name, `facts` the host's facts and `cost` a
    `kvreg.report.cost.cost_of` where they are known, `boundary_mib` the memory boundary per GPU.
    """

    title: str
    analysis: Data
    cells: str
    communication: tuple[tuple[str, Data], ...] = ()
    facts: Data | None = None
    cost: Data | None = None
    boundary_mib: float | None = None
    simulated: bool = False
    raw_files: tuple[RawFile, ...] = ()

    @property
    def pairs(self) -> Sequence[Data]:
        """The compared TP degrees."""
        return self.analysis["pairs"]

    def workloads(self) -> list[str]:
        """Workloads from the smallest token shape to the largest."""
        shapes = self.analysis["design"]["workloads"]
        order = {
            name: (shape["input_tokens"] or 0, shape["output_tokens"], name)
            for name, shape in shapes.items()
        }
        return sorted(order, key=order.__getitem__)


def gather(
    source: Path,
    *,
    communication: Sequence[Path] = (),
    title: str | None = None,
    simulated: bool = False,
    boundary_mib: float | None = None,
) -> Evidence:
    """Read a sweep directory or a bare cell table, and communication measurements.

    `simulated` and `boundary_mib` add to what the source says of itself. Raises what the readers
    raise (`NotFoundError`, `ContractError`, `VerificationError`).
    """
    from kvreg.analysis import analyze
    from kvreg.analysis.table import cells_csv, read_evidence
    from kvreg.nccl.fit import analyse
    from kvreg.nccl.record import read_record
    from kvreg.report.cost import cost_of

    table = read_evidence(source)
    analysis = analyze(table).to_dict()
    recorded = _json(source / "identity.json") if source.is_dir() else {}
    records = [(path, read_record(path)) for path in communication]
    boundary = boundary_mib or analysis["identity"].get("memory_boundary_mib")
    return Evidence(
        title=title or str(analysis["identity"].get("name") or source.stem),
        analysis=analysis,
        cells=cells_csv(table.rows),
        communication=tuple((path.name, analyse(record)) for path, record in records),
        facts=_json(source / "facts.json") or None if source.is_dir() else None,
        cost=cost_of(source) if source.is_dir() else None,
        boundary_mib=boundary,
        simulated=simulated
        or _says_simulated(recorded)
        or any(record.simulated for _, record in records),
        raw_files=(*_raw_files(source), *(_raw_file(path, path.name) for path in communication)),
    )


def _says_simulated(identity: Data) -> bool:
    """Whether a sweep's identity, or the version of its engine, calls itself simulated."""
    version = (identity.get("engine") or {}).get("version")
    return bool(identity.get("simulated")) or str(version or "").startswith("simulated")


def _raw_files(source: Path) -> list[RawFile]:
    if not source.is_dir():
        return [_raw_file(source, source.name)]
    paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
    return [_raw_file(path, path.relative_to(source).as_posix()) for path in paths]


def _raw_file(path: Path, name: str) -> RawFile:
    return RawFile(name, path.stat().st_size, sha256_file(path))


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ContractError(f"{path} is not JSON", found=str(error)) from None
    if not isinstance(data, dict):
        raise ContractError(f"{path} is not a JSON object")
    return data
