"""Running cells: a fresh server each (or one for several where the plan says so), one by one.

A bad cell never stops the sweep: whatever happens to its server or its requests ends in a terminal
state with a reason, and the next cell begins. Only what makes every cell impossible (a full disk,
a sampler that died, Ctrl-C) ends the session; it goes on with the next one.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.console import note
from kvreg.model.digest import sha256_file
from kvreg.sweep.cells import Cell, servers_of
from kvreg.sweep.engine import cell_environment
from kvreg.sweep.gate import admit, busy_verdict, subject_of
from kvreg.sweep.ledger import FAILED, Result
from kvreg.sweep.measurement import LOAD_FILE, Measurement, Outcome, Timing
from kvreg.sweep.pilot import Chosen
from kvreg.sweep.sampling import Sample, peak_memory, sample_table
from kvreg.sweep.server import Server, ServerError, log_tail
from kvreg.sweep.session import CELLS, Session, write_file

SAMPLES_FILE = "samples.csv"
LOG_FILE = "server.log"


@dataclass
class _Attempt:
    """A cell under way. Samples count from `sampled` on, when the GPUs were idle; `log` is that
    of a server that other cells have used before, up to `log_start`."""

    cell: Cell
    number: int
    folder: Path
    timing: Timing = field(default_factory=Timing)
    sampled: float = field(default_factory=time.monotonic)
    requests: int | None = None
    log: Path | None = None
    log_start: int = 0


class LocalSession(Session):
    """A session whose servers run on this machine."""

    def run(
        self,
        cells: Sequence[Cell],
        done: Callable[[Cell, Result], object],
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        """See `run_cells`."""
        if not self.sampler.sees:
            note("no GPU is sampled: memory is unknown and the boundary is not enforced")
        run_cells(self, cells, done, more)


def run_cells(
    session: Session,
    cells: Sequence[Cell],
    done: Callable[[Cell, Result], object],
    more: Callable[[], bool] = lambda: True,
) -> None:
    """Run `cells` in order; `done` gets every result. `more` is asked before each server."""
    for group in list(servers_of(cells)):
        left = list(group)
        while left:
            if not more():
                return
            for result in _run_server(session, left):
                cell = left.pop(0)
                done(cell, result)


def _run_server(session: Session, cells: Sequence[Cell]) -> list[Result]:
    """Run the first of `cells`, and the others as long as their common server lives.

    At least one result comes back; the cells that have none yet need another server.
    """
    first = cells[0]
    blocked = admit(session, subject_of(session, first))
    if blocked is not None:
        return [_finish(session, _begin(session, cell), Outcome(blocked)) for cell in cells]
    attempt = _begin(session, first)
    if session.devices.busy() and (busy := session.devices.await_idle()):
        return [_finish(session, attempt, Outcome(busy_verdict(busy)))]
    attempt.sampled = time.monotonic()
    try:
        with attempt.timing.part("start_s"):
            server = _start(session, attempt)
    except ServerError as error:
        session.devices.await_idle()
        return [_retry(session, attempt, Outcome(error.verdict))]
    results: list[Result] = []
    measuring = Measurement(session.plan, session.generator, server, session.devices.over_boundary)
    try:
        for index, cell in enumerate(cells):
            if index:
                attempt = _begin(session, cell)
                attempt.log, attempt.log_start = server.log, server.log.stat().st_size
            outcome = _measure(session, measuring, attempt)
            last = index + 1 == len(cells) or not outcome.measured
            if last:
                with attempt.timing.part("stop_s"):
                    server.stop()
                session.devices.await_idle()
            results.append(_retry(session, attempt, outcome))
            if last:
                break
    finally:
        server.stop()
    return results


def _retry(session: Session, attempt: _Attempt, outcome: Outcome) -> Result:
    """Finish an attempt; a failed one is tried again while the plan allows it."""
    mine = [
        event
        for event in session.ledger.events
        if event["event"] == "finished"
        and event["cell"] == attempt.cell.id
        and event["session"] == session.id
    ]
    again = len(mine) + 1 < session.plan.limits.attempts
    result = _finish(session, attempt, outcome, again=again)
    return _run_server(session, [attempt.cell])[0] if result.event.get("again") else result


def _begin(session: Session, cell: Cell) -> _Attempt:
    number = session.ledger.read().attempts.get(cell.id, 0) + 1
    folder = session.folder / CELLS / cell.id / f"attempt-{number}"
    # A folder of this number can be there when its "started" was torn off the ledger.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subject = subject_of(session, cell)
    cache = session.cache(subject.model, subject.tp, subject.settings)
    attempt = _Attempt(cell, number, folder)
    session.ledger.append(
        "started", cell=cell.id, attempt=number, plan=session.plan.digest, cache=cache.to_dict()
    )
    return attempt


def _start(session: Session, attempt: _Attempt) -> Server:
    plan, engine, cell = session.plan, session.engine, attempt.cell
    settings = plan.settings(cell.model, cell.workload)
    cache = session.cache(cell.model, cell.tp, settings)
    return Server.start(
        lambda port: engine.arguments(plan, cell.model, cell.tp, settings, port),
        cell_environment(engine, plan, cache.variables(), cell, attempt.number),
        attempt.folder,
        start_s=plan.limits.start_s,
        stop_s=plan.limits.stop_s,
        watch=session.devices.over_boundary,
    )


def _measure(session: Session, measuring: Measurement, attempt: _Attempt) -> Outcome:
    cell = attempt.cell
    with attempt.timing.part("warmup_s"):
        failed = measuring.warm_up(cell)
        if failed is not None:
            return failed
        chosen = _requests(session, measuring, cell)
    if isinstance(chosen, Outcome):
        return chosen
    attempt.requests = chosen
    with attempt.timing.part("measure_s"):
        return measuring.measure(cell, chosen, attempt.folder)


def _requests(session: Session, measuring: Measurement, cell: Cell) -> int | Outcome:
    known = session.ledger.read().pilots.get(cell.group)
    if known is not None:
        return int(known["requests"])
    chosen = measuring.pilot(cell)
    if isinstance(chosen, Chosen):
        session.ledger.append("pilot", group=list(cell.group), cell=cell.id, **chosen.to_dict())
        return chosen.requests
    return chosen


def _finish(
    session: Session, attempt: _Attempt, outcome: Outcome, *, again: bool = False
) -> Result:
    """Write what was seen, then the ledger's line: the cell counts only from then on."""
    samples = session.sampler.window(attempt.sampled)
    if samples:
        table = sample_table(samples, attempt.sampled)
        write_file(attempt.folder / SAMPLES_FILE, table.encode())
    if attempt.log is not None:
        _copy_log(attempt.log, attempt.log_start, attempt.folder / LOG_FILE)
    verdict = outcome.verdict
    peak = peak_memory(samples)
    if outcome.measured and peak is not None:
        limit = session.plan.limits.memory_boundary_mib
        if peak > limit:
            # It went by between two looks at the latest sample.
            gpu = next(sample.gpu for sample in samples if sample.memory_mib == peak)
            verdict = session.devices.gated(gpu, peak)
    measured = outcome.measured and verdict is outcome.verdict
    metrics = {**(outcome.metrics if measured else {}), **_device_metrics(samples)}
    # Said in the record, so that whoever follows the ledger knows that another attempt comes.
    extra = {"again": True} if again and verdict.state == FAILED else {}
    event = session.ledger.append(
        "finished",
        **extra,
        cell=attempt.cell.id,
        attempt=attempt.number,
        state=verdict.state,
        reason=verdict.reason or None,
        metrics=metrics,
        requests=attempt.requests,
        evidence=_evidence(attempt.folder),
        log_tail=None if measured else log_tail(attempt.folder / LOG_FILE),
        timing=attempt.timing.to_dict(),
    )
    return session.ledger.result(event)


def _device_metrics(samples: Sequence[Sample]) -> dict[str, Any]:
    """Memory of the GPU that had most of it; power and utilisation summed and averaged over all."""
    result: dict[str, Any] = {"max_gpu_memory_mib": peak_memory(samples)}
    gpus = sorted({sample.gpu for sample in samples})
    for gpu in gpus:
        mine = [sample for sample in samples if sample.gpu == gpu]
        result[f"gpu{gpu}_max_memory_mib"] = peak_memory(mine)
        for name in ("utilization", "power_w", "sm_clock_mhz"):
            values = [value for sample in mine if (value := getattr(sample, name)) is not None]
            if values:
                result[f"gpu{gpu}_mean_{name}"] = sum(values) / len(values)
    return result


def _evidence(folder: Path) -> dict[str, str]:
    names = (LOAD_FILE, SAMPLES_FILE, LOG_FILE)
    return {name: sha256_file(folder / name) for name in names if (folder / name).is_file()}


def _copy_log(source: Path, start: int, target: Path) -> None:
    """The part of a common server's log that was written during one cell."""
    with source.open("rb") as log, target.open("wb") as copy:
        log.seek(start)
        shutil.copyfileobj(log, copy)
