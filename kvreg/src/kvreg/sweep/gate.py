"""The compatibility gate: a server is loaded and asked once.

It is also what warms the compile cache, so it costs one start for each (model, TP, settings). What
does not pass stays on record: its cells end in the gate's state without a start of their own.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvreg.sweep.cells import Cell
from kvreg.sweep.engine import cell_environment
from kvreg.sweep.failures import Verdict
from kvreg.sweep.ledger import COMPATIBLE, FAILED
from kvreg.sweep.measurement import Measurement
from kvreg.sweep.reading import Setting
from kvreg.sweep.server import Server, ServerError, log_tail
from kvreg.sweep.session import GATES, Session

_TRIES = 2


@dataclass(frozen=True)
class Subject:
    """What passes the gate or does not; `workloads` are those with these `settings`."""

    model: str
    tp: int
    settings: Mapping[str, Setting]
    workloads: tuple[str, ...]


def subjects(session: Session) -> list[Subject]:
    """Everything that the plan needs the gate for, models with role ``gate`` included."""
    plan = session.plan
    found: dict[tuple[str, int, str], Subject] = {}
    for model in plan.models:
        for tp in plan.design.tensor_parallel:
            for load in plan.workloads:
                settings = plan.settings(model.name, load.name)
                key = (model.name, tp, repr(sorted(settings.items())))
                known = found.get(key)
                names = (*known.workloads, load.name) if known else (load.name,)
                found[key] = Subject(model.name, tp, settings, names)
    return list(found.values())


def subject_of(session: Session, cell: Cell) -> Subject:
    """What a cell needs to have passed."""
    settings = session.plan.settings(cell.model, cell.workload)
    return Subject(cell.model, cell.tp, settings, (cell.workload,))


def admit(session: Session, subject: Subject) -> Verdict | None:
    """Let a subject through the gate, now if need be; the verdict if it did not pass.

    One that has passed is through for good. If its cache is cold here, it is loaded again to warm
    it; a failure of that is recorded and left to the cells to show.
    """
    cache = session.cache(subject.model, subject.tp, subject.settings)
    events = _events(session, cache.key)
    passed = any(event["state"] == COMPATIBLE for event in events)
    if passed and cache.warm:
        return None
    bad = [event for event in events if event["state"] != COMPATIBLE]
    if passed:
        if sum(event["session"] == session.id for event in bad) < _TRIES:
            pass_gate(session, subject)
        return None
    # What failed for no known reason gets another chance; what is known does not change.
    if bad and (bad[-1]["state"] != FAILED or len(bad) >= _TRIES):
        return _blocked(bad[-1])
    event = pass_gate(session, subject)
    return None if event["state"] == COMPATIBLE else admit(session, subject)


def admitted(session: Session, cell: Cell) -> bool:
    """Whether a cell can begin at once: its subject has passed, and its cache is warm here."""
    subject = subject_of(session, cell)
    cache = session.cache(subject.model, subject.tp, subject.settings)
    passed = any(event["state"] == COMPATIBLE for event in _events(session, cache.key))
    return passed and cache.warm


def pass_gate(session: Session, subject: Subject) -> Mapping[str, Any]:
    """Load and ask once; the event that was recorded."""
    plan, limits = session.plan, session.plan.limits
    cache = session.cache(subject.model, subject.tp, subject.settings)
    attempt = len(_events(session, cache.key)) + 1
    folder = session.folder / GATES / cache.key / f"attempt-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    busy = session.devices.await_idle()
    verdict = busy_verdict(busy) if busy else _load(session, subject, folder, cache.variables())
    if verdict.state == COMPATIBLE:
        cache.mark_warm()
    session.devices.await_idle()
    samples = session.sampler.window(began)
    peak = max((sample.memory_mib for sample in samples), default=None)
    if peak is not None and peak > limits.memory_boundary_mib and verdict.state == COMPATIBLE:
        gpu = next(sample.gpu for sample in samples if sample.memory_mib == peak)
        verdict = session.devices.gated(gpu, peak)
    passed = verdict.state == COMPATIBLE
    return session.ledger.append(
        "gate",
        key=cache.key,
        model=subject.model,
        revision=plan.model(subject.model).revision,
        tp=subject.tp,
        workloads=list(subject.workloads),
        attempt=attempt,
        state=verdict.state,
        reason=verdict.reason or None,
        max_gpu_memory_mib=peak,
        seconds=time.monotonic() - began,
        log_tail=None if passed else log_tail(folder / "server.log"),
    )


def busy_verdict(busy: Mapping[int, float]) -> Verdict:
    """The verdict when GPUs do not come back to their idle level."""
    found = ", ".join(f"GPU {gpu} has {memory:.0f} MiB in use" for gpu, memory in busy.items())
    return Verdict(FAILED, f"the GPUs are not idle: {found}")


def _load(session: Session, subject: Subject, folder: Any, caches: Mapping[str, str]) -> Verdict:
    plan, limits, engine = session.plan, session.plan.limits, session.engine
    watch = session.devices.over_boundary
    try:
        server = Server.start(
            lambda port: engine.arguments(plan, subject.model, subject.tp, subject.settings, port),
            cell_environment(engine, plan, caches, None, 0),
            folder,
            start_s=limits.start_s,
            stop_s=limits.stop_s,
            watch=watch,
        )
    except ServerError as error:
        return error.verdict
    try:
        outcome = Measurement(plan, session.generator, server, watch).ask_once(subject.model)
    finally:
        server.stop()
    return Verdict(COMPATIBLE, "") if outcome.measured else outcome.verdict


def _events(session: Session, key: str) -> list[Mapping[str, Any]]:
    return [
        event for event in session.ledger.events if event["event"] == "gate" and event["key"] == key
    ]


def _blocked(event: Mapping[str, Any]) -> Verdict:
    return Verdict(event["state"], f"the compatibility gate was not passed: {event['reason']}")
