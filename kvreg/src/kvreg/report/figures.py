"""The figures of a report, as SVG and PNG."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from kvreg.nccl.design import human_size
from kvreg.report.drawing import (
    COLOURS,
    DASHES,
    GATED,
    PAYS,
    SIGNS,
    SOFT,
    canvas,
    concurrency_axis,
    gated_levels,
    literal,
    rendered,
    stamp,
    style,
)
from kvreg.report.evidence import Data, Evidence
from kvreg.report.wording import PAYS as KIND_PAYS
from kvreg.report.wording import answer

Make = Callable[..., Any]

_FILLS = {"pays": "#dff1e9", "gated": "#fbeccf", "never": "#efede7", "unknown": "white"}
_INKS = {"pays": PAYS, "gated": GATED, "never": "#4f5860", "unknown": SOFT}
_PREFIXES = {"pays": "▲ ", "gated": "✕ ", "never": "\N{EN DASH} ", "unknown": ""}


def figures(evidence: Evidence) -> Iterator[tuple[str, bytes]]:
    """Every figure that the evidence has data for: (file name, bytes)."""
    with style() as make:
        for name, figure in _drawn(evidence, make):
            for kind, data in rendered(figure).items():
                yield f"{name}.{kind}", data


def figure_count(evidence: Evidence) -> int:
    """How many files `figures` gives at most."""
    return 2 * (5 + 2 * len(evidence.communication))


def _drawn(evidence: Evidence, make: Make) -> Iterator[tuple[str, Any]]:
    analysis = evidence.analysis
    measured = {name for arm in analysis["arms"] for name in arm["metrics"]}
    source = _source(evidence)
    for metric, name in (
        (analysis["primary_metric"], "throughput"),
        ("ttft_ms", "ttft"),
        ("tpot_ms", "tpot"),
    ):
        if metric in measured:
            yield name, _stamped(_against_concurrency(evidence, make, metric), source)
    if analysis["crossovers"]:
        yield "crossovers", _stamped(_crossovers(evidence, make), source)
    if any(arm["max_gpu_memory_mib"] for arm in analysis["arms"]):
        yield "memory", _stamped(_memory(evidence, make), source)
    for number, (_, result) in enumerate(evidence.communication, start=1):
        suffix = "" if len(evidence.communication) == 1 else f"-{number}"
        said = f"design {result['design_digest'].removeprefix('sha256:')[:16]}"
        said = f"SIMULATED DATA  {said}" if result["simulated"] else said
        yield f"communication{suffix}", _stamped(_communication(result, make), said)


def _source(evidence: Evidence) -> str:
    """What a figure that leaves its report still says that it came from."""
    identity = evidence.analysis["identity"]
    known = [
        f"{name} {str(identity[name]).removeprefix('sha256:')[:16]}"
        for name in ("artifact", "plan", "facts", "cells")
        if identity.get(name)
    ]
    return "  ".join([*(["SIMULATED DATA"] if evidence.simulated else []), *known])


def _stamped(figure: Any, text: str) -> Any:
    stamp(figure, text)
    return figure


def _grid(evidence: Evidence, make: Make) -> tuple[Any, Any, list[str], list[str]]:
    models, workloads = evidence.analysis["design"]["models"], evidence.workloads()
    size = (3.0 * len(workloads) + 0.8, 2.1 * len(models) + 0.6)
    figure, axes = canvas(make, *size, len(models), len(workloads))
    return figure, axes, models, workloads


def _against_concurrency(evidence: Evidence, make: Make, metric: str) -> Any:
    analysis = evidence.analysis
    figure, grid, models, workloads = _grid(evidence, make)
    about = analysis["metrics"][metric]
    handles: dict[str, Any] = {}
    for row, model in enumerate(models):
        for column, workload in enumerate(workloads):
            axes = grid[row][column]
            arms = _arms(analysis, model, workload)
            levels = sorted({arm["concurrency"] for arm in arms}) or [1, 2]
            for index, tp in enumerate(analysis["design"]["tp"]):
                # What stayed below the boundary is no fair sample of an arm that passed it.
                found = [
                    arm
                    for arm in arms
                    if arm["tp"] == tp
                    and metric in arm["metrics"]
                    and "RESOURCE_GATED" not in arm["states"].values()
                ]
                if found:
                    handles[f"TP{tp}"] = _arm_curve(
                        axes, found, metric, index, intervals=analysis["label"] is None
                    )
            gated_levels(axes, _gated(analysis, model, workload))
            _crossover_line(axes, analysis, model, workload, metric)
            concurrency_axis(axes, levels)
            axes.set_ylim(bottom=0)
            axes.set_title(literal(f"{model}\n{workload.replace('_', ' ')}"), loc="left")
            if column == 0:
                axes.set_ylabel(f"{about['label']}\n{about['unit']}")
            if row == len(models) - 1:
                axes.set_xlabel("concurrency")
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="upper right", ncols=len(handles))
    return figure


def _arm_curve(axes: Any, arms: list[Data], metric: str, index: int, *, intervals: bool) -> Any:
    x = [arm["concurrency"] for arm in arms]
    y = [arm["metrics"][metric]["mean"] for arm in arms]
    bounds = [
        (arm["metrics"][metric]["interval"] if intervals else None) or [mean, mean]
        for arm, mean in zip(arms, y, strict=True)
    ]
    errors = [
        [max(0.0, mean - low) for mean, (low, _) in zip(y, bounds, strict=True)],
        [max(0.0, high - mean) for mean, (_, high) in zip(y, bounds, strict=True)],
    ]
    return axes.errorbar(
        x, y, yerr=errors, color=COLOURS[index % 4], linestyle=DASHES[index % 4],
        marker=SIGNS[index % 4], capsize=2, linewidth=1.5, elinewidth=1,
    )  # fmt: skip


def _crossover_line(axes: Any, analysis: Data, model: str, workload: str, metric: str) -> None:
    """The first sustained favourable level as a line, and the answer at the head."""
    for found in analysis["all_crossovers"]:
        same = (found["model"], found["workload"], found["metric"]) == (model, workload, metric)
        if same and _of_first_pair(analysis, found):
            said = answer(found, {})
            axes.set_title(
                _PREFIXES[said.kind] + said.large, loc="right", color=_INKS[said.kind], fontsize=8
            )
            if isinstance(found["first_sustained_favorable"], int):
                axes.axvline(
                    found["first_sustained_favorable"], color=PAYS, linestyle=(0, (4, 3)),
                    linewidth=1.1, zorder=1,
                )  # fmt: skip


def _crossovers(evidence: Evidence, make: Make) -> Any:
    """The table of answers as a picture, for slides and papers."""
    analysis = evidence.analysis
    models, workloads = analysis["design"]["models"], evidence.workloads()
    found = {(entry["model"], entry["workload"]): entry for entry in analysis["crossovers"]}
    figure = make(figsize=(2.3 * len(workloads) + 2.6, 0.62 * len(models) + 1.0))
    axes = figure.add_axes((0, 0.08, 1, 0.92))
    axes.set_axis_off()
    axes.set(xlim=(-1.15, len(workloads)), ylim=(len(models), -0.75))
    shapes = analysis["design"]["workloads"]
    for column, workload in enumerate(workloads):
        tokens = f"{shapes[workload]['input_tokens']} in, {shapes[workload]['output_tokens']} out"
        axes.text(
            column + 0.5, -0.15, literal(f"{workload.replace('_', ' ')}\n{tokens}"),
            ha="center", va="bottom", fontsize=8,
        )  # fmt: skip
    for row, model in enumerate(models):
        axes.text(-0.05, row + 0.5, literal(model), ha="right", va="center", fontsize=9)
        for column, workload in enumerate(workloads):
            entry = found.get((model, workload))
            if entry is None:
                axes.text(column + 0.5, row + 0.5, "not compared", ha="center", va="center")
                continue
            said = answer(entry, {})
            axes.add_patch(
                _box(column, row, _FILLS[said.kind], _INKS[said.kind], said.kind != KIND_PAYS)
            )
            axes.text(
                column + 0.5, row + 0.5, _PREFIXES[said.kind] + said.large,
                ha="center", va="center",
                fontsize=10, fontweight="bold", color=_INKS[said.kind],
            )  # fmt: skip
    return figure


def _box(column: int, row: int, fill: str, edge: str, dashed: bool) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (column + 0.03, row + 0.06), 0.94, 0.88, facecolor=fill, edgecolor=edge, linewidth=1,
        linestyle="--" if dashed else "-",
    )  # fmt: skip


def _memory(evidence: Evidence, make: Make) -> Any:
    analysis = evidence.analysis
    figure, grid, models, workloads = _grid(evidence, make)
    seen: dict[str, Any] = {}
    for row, model in enumerate(models):
        for column, workload in enumerate(workloads):
            axes = grid[row][column]
            arms = _arms(analysis, model, workload)
            for index, tp in enumerate(analysis["design"]["tp"]):
                for gated in (False, True):
                    at = [
                        (arm["concurrency"] * (1.06 if index else 0.94), value)
                        for arm in arms
                        if arm["tp"] == tp
                        for repetition, value in arm["max_gpu_memory_mib"].items()
                        if (arm["states"][repetition] == "RESOURCE_GATED") is gated
                    ]
                    if at:
                        points = axes.scatter(
                            *zip(*at, strict=True), s=13, marker=SIGNS[index % 4],
                            facecolors="white" if gated else COLOURS[index % 4],
                            edgecolors=GATED if gated else COLOURS[index % 4],
                        )  # fmt: skip
                        seen.setdefault(f"TP{tp}, gated" if gated else f"TP{tp}", points)
            if evidence.boundary_mib:
                seen["boundary"] = axes.axhline(
                    evidence.boundary_mib, color=GATED, linestyle="--", linewidth=1.2
                )
            concurrency_axis(axes, sorted({arm["concurrency"] for arm in arms}) or [1, 2])
            axes.set_title(literal(f"{model}\n{workload.replace('_', ' ')}"), loc="left")
            if column == 0:
                axes.set_ylabel("MiB per GPU")
            if row == len(models) - 1:
                axes.set_xlabel("concurrency")
    figure.legend(list(seen.values()), list(seen), loc="upper right", ncols=len(seen))
    return figure


def _communication(result: Data, make: Make) -> Any:
    import numpy as np

    figure, grid = canvas(make, 9, 3.8, 1, 2)
    time_axes, band_axes = grid[0]
    factor = result["bus_factor"]
    for index, (timer, entry) in enumerate(result["timers"].items()):
        if not entry["available"]:
            continue
        rows = entry["payloads"]
        sizes = [row["bytes"] for row in rows]
        look = {"color": COLOURS[index], "marker": SIGNS[index], "linestyle": "none"}
        time_axes.plot(sizes, [row["us"] for row in rows], label=timer, **look)
        band_axes.plot(sizes, [row["bus_bandwidth_GB_per_s"] for row in rows], label=timer, **look)
        fit = entry["fits"].get("relative")
        if fit and fit["algorithm_bandwidth_GB_per_s"]["value"]:
            latency = fit["intercept_us"]["value"]
            band = fit["algorithm_bandwidth_GB_per_s"]["value"]
            x = np.geomspace(min(sizes), max(sizes), 100)
            y = latency + x / band / 1000
            label = f"{timer}: {latency:.4g} µs + S / {band:.4g} GB/s"
            line = {"color": COLOURS[index], "linewidth": 1, "linestyle": DASHES[index]}
            time_axes.plot(x[y > 0], y[y > 0], label=label, **line)
            band_axes.plot(x[y > 0], (x / y / 1000 * factor)[y > 0], **line)
    design = result["design"]
    where = f"{design['ranks']} ranks, {design['backend']}"
    where += "" if design["peer"] else ", peer access off"
    where += ", simulated" if result["simulated"] else ""
    sizes = sorted(design["payloads"])
    ticks = sizes[:: math.ceil(len(sizes) / 6)]
    for axes, title in ((time_axes, "Time of one all-reduce"), (band_axes, "Bus bandwidth")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [human_size(size) for size in ticks])
        axes.minorticks_off()
        axes.set_xlabel("payload per rank")
        axes.set_title(f"{title} ({where})", loc="left")
    time_axes.set_yscale("log")
    time_axes.set_ylabel("µs")
    band_axes.set_ylabel("GB/s")
    time_axes.legend(fontsize=7)
    return figure


def _arms(analysis: Data, model: str, workload: str) -> list[Data]:
    return [arm for arm in analysis["arms"] if (arm["model"], arm["workload"]) == (model, workload)]


def _gated(analysis: Data, model: str, workload: str) -> list[int]:
    return [
        point["concurrency"]
        for point in analysis["points"]
        if (point["model"], point["workload"]) == (model, workload)
        and point["gated"]
        and _of_first_pair(analysis, point)
    ]


def _of_first_pair(analysis: Data, entry: Data) -> bool:
    return all(entry[key] == analysis["pairs"][0][key] for key in ("baseline_tp", "candidate_tp"))
