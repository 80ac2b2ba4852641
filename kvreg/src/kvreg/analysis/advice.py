"""Which TP degree for a model, token shape and concurrency: from measured evidence, or no answer.

Capacity and performance are different reasons and are said apart:

* *capacity*: the smaller degree passed the resource boundary here and the larger one did not;
* *performance*: both fit, and the metric that was asked for is better by the paired interval. The
  higher degree needs it to be sustained (here and at every larger tested concurrency, up to the
  top of the grid or to the gate), so that no single noisy point gives an answer;
* *both*: a smaller degree does not fit here, and the advised one also wins: against another that
  fits, or at the highest concurrency below that it and the smaller one could both run.

Nothing is extrapolated: another token shape, or a concurrency outside the tested grid, is no
evidence. Between two tested concurrencies the answer is that of both if they agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from kvreg.analysis.crossover import FAVOURABLE, GATED, UNFAVOURABLE
from kvreg.analysis.metrics import METRICS, PRIMARY
from kvreg.analysis.points import Point
from kvreg.analysis.study import analyze
from kvreg.analysis.table import GATED as GATED_STATE
from kvreg.analysis.table import MEASURED, CellRow, CellTable
from kvreg.errors import NotFoundError

CAPACITY, PERFORMANCE, BOTH = "capacity", "performance", "both"


@dataclass(frozen=True)
class Question:
    """What is to be served, and which metric decides."""

    model: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    metric: str = PRIMARY

    def to_dict(self) -> dict[str, Any]:
        """The question as JSON-ready data."""
        return dict(vars(self))


@dataclass(frozen=True)
class Duel:
    """Two degrees that both fit at one concurrency: who won, and the verdict of every metric on
    the candidate. `gate` is the first gated concurrency above, if there is one."""

    baseline: int
    candidate: int
    winner: int | None
    words: str
    verdicts: Mapping[str, str]
    gate: int | None

    def to_dict(self) -> dict[str, Any]:
        """The duel as JSON-ready data."""
        return {
            "baseline_tp": self.baseline,
            "candidate_tp": self.candidate,
            "winner": self.winner,
            "verdicts": dict(self.verdicts),
            "gated_from": self.gate,
        }


@dataclass(frozen=True)
class Finding:
    """The answer at one tested concurrency: a degree and why, or None with the reasons."""

    concurrency: int
    tp: int | None
    because: str | None
    reasons: tuple[str, ...]
    duels: tuple[Duel, ...]

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-ready data."""
        return {
            "concurrency": self.concurrency,
            "tp": self.tp,
            "because": self.because,
            "reasons": list(self.reasons),
            "comparisons": [duel.to_dict() for duel in self.duels],
        }


@dataclass(frozen=True)
class Advice:
    """`tp` is the advised degree, None where the evidence is inconclusive."""

    question: Question
    tp: int | None
    because: str | None
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    workload: str | None
    identity: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data.

        ::

            question  {"model", "input_tokens", "output_tokens", "concurrency", "metric"}
            answer    "TP1", "TP2", .. or "inconclusive"
            tp        the degree, or null
            because   "capacity" | "performance" | "both" | null
            reasons   [words]
            workload  name of the token shape in the evidence, or null
            findings  one per tested concurrency that bears on the question (the one that was asked
                      for, or its two neighbours): {"concurrency", "tp", "because", "reasons",
                      "comparisons": [{"baseline_tp", "candidate_tp", "winner": degree | null,
                                       "verdicts": {metric: of the candidate}, "gated_from"}]}
            evidence  the identity of the evidence: digests, see `Analysis.to_dict`
        """
        return {
            "schema": 1,
            "kind": "kvreg-advice",
            "question": self.question.to_dict(),
            "answer": "inconclusive" if self.tp is None else f"TP{self.tp}",
            "tp": self.tp,
            "because": self.because,
            "reasons": list(self.reasons),
            "workload": self.workload,
            "findings": [finding.to_dict() for finding in self.findings],
            "evidence": dict(self.identity),
        }


def advise(question: Question, table: CellTable) -> Advice:
    """Answer `question` from the rows of `table`.

    Raises `NotFoundError` when the evidence has nothing about the model.
    """
    mine = [row for row in table if row.model == question.model]
    if not mine:
        raise NotFoundError(
            f"the evidence has no cell of {question.model}",
            expected=", ".join(sorted({row.model for row in table})),
        )
    shape = (question.input_tokens, question.output_tokens)
    rows = [row for row in mine if (row.input_tokens, row.output_tokens) == shape]
    if not rows:
        tested = sorted({f"{row.input_tokens}+{row.output_tokens}" for row in mine})
        reason = f"token shape {shape[0]}+{shape[1]} was not tested; tested: {', '.join(tested)}"
        return _unanswered(question, table, None, reason)
    workload = rows[0].workload
    rows = [row for row in rows if row.workload == workload]
    if table.label is not None:
        return _unanswered(question, table, workload, f"the evidence is {table.label}")
    if pending := table.pending.get((question.model, workload)):
        reason = f"the sweep is unfinished: {pending} planned cells of {workload} have no result"
        return _unanswered(question, table, workload, reason)
    grid = sorted({row.concurrency for row in rows})
    near = _neighbours(grid, question.concurrency)
    if not near:
        reason = (
            f"concurrency {question.concurrency} lies outside the tested {grid[0]} to {grid[-1]}"
        )
        return _unanswered(question, table, workload, reason)
    findings = tuple(_finding(rows, concurrency, question.metric) for concurrency in near)
    return _agreed(question, table, workload, findings)


def _unanswered(question: Question, table: CellTable, workload: str | None, reason: str) -> Advice:
    return Advice(question, None, None, (reason,), (), workload, table.identity)


def _neighbours(grid: Sequence[int], concurrency: int) -> list[int]:
    """The tested concurrency itself, or the two around it, or none."""
    if concurrency in grid:
        return [concurrency]
    below = [c for c in grid if c < concurrency]
    above = [c for c in grid if c > concurrency]
    return [below[-1], above[0]] if below and above else []


def _agreed(
    question: Question, table: CellTable, workload: str, findings: tuple[Finding, ...]
) -> Advice:
    degrees = {finding.tp for finding in findings}
    causes = {finding.because for finding in findings}
    reasons = [
        f"C={finding.concurrency}: {reason}" for finding in findings for reason in finding.reasons
    ]
    if len(findings) > 1:
        asked = f"concurrency {question.concurrency} was not tested; its neighbours "
        agree = len(degrees) == 1 and len(causes) == 1 and None not in degrees
        reasons.insert(0, asked + ("agree" if agree else "do not agree on one answer"))
        if not agree:
            return Advice(question, None, None, tuple(reasons), findings, workload, table.identity)
    (first, *_) = findings
    return Advice(
        question, first.tp, first.because, tuple(reasons), findings, workload, table.identity
    )


def _finding(rows: Sequence[CellRow], concurrency: int, metric: str) -> Finding:
    """The degree that fits and beats every other one that fits, at one tested concurrency."""
    here = [row for row in rows if row.concurrency == concurrency]
    degrees = sorted({row.tp for row in here})
    gated = [tp for tp in degrees if _any(here, tp, GATED_STATE)]
    fits = [tp for tp in degrees if tp not in gated and _any(here, tp, MEASURED)]
    reasons = [_boundary(here, tp) for tp in gated]
    reasons += [_absent(here, tp) for tp in degrees if tp not in gated and tp not in fits]
    duels = [_duel(rows, a, b, concurrency, metric) for a, b in combinations(fits, 2)]
    reasons += [duel.words for duel in duels]
    best = next((tp for tp in fits if _beats_all(tp, fits, duels)), None)
    because = None
    if best is None:
        if not fits:
            reasons.append("no tested degree was measured here")
    elif len(fits) == 1 and not gated:
        reasons.append(f"TP{best} alone was measured here: there is nothing to compare it with")
        best = None
    else:
        because = _cause(rows, best, fits, gated, concurrency, metric, reasons)
    return Finding(concurrency, best, because, tuple(reasons), tuple(duels))


def _cause(
    rows: Sequence[CellRow],
    best: int,
    fits: Sequence[int],
    gated: Sequence[int],
    concurrency: int,
    metric: str,
    reasons: list[str],
) -> str:
    smaller = [tp for tp in gated if tp < best]
    if len(fits) > 1:
        return BOTH if smaller else PERFORMANCE
    reasons.append(f"TP{best} is the only tested degree that fits")
    if smaller and _better_below(rows, smaller[-1], best, concurrency, metric):
        reasons.append(
            f"at the highest concurrency that TP{smaller[-1]} could run, TP{best} was favourable "
            f"in {METRICS[metric].label}"
        )
        return BOTH
    return CAPACITY


def _beats_all(tp: int, fits: Sequence[int], duels: Sequence["Duel"]) -> bool:
    return (
        all(duel.winner == tp for duel in duels if tp in (duel.baseline, duel.candidate))
        and tp in fits
    )


def _duel(
    rows: Sequence[CellRow], baseline: int, candidate: int, concurrency: int, metric: str
) -> Duel:
    arms = [row for row in rows if row.tp in (baseline, candidate)]
    points = {point.concurrency: point for _, point in analyze(arms).points}
    sustained, gate = True, None
    for larger in sorted(c for c in points if c >= concurrency):
        says = points[larger].judgements[metric].verdict
        if says == GATED:
            gate = larger
            break
        sustained = sustained and says == FAVOURABLE
    verdicts = {name: found.verdict for name, found in points[concurrency].judgements.items()}
    winner = None
    if verdicts[metric] == FAVOURABLE and sustained:
        winner = candidate
    elif verdicts[metric] == UNFAVOURABLE:
        winner = baseline
    words = _in_words(points[concurrency], metric, baseline, candidate, sustained, gate)
    return Duel(baseline, candidate, winner, words, verdicts, gate)


def _any(rows: Iterable[CellRow], tp: int, state: str) -> bool:
    return any(row.tp == tp and row.state == state for row in rows)


def _absent(here: Sequence[CellRow], tp: int) -> str:
    states = [row.state for row in here if row.tp == tp]
    return f"TP{tp} is {' and '.join(sorted(set(states)))} in all of {len(states)} repetitions"


def _boundary(here: Sequence[CellRow], tp: int) -> str:
    cells = [row for row in here if row.tp == tp]
    gated = [row for row in cells if row.state == GATED_STATE]
    peaks = [row.max_gpu_memory_mib for row in gated if row.max_gpu_memory_mib is not None]
    mean = f", at {sum(peaks) / len(peaks):.0f} MiB on average" if peaks else ""
    return f"TP{tp} passed the resource boundary in {len(gated)} of {len(cells)} repetitions{mean}"


def _in_words(
    point: Point, metric: str, baseline: int, candidate: int, sustained: bool, gate: int | None
) -> str:
    found = point.judgements[metric]
    about = METRICS[metric]
    if found.estimate is None or found.estimate.low is None or found.estimate.high is None:
        return f"TP{candidate} against TP{baseline}: {found.reason}"
    text = (
        f"TP{candidate} against TP{baseline}: {about.label} differs by {found.estimate.mean:+.4g} "
        f"{about.unit} [{found.estimate.low:.4g}, {found.estimate.high:.4g}] over "
        f"{found.estimate.n} pairs: {found.verdict}"
    )
    if found.verdict == FAVOURABLE:
        until = f" up to the gate at {gate}" if gate is not None else " to the top of the grid"
        text += f", sustained{until}" if sustained else ", but not sustained above"
    return text


def _better_below(
    rows: Sequence[CellRow], smaller: int, larger: int, concurrency: int, metric: str
) -> bool:
    """Whether the larger degree won at the highest concurrency below that both could run."""
    arms = [row for row in rows if row.tp in (smaller, larger) and row.concurrency < concurrency]
    if {row.tp for row in arms} != {smaller, larger}:
        return False
    says = [p.judgements[metric].verdict for _, p in analyze(arms).points]
    comparable = [verdict for verdict in says if verdict != GATED]
    return bool(comparable) and comparable[-1] == FAVOURABLE


def advice_text(data: Mapping[str, Any]) -> str:
    """The text of `Advice.to_dict`."""
    question = data["question"]
    because = f" for {data['because']}" if data["because"] else ""
    if data["because"] == BOTH:
        because = " for capacity and performance"
    lines = [
        f"{data['answer']}{because}: {question['model']}, {question['input_tokens']} + "
        f"{question['output_tokens']} tokens, concurrency {question['concurrency']}"
    ]
    lines += [f"  {reason}" for reason in data["reasons"]]
    for finding in data["findings"]:
        lines += [
            _others(finding["concurrency"], duel, question["metric"])
            for duel in finding["comparisons"]
        ]
    lines += [
        f"evidence {name}: {data['evidence'][name]}"
        for name in ("cells", "plan", "artifact", "facts", "ledger")
        if data["evidence"].get(name)
    ]
    return "\n".join(lines)


def _others(concurrency: int, duel: Mapping[str, Any], metric: str) -> str:
    says = [
        f"{METRICS[name].label} {verdict}"
        for name, verdict in duel["verdicts"].items()
        if name != metric
    ]
    return (
        f"  C={concurrency}, TP{duel['candidate_tp']} against TP{duel['baseline_tp']}, each for "
        f"itself: {', '.join(says)}"
    )
