"""The canonical tables of a report: CSV for people's tools, JSON for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from kvreg.model.canonical import canonical_json
from kvreg.report.cost import PHASES
from kvreg.report.evidence import Data, Evidence


def tables(evidence: Evidence) -> dict[str, bytes]:
    """Every table by file name. The same evidence gives the same bytes."""
    analysis = evidence.analysis
    files = {
        "analysis.json": canonical_json(analysis) + b"\n",
        "cells.csv": evidence.cells.encode(),
        "crossovers.csv": _csv(analysis["all_crossovers"], _CROSSOVERS),
        "points.csv": _csv(_points(analysis), _POINTS),
    }
    if analysis["label"] is not None:  # no intervals, no crossovers: means alone
        files["descriptive.csv"] = _csv(analysis["descriptive"], _DESCRIPTIVE)
    if evidence.cost:
        files["cost.csv"] = _csv(evidence.cost["cells"], _COST)
    if evidence.communication:
        fits = dict(evidence.communication)
        files["communication.json"] = canonical_json(fits) + b"\n"
        files["communication-payloads.csv"] = _csv(_payloads(evidence), _PAYLOADS)
        files["communication-fits.csv"] = _csv(_fits(evidence), _FITS)
    return files


_CROSSOVERS = (
    *("model", "workload", "metric", "baseline_tp", "candidate_tp"),
    *("first_sustained_favorable", "holm_first_sustained_favorable", "estimable"),
    *("at_top_of_grid", "gated_from", "pending"),
)
_DESCRIPTIVE = (
    *("model", "workload", "metric", "baseline_tp", "candidate_tp", "descriptive_crossover"),
)
_POINTS = (
    *("model", "workload", "input_tokens", "output_tokens", "concurrency"),
    *("baseline_tp", "candidate_tp", "metric", "baseline_mean", "candidate_mean", "pairs"),
    *("mean_difference", "relative", "interval_low", "interval_high", "p", "verdict"),
    *("holm_p", "holm_verdict", "detectable_relative", "moderated_ratio", "reason"),
)
_COST = ("cell", "tp", "attempt", "state", "session", *PHASES, "total_s")
_PAYLOADS = (
    *("file", "backend", "ranks", "peer", "timer", "bytes", "us", "median_us", "p05_us", "p95_us"),
    *("algorithm_bandwidth_GB_per_s", "bus_bandwidth_GB_per_s"),
    *("plain_residual_relative", "relative_residual_relative"),
)
_FITS = (
    *("file", "backend", "ranks", "peer", "timer", "fit", "intercept_us", "intercept_low"),
    *("intercept_high", "algorithm_bandwidth_GB_per_s", "bandwidth_low", "bandwidth_high"),
    *("bus_bandwidth_GB_per_s", "interval_from", "points"),
)


def arm_means(analysis: Data) -> dict[tuple[str, str, int, int], Data]:
    """Each arm's metrics by (model, workload, concurrency, tp), none for an arm that was gated:
    the repetitions that stayed below the boundary are no fair sample of it."""
    return {
        (arm["model"], arm["workload"], arm["concurrency"], arm["tp"]): arm["metrics"]
        for arm in analysis["arms"]
        if "RESOURCE_GATED" not in arm["states"].values()
    }


def _points(analysis: Data) -> Iterable[dict[str, Any]]:
    means = arm_means(analysis)
    for point in analysis["points"]:
        subject = (point["model"], point["workload"], point["concurrency"])
        for metric, found in point["metrics"].items():
            low, high = found["interval"] or (None, None)
            yield {
                **point,
                "metric": metric,
                **{
                    f"{side}_mean": means.get((*subject, point[f"{side}_tp"]), {})
                    .get(metric, {})
                    .get("mean")
                    for side in ("baseline", "candidate")
                },
                "pairs": found["pairs"],
                "mean_difference": found["mean"],
                "relative": found["relative"],
                "interval_low": low,
                "interval_high": high,
                "p": found["p"],
                "verdict": found["verdict"],
                "holm_p": (found["holm"] or {}).get("p"),
                "holm_verdict": (found["holm"] or {}).get("verdict"),
                "detectable_relative": (found["detectable"] or {}).get("relative"),
                "moderated_ratio": (found["moderated"] or {}).get("ratio"),
                "reason": found["reason"],
            }


def _measured(evidence: Evidence) -> Iterable[tuple[dict[str, Any], Data]]:
    for name, result in evidence.communication:
        design = result["design"]
        for timer, entry in result["timers"].items():
            if entry["available"]:
                yield (
                    {
                        "file": name,
                        "backend": design["backend"],
                        "ranks": design["ranks"],
                        "peer": design["peer"],
                        "timer": timer,
                    },
                    entry,
                )


def _payloads(evidence: Evidence) -> Iterable[dict[str, Any]]:
    for head, entry in _measured(evidence):
        for row in entry["payloads"]:
            residuals = {
                f"{name}_residual_relative": (found or {}).get("relative")
                for name, found in row["residuals"].items()
            }
            yield {**head, **row, **residuals}


def _fits(evidence: Evidence) -> Iterable[dict[str, Any]]:
    for head, entry in _measured(evidence):
        for name, fit in entry["fits"].items():
            latency, band = fit["intercept_us"], fit["algorithm_bandwidth_GB_per_s"]
            yield {
                **head,
                "fit": name,
                "intercept_us": latency["value"],
                "intercept_low": latency["low"],
                "intercept_high": latency["high"],
                "algorithm_bandwidth_GB_per_s": band["value"],
                "bandwidth_low": band["low"],
                "bandwidth_high": band["high"],
                "bus_bandwidth_GB_per_s": fit["bus_bandwidth_GB_per_s"]["value"],
                "interval_from": fit["interval_from"],
                "points": fit["points"],
            }


def _csv(rows: Iterable[Data], columns: Sequence[str]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_field(row.get(name)) for name in columns])
    return out.getvalue().encode()


def _field(value: Any) -> Any:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value
