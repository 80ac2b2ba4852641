"""What a study found, and its public form as data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvreg.analysis.crossover import Crossover
from kvreg.analysis.metrics import PRIMARY, Metric
from kvreg.analysis.points import Arm, Point, Subject
from kvreg.analysis.statistics import POWER, Prior, detectable_effect

RULE = {
    "name": "first sustained favourable concurrency",
    "sustained": (
        "the smallest tested concurrency whose paired interval (candidate minus baseline, over "
        "matched repetitions) lies on the better side of zero, there and at every larger tested one"
    ),
    "gated": (
        "a concurrency with any gated repetition of either arm is gated: it ends a sustained run "
        "below it, and at the top of the grid the result is RESOURCE_GATED@ that concurrency"
    ),
    "missing": (
        "a repetition that is not measured in both arms is left out of the pairs and named, never "
        "imputed; fewer than two pairs are inconclusive (not estimable)"
    ),
    "incomplete": (
        "planned cells without a result leave their model and token shape without a verdict: "
        "stopping when an interval looks right would be choosing the result"
    ),
    "replication": "a repetition is a fresh server in each arm; requests are not replications",
}
"""What every result of this module means, in words; it travels with the result."""

INCOMPLETE = "incomplete"
"""In place of an answer where planned cells have no result."""

_ALONE = {
    "descriptive": (
        "means of the matched repetitions compared without an interval: a pattern, not an inference"
    ),
    "holm": (
        "p-values adjusted by Holm over all estimable points of one metric and one pair of degrees"
    ),
    "moderated": (
        "cross-check: credible interval of the mean log ratio with each point's variance shrunk "
        "towards the study's (empirical Bayes, Smyth 2004); it never changes a verdict"
    ),
    "detectable": (
        f"the true difference that this many pairs, as noisy as these, show with {POWER:.0%} power"
    ),
}


@dataclass(frozen=True)
class Pair:
    """Two TP degrees that are compared: differences are candidate minus baseline."""

    baseline: int
    candidate: int

    def to_dict(self) -> dict[str, int]:
        """The two degrees as JSON-ready data."""
        return {"baseline_tp": self.baseline, "candidate_tp": self.candidate}

    def __str__(self) -> str:
        return f"TP{self.candidate} against TP{self.baseline}"


@dataclass(frozen=True)
class Verdict:
    """One metric's verdicts over the grid of one subject, plain, corrected and descriptive."""

    pair: Pair
    metric: Metric
    subject: Subject
    plain: Crossover
    corrected: Crossover
    descriptive: Crossover | None
    estimable: bool
    pending: int = 0

    @property
    def answer(self) -> int | str:
        """What the rule says; `INCOMPLETE` while planned cells have no result."""
        return INCOMPLETE if self.pending else self.plain.answer

    def to_dict(self) -> dict[str, Any]:
        """See `Analysis.to_dict`, ``crossovers``."""
        model, workload = self.subject
        return {
            "model": model,
            "workload": workload,
            "first_sustained_favorable": self.answer,
            "holm_first_sustained_favorable": INCOMPLETE if self.pending else self.corrected.answer,
            "pending": self.pending,
            "so_far": self.plain.answer if self.pending else None,
            "estimable": self.estimable,
            "at_top_of_grid": self.plain.at_top and not self.pending,
            "gated_concurrencies": list(self.plain.gated),
            "gated_from": self.plain.gated_from,
            "metric": self.metric.name,
            **self.pair.to_dict(),
        }

    def descriptive_dict(self) -> dict[str, Any] | None:
        """See `Analysis.to_dict`, ``descriptive``."""
        if self.descriptive is None:
            return None
        model, workload = self.subject
        return {
            "model": model,
            "workload": workload,
            "descriptive_crossover": self.descriptive.answer,
            "metric": self.metric.name,
            **self.pair.to_dict(),
        }


@dataclass(frozen=True)
class Analysis:
    """A study's results. `to_dict` is their public form; reports are drawn from it alone."""

    identity: Mapping[str, Any]
    label: str | None
    gates: tuple[Mapping[str, Any], ...]
    metrics: tuple[Metric, ...]
    level: float
    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    points: tuple[tuple[Pair, Point], ...]
    verdicts: tuple[Verdict, ...]
    incompatible: tuple[Mapping[str, Any], ...]
    _extras: Mapping[tuple[Pair, Subject, int, str], Mapping[str, Any]]
    _priors: Mapping[tuple[Pair, str], Prior | None]

    def crossovers(self, metric: str = PRIMARY, pair: Pair | None = None) -> list[Verdict]:
        """The verdicts of one metric and one pair (the first), by model and workload.

        None where the rows have a label: there is no crossover without fresh servers.
        """
        if self.label is not None:
            return []
        pair = pair or next(iter(self.pairs), None)
        return [v for v in self.verdicts if v.metric.name == metric and v.pair == pair]

    @property
    def alone(self) -> str | None:
        """Why there is no crossover, where one degree alone was tried."""
        if self.pairs:
            return None
        (tp,) = {arm.tp for arm in self.arms}
        return f"TP{tp} alone was tried: there is nothing to compare it with, so no crossover"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready data, independent of the order of the rows.

        ::

            schema          1
            kind            "kvreg-analysis"
            identity        {"source": "cells", "cells": sha256} or
                            {"source": "sweep", "plan", "artifact", "profile", "facts", "ledger":
                             digests or null, "engine", "kvreg", "created", "name", "pending":
                             cells of the plan without a result, "memory_boundary_mib"}
            label           null, or what the rows are instead of a paired comparison of fresh
                            servers ("within-server, descriptive"): then there are no intervals
                            and no crossovers, only arms, points' means and descriptive
            rule            {"level": 0.95, "interval": words, "sustained", "gated", "missing",
                             "replication", "descriptive", "holm", "moderated", "detectable": words}
            design          {"models": [..], "workloads": {name: {"input_tokens", "output_tokens"}},
                             "concurrencies": [..], "tp": [..], "repetitions": [..],
                             "cells": n, "states": {state: n}}
            metrics         {name: {"label", "unit", "better": "higher"|"lower"}}, in table order;
                            the ones that were asked for and always the primary one
            primary_metric  "output_tokens_per_s"
            pairs           [{"baseline_tp", "candidate_tp"}], the first is the default
            alone           null, or why there are no pairs: one degree alone was tried
            crossovers      of the primary metric and the first pair, one per (model, workload):
                            [{"model", "workload",
                              "first_sustained_favorable": int | "none" | "RESOURCE_GATED@C" |
                                                           "incomplete",
                              "holm_first_sustained_favorable": the same after Holm's correction,
                              "pending": planned cells without a result; "so_far": what the rest
                                         says meanwhile, no verdict, null where it is complete,
                              "estimable": false where no point has two pairs (then "none" is no
                                           finding: see descriptive),
                              "at_top_of_grid": nothing larger was tested to sustain it,
                              "gated_concurrencies": [..],
                              "gated_from": where the gated top of the grid begins, or null,
                              "metric", "baseline_tp", "candidate_tp"}]
            all_crossovers  the same for every metric and every pair
            descriptive     [{"model", "workload", "descriptive_crossover": as above but by means
                              without intervals, "metric", "baseline_tp", "candidate_tp"}], for
                            every metric and pair; never an inference
            incompatible    [{"model", "workload", "tp", "cells"}]: arms that never ran; such
                            subjects are in no table above
            gates           [{"model", "tp", "state", "reason"}], compatibility gates on record
            arms            [{"model", "workload", "input_tokens", "output_tokens", "concurrency",
                              "tp", "states": {repetition: state}, "reasons": {repetition: words},
                              "max_gpu_memory_mib": {repetition: MiB},
                              "metrics": {name: {"values": {repetition: value}, "mean",
                                                 "interval": [low, high] | null}}}]
                            (metrics that were not measured are absent; keys are strings)
            points          [{"model", "workload", "input_tokens", "output_tokens", "concurrency",
                              "baseline_tp", "candidate_tp",
                              "gated": null | {tp: [repetitions]},
                              "left_out": [{"repetition", "reason"}],
                              "metrics": {name: {
                                "pairs": n, "differences": {repetition: candidate - baseline},
                                "mean", "relative": mean / baseline's mean,
                                "interval": [low, high] | null, "p",
                                "verdict": "favourable"|"unfavourable"|"inconclusive"|"gated",
                                "reason": words | null,
                                "holm": {"p", "verdict"} | null,
                                "detectable": {"absolute", "relative"} | null,
                                "moderated": {"ratio", "interval": ratios, "probability_better",
                                              "verdict", "agrees"} | null}}}]
            power           {"power", "pairs": {n: detectable effect in standard deviations}}
            cross_check     [{"metric", "baseline_tp", "candidate_tp", "prior_df", "prior_sd_log",
                              "compared": n, "disagree": [{"model", "workload", "concurrency",
                              "verdict", "moderated"}]}]

        Throughputs in 1/s, latencies in ms, memory in MiB per GPU; infinite `prior_df` is null.
        """
        return {
            "schema": 1,
            "kind": "kvreg-analysis",
            "identity": dict(self.identity),
            "label": self.label,
            "rule": {
                "level": self.level,
                "interval": "paired, two-sided Student t",
                **RULE,
                **_ALONE,
            },
            "design": self._design(),
            "metrics": {metric.name: metric.to_dict() for metric in self.metrics},
            "primary_metric": PRIMARY,
            "pairs": [pair.to_dict() for pair in self.pairs],
            "alone": self.alone,
            "crossovers": [found.to_dict() for found in self.crossovers()],
            "all_crossovers": [found.to_dict() for found in self.verdicts if self.label is None],
            "descriptive": [d for v in self.verdicts if (d := v.descriptive_dict()) is not None],
            "incompatible": [dict(entry) for entry in self.incompatible],
            "gates": [dict(gate) for gate in self.gates],
            "arms": [
                arm.to_dict([metric.name for metric in self.metrics], self.level)
                for arm in self.arms
            ],
            "points": [self._point(pair, point) for pair, point in self.points],
            "power": self._power(),
            "cross_check": [self._cross_check(pair, name) for pair, name in self._priors],
        }

    def _design(self) -> dict[str, Any]:
        rows = [row for arm in self.arms for row in arm.cells.values()]
        shapes = {row.workload: (row.input_tokens, row.output_tokens) for row in rows}
        states: dict[str, int] = {}
        for row in rows:
            states[row.state] = states.get(row.state, 0) + 1
        return {
            "models": sorted({row.model for row in rows}),
            "workloads": {
                name: {"input_tokens": shape[0], "output_tokens": shape[1]}
                for name, shape in sorted(shapes.items())
            },
            "concurrencies": sorted({row.concurrency for row in rows}),
            "tp": sorted({row.tp for row in rows}),
            "repetitions": sorted({row.repetition for row in rows}),
            "cells": len(rows),
            "states": dict(sorted(states.items())),
        }

    def _point(self, pair: Pair, point: Point) -> dict[str, Any]:
        row = next(iter({**point.baseline.cells, **point.candidate.cells}.values()))
        metrics = {}
        for name, judgement in point.judgements.items():
            extra = self._extras.get((pair, point.subject, point.concurrency, name), {})
            metrics[name] = judgement.to_dict(extra.get("holm"), extra.get("moderated"), self.level)
        return {
            "model": point.model,
            "workload": point.workload,
            "input_tokens": row.input_tokens,
            "output_tokens": row.output_tokens,
            "concurrency": point.concurrency,
            **pair.to_dict(),
            "gated": {str(tp): numbers for tp, numbers in point.gated.items()} or None,
            "left_out": [
                {"repetition": number, "reason": reason} for number, reason in point.left_out
            ],
            "metrics": metrics,
        }

    def _power(self) -> dict[str, Any]:
        sizes = {
            len(judgement.differences)
            for _, point in self.points
            for judgement in point.judgements.values()
            if judgement.estimable
        }
        return {
            "power": POWER,
            "pairs": {str(n): detectable_effect(n, self.level) for n in sorted(sizes)},
        }

    def _cross_check(self, pair: Pair, metric: str) -> dict[str, Any]:
        prior = self._priors[pair, metric]
        compared, disagree = 0, []
        for at, point in self.points:
            extra = self._extras.get((at, point.subject, point.concurrency, metric), {})
            found = extra.get("moderated")
            if at != pair or not found:
                continue
            compared += 1
            if not found["agrees"]:
                disagree.append(
                    {
                        "model": point.model,
                        "workload": point.workload,
                        "concurrency": point.concurrency,
                        "verdict": point.judgements[metric].verdict,
                        "moderated": found["verdict"],
                    }
                )
        return {
            "metric": metric,
            **pair.to_dict(),
            "prior_df": None if prior is None or math.isinf(prior.df) else prior.df,
            "prior_sd_log": None if prior is None else math.sqrt(prior.variance),
            "compared": compared,
            "disagree": disagree,
        }
