"""Stages checked wheels as ``pip install --target --no-deps --no-compile`` does.

Differences from pip, all on purpose: every byte is compared with RECORD; ``INSTALLER`` says kvreg;
RECORD names files by where they lie in the directory (pip's names of scripts and data point out of
it); scripts are executable whether or not the archive marks them so; a file under ``lib`` of a
wheel's data directory, which pip loses, is kept; two wheels that bring different files of one name
are refused instead of one winning.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvreg.cores import usable_cores
from kvreg.errors import Problem, VerificationError
from kvreg.wheel.inflate import Inflate, fastest
from kvreg.wheel.plan import Placement, WheelPlan
from kvreg.wheel.record import RecordRow, write_record
from kvreg.wheel.reuse import EarlierFiles
from kvreg.wheel.unpacking import Batch, Result, Target, Unpacker, batches


@dataclass(frozen=True)
class Staged:
    """What one wheel became: its RECORD, and the size in bytes of every file by path."""

    record: str
    record_sha256: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Unpacked:
    """How the wheels of a runtime were unpacked; `reused` counts bytes taken from earlier ones."""

    staged: tuple[Staged, ...]
    inflate: Inflate
    workers: int
    reused: int


def stage(plan: WheelPlan, site: Path, interpreter: str) -> Staged:
    """Write one planned wheel into `site`; see `stage_all`."""
    return stage_all([(plan, site)], interpreter).staged[0]


def stage_all(
    plans: Sequence[tuple[WheelPlan, Path]],
    interpreter: str,
    *,
    progress: Callable[[int], object] = lambda count: None,
    earlier: EarlierFiles | None = None,
    inflate: Inflate | None = None,
    workers: int | None = None,
) -> Unpacked:
    """Write the planned wheels of a runtime, each into its directory, in parallel.

    `progress` gets counts of unpacked bytes, from any thread, one call at a time. Raises
    `VerificationError` naming every member whose bytes differ from RECORD, and `OSError`; the
    caller throws the directories away then.
    """
    inflate, workers = inflate or fastest(), workers or usable_cores()
    target = Target(interpreter, _umask(), inflate, earlier or EarlierFiles())
    for plan, site in plans:
        _make_folders(site, plan.paths())
    # A file that several wheels bring is the same in all of them, see `check_together`.
    seen: set[str] = set()
    work: list[Batch] = []
    for plan, site in plans:
        own = [item for item in plan.placements if f"{site}/{item.path}" not in seen]
        seen.update(f"{site}/{item.path}" for item in own)
        work += batches(plan, str(site), own)
    unpacker = Unpacker(work, target, progress)
    results = unpacker.run(min(workers, len(work)))
    staged = []
    for plan, site in plans:
        rows = _rows(plan, (_result(plan, item, results) for item in plan.placements))
        staged.append(_finish(plan, site, target, rows))
    return Unpacked(tuple(staged), inflate, workers, unpacker.reused)


def _make_folders(site: Path, paths: Iterable[str]) -> None:
    folders: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    # A folder comes before what is in it; an earlier wheel of the runtime may have made it.
    for folder in sorted(folders):
        with suppress(FileExistsError):
            os.mkdir(f"{site}/{folder}")  # noqa: PTH102


def _result(
    plan: WheelPlan, placement: Placement, results: Mapping[tuple[int, str], Result]
) -> Result:
    found = results.get((id(plan), placement.path))
    # What another wheel brought has that wheel's result; here it is as RECORD says.
    return found or placement.member.row._replace(path=placement.path, size=placement.member.size)


def _rows(plan: WheelPlan, results: Iterable[Result]) -> list[RecordRow]:
    rows, problems = [], []
    for result in results:
        if isinstance(result, Problem):
            problems.append(result)
        else:
            rows.append(result)
    if problems:
        raise VerificationError(
            f"the wheel {plan.archive.name.filename} does not match its RECORD",
            problems=sorted(problems, key=lambda problem: problem.where),
            remedy="do not use this wheel; build and publish it again",
        )
    return rows


def _finish(plan: WheelPlan, site: Path, target: Target, rows: list[RecordRow]) -> Staged:
    """Write the files that staging adds, RECORD last."""
    for entry in plan.entry_points:
        path = f"bin/{entry.name}"
        rows.append(_write(site, path, entry.source(target.interpreter)))
        (site / path).chmod((0o777 & ~target.mask) | 0o111)
    rows += [_write(site, path, data) for path, data in plan.generated().items()]
    own_row = RecordRow(plan.archive.record_name, None, None, None)
    record = write_record([*rows, own_row])
    _write(site, own_row.path, record)
    sizes = {row.path: row.size or 0 for row in rows} | {own_row.path: len(record)}
    return Staged(own_row.path, hashlib.sha256(record).hexdigest(), sizes)


def _write(site: Path, path: str, data: bytes) -> RecordRow:
    (site / path).write_bytes(data)
    return RecordRow(path, "sha256", hashlib.sha256(data).digest(), len(data))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
