"""One cell in a healthy server: warm-up, pilot when it is the first of its group, measurement."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.sweep.cells import Cell
from kvreg.sweep.engine import HOST
from kvreg.sweep.failures import Verdict
from kvreg.sweep.generator import Generator
from kvreg.sweep.job import Answer, Job
from kvreg.sweep.ledger import FAILED, MEASURED
from kvreg.sweep.pilot import Chosen, choose_requests, without_pilot
from kvreg.sweep.plan import Plan
from kvreg.sweep.server import Server

LOAD_FILE = "load.json"
_ENDING_S = 3.0


@dataclass
class Timing:
    """Seconds of the parts of a cell; what none of them took is `other_s`."""

    began: float = field(default_factory=time.monotonic)
    parts: dict[str, float] = field(
        default_factory=lambda: {"start_s": 0.0, "warmup_s": 0.0, "measure_s": 0.0, "stop_s": 0.0}
    )

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside towards a part, also when it fails."""
        since = time.monotonic()
        try:
            yield
        finally:
            self.parts[name] += time.monotonic() - since

    def to_dict(self) -> dict[str, float]:
        """The parts and the rest until now."""
        rest = time.monotonic() - self.began - sum(self.parts.values())
        return {**self.parts, "other_s": max(rest, 0.0)}


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: state and reason, and the load generator's metrics if it was measured."""

    verdict: Verdict
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether there are metrics."""
        return self.verdict.state == MEASURED


class Measurement:
    """Sends the requests of cells to a server; `watch` says when to give up."""

    def __init__(
        self, plan: Plan, generator: Generator, server: Server, watch: Callable[[], Verdict | None]
    ) -> None:
        self.plan = plan
        self.generator = generator
        self.server = server
        self.watch = watch

    def ask_once(self, model: str) -> Outcome:
        """One short generation: what the compatibility gate asks for."""
        load = min(
            (load for load in self.plan.workloads if load.input_tokens),
            key=lambda load: load.input_tokens or 0,
            default=None,
        )
        job = Job(
            host=HOST,
            port=self.server.port,
            model=model,
            requests=1,
            concurrency=1,
            input_tokens=min(load.input_tokens or 1, 32) if load else 8,
            output_tokens=8,
            token_ids=self.plan.requests.token_ids,
            seed=f"{self.plan.design.seed}\x1fgate\x1f{model}",
            stall_s=self.plan.limits.stall_s,
            limit_s=self.plan.limits.measure_s,
        )
        return self._outcome(job)

    def warm_up(self, cell: Cell) -> Outcome | None:
        """Waves of requests that nobody measures; an `Outcome` only if they fail."""
        waves = self.plan.requests.warmup_waves
        if waves == 0:
            return None
        outcome = self._outcome(self._job(cell, "warm-up", waves * cell.concurrency))
        return None if outcome.measured else outcome

    def pilot(self, cell: Cell) -> Chosen | Outcome:
        """How many requests the cells of this group send."""
        rules = self.plan.requests
        if rules.pilot_waves == 0:
            return Chosen(without_pilot(rules, cell.concurrency), 0.0, 0.0, 0.0, "min_waves")
        job = self._job(cell, "pilot", rules.pilot_waves * cell.concurrency)
        answer = self.generator.run(job, self._given_up)
        outcome = self._read(answer)
        if not outcome.measured:
            return outcome
        assert isinstance(answer, Answer)
        return choose_requests(
            rules, cell.concurrency, answer.latencies, answer.metrics["duration_s"]
        )

    def measure(self, cell: Cell, requests: int, folder: Path) -> Outcome:
        """The measurement itself, with ``load.json`` in `folder`."""
        return self._outcome(self._job(cell, "measure", requests, str(folder / LOAD_FILE)))

    def _job(self, cell: Cell, phase: str, requests: int, output: str | None = None) -> Job:
        plan, load = self.plan, self.plan.workload(cell.workload)
        name = (plan.design.seed, cell.model, cell.workload, cell.concurrency, cell.repetition)
        return Job(
            host=HOST,
            port=self.server.port,
            model=cell.model,
            requests=requests,
            concurrency=cell.concurrency,
            input_tokens=cell.input_tokens,
            output_tokens=cell.output_tokens,
            token_ids=plan.requests.token_ids,
            # Without the parallel degree: all arms of a repetition get the same prompts.
            seed="\x1f".join(map(str, (*name, phase))),
            texts=tuple(prompt.text for prompt in load.prompts),
            stall_s=plan.limits.stall_s,
            limit_s=plan.limits.measure_s,
            output=output,
        )

    def _outcome(self, job: Job) -> Outcome:
        return self._read(self.generator.run(job, self._given_up))

    def _given_up(self) -> Verdict | None:
        return self.watch() or self.server.ended()

    def _read(self, answer: Answer | Verdict) -> Outcome:
        if isinstance(answer, Verdict):
            return Outcome(answer)
        if answer.error is None:
            return Outcome(Verdict(MEASURED, ""), dict(answer.metrics))
        kind, what = answer.error["kind"], answer.error["what"]
        if kind in ("lost", "refused"):
            # A connection breaks a moment before its process is seen to be gone.
            end = time.monotonic() + _ENDING_S
            while (ended := self.server.ended()) is None and time.monotonic() < end:
                time.sleep(0.02)
            return Outcome(ended or self.server.because(what))
        if kind in ("stalled", "too-long"):
            return Outcome(self.server.because(f"the server hangs: {what}"))
        return Outcome(Verdict(FAILED, what))
