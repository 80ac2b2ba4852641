"""An analysis as text: identity, crossover tables, then what qualifies them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Data = Mapping[str, Any]


def analysis_text(data: Data, *, points: bool = False) -> str:
    """The text of `Analysis.to_dict`; with `points` every interval as well."""
    parts = [_identity(data)]
    if data["label"]:
        parts.append(f"{data['label']}: no intervals, no crossovers; means only")
    if data["alone"]:
        parts += [data["alone"], *(_arms(data, metric) for metric in data["metrics"])]
    for pair in data["pairs"]:
        for metric in data["metrics"]:
            parts += _crossovers(data, pair, metric)
    parts += _descriptive(data)
    if points and not data["alone"]:
        parts += [_points(data, metric) for metric in data["metrics"]]
    parts += [_power(data), _cross_check(data), _left_out(data), _negative(data)]
    parts.append(
        f"rule: {data['rule']['sustained']} ({data['rule']['level']:.0%} interval, "
        f"{data['rule']['interval']}); {data['rule']['gated']}; {data['rule']['missing']}"
    )
    return "\n\n".join(part for part in parts if part)


def grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned by width; the first to the left, the others to the right."""
    table = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(header))]
    return "\n".join(
        "  ".join(
            value.ljust(width) if index == 0 else value.rjust(width)
            for index, (value, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def _identity(data: Data) -> str:
    design, identity = data["design"], data["identity"]
    states = ", ".join(f"{count} {state}" for state, count in design["states"].items())
    lines = [f"{design['cells']} cells: {states}"]
    lines += [
        f"{name}: {identity[name]}"
        for name in ("cells", "plan", "artifact", "profile", "facts", "ledger")
        if identity.get(name)
    ]
    if identity.get("pending"):
        lines.append(f"unfinished: {identity['pending']} cells have no result; all is provisional")
    return "\n".join(lines)


def _crossovers(data: Data, pair: Data, metric: str) -> Iterable[str]:
    rows = [row for row in data["all_crossovers"] if _is(row, pair, metric)]
    found = [row for row in rows if row["estimable"] or row["gated_from"] is not None]
    about = data["metrics"][metric]
    if found:
        plain = _by_workload(found, lambda row: str(row["first_sustained_favorable"]))
        corrected = _by_workload(found, lambda row: str(row["holm_first_sustained_favorable"]))
        same = "the same" if corrected == plain else f"\n{corrected}"
        lines = [
            f"{about['label']} ({about['unit']}, {about['better']} is better): first sustained "
            f"favourable concurrency of TP{pair['candidate_tp']} against TP{pair['baseline_tp']}",
            plain,
            f"with Holm's correction over all points: {same}",
        ]
        if waiting := [f"{_subject(row)} {row['so_far']}" for row in found if row["pending"]]:
            lines.append(
                f"incomplete is no verdict; what their cells say so far: {', '.join(waiting)}"
            )
        if top := [_subject(row) for row in found if row["at_top_of_grid"]]:
            lines.append(f"at the top of the grid, nothing larger was tested: {', '.join(top)}")
        yield "\n".join(lines)
    if rest := [_subject(row) for row in rows if row not in found]:
        yield (
            f"{about['label']}, TP{pair['candidate_tp']} against TP{pair['baseline_tp']}: no "
            f"inference, no concurrency has two matched repetitions: {', '.join(rest)}"
        )


def _by_workload(rows: Sequence[Data], answer: Callable[[Data], str]) -> str:
    workloads = sorted({row["workload"] for row in rows})
    answers = {(row["model"], row["workload"]): answer(row) for row in rows}
    return grid(
        ["model", *workloads],
        [
            [model, *(answers.get((model, workload), "") for workload in workloads)]
            for model in sorted({row["model"] for row in rows})
        ],
    )


def _descriptive(data: Data) -> Iterable[str]:
    """Point estimates: shown for subjects that have no inference, and only for them."""
    inferred = {
        (row["model"], row["workload"]) for row in data["all_crossovers"] if row["estimable"]
    }
    for pair in data["pairs"]:
        for metric, about in data["metrics"].items():
            rows = [
                row
                for row in data["descriptive"]
                if _is(row, pair, metric) and (row["model"], row["workload"]) not in inferred
            ]
            if rows:
                table = _by_workload(rows, lambda row: str(row["descriptive_crossover"]))
                yield (
                    f"descriptive crossover of {about['label']}, TP{pair['candidate_tp']} against "
                    f"TP{pair['baseline_tp']} (means without an interval: a pattern, not an "
                    f"inference)\n{table}"
                )


def _arms(data: Data, metric: str) -> str:
    """Means and their intervals over repetitions: all that one degree alone can show."""
    rows = []
    for arm in data["arms"]:
        if found := arm["metrics"].get(metric):
            low, high = found["interval"] or (None, None)
            head = [f"{arm['model']} {arm['workload']}", arm["concurrency"], arm["tp"]]
            rows.append([*head, len(found["values"]), found["mean"], low, high])
    if not rows:
        return ""
    about = data["metrics"][metric]
    table = grid(["", "C", "TP", "repetitions", "mean", "low", "high"], rows)
    return f"{about['label']} in {about['unit']}, {about['better']} is better\n{table}"


def _points(data: Data, metric: str) -> str:
    rows = []
    for point in data["points"]:
        found = point["metrics"][metric]
        low, high = found["interval"] or (None, None)
        rows.append(
            [
                f"{point['model']} {point['workload']}",
                point["concurrency"],
                f"{point['candidate_tp']}-{point['baseline_tp']}",
                found["pairs"],
                found["mean"],
                low,
                high,
                found["verdict"],
                found["holm"]["verdict"] if found["holm"] else None,
                found["detectable"]["absolute"] if found["detectable"] else None,
            ]
        )
    about = data["metrics"][metric]
    header = ["", "C", "TP", "pairs", "mean", "low", "high", "verdict", "Holm", "detectable"]
    return f"{about['label']}, differences in {about['unit']}\n{grid(header, rows)}"


def _power(data: Data) -> str:
    sizes = data["power"]["pairs"]
    if not sizes:
        return ""
    effects = ", ".join(f"{n} pairs {effect:.2f}" for n, effect in sizes.items())
    relative = sorted(
        abs(found["detectable"]["relative"])
        for point in data["points"]
        if (found := point["metrics"][data["primary_metric"]])["detectable"]
        and found["detectable"]["relative"] is not None
        and found["verdict"] != "gated"
    )
    middle = f"; median over points {relative[len(relative) // 2]:.1%}" if relative else ""
    return (
        f"smallest detectable difference ({data['power']['power']:.0%} power), in standard "
        f"deviations of the paired differences: {effects}{middle} of the baseline's mean in "
        f"{data['metrics'][data['primary_metric']]['label']}"
    )


def _cross_check(data: Data) -> str:
    lines = []
    for check in data["cross_check"]:
        if check["compared"]:
            head = f"{check['metric']} TP{check['candidate_tp']}/TP{check['baseline_tp']}"
            agree = check["compared"] - len(check["disagree"])
            named = "; ".join(
                f"{_subject(d)} C={d['concurrency']}: {d['verdict']}, here {d['moderated']}"
                for d in check["disagree"][:5]
            )
            more = len(check["disagree"]) - 5
            lines.append(
                f"  {head}: {agree} of {check['compared']} points agree"
                + (f" ({named}{f'; and {more} more' if more > 0 else ''})" if named else "")
            )
    title = "cross-check with variances shrunk towards the study's (changes no verdict)"
    return "\n".join([title, *lines]) if lines else ""


def _left_out(data: Data) -> str:
    lines = [
        f"  {_subject(point)} C={point['concurrency']} repetition {left['repetition']}: "
        f"{left['reason']}"
        for point in data["points"]
        for left in point["left_out"]
    ]
    return "\n".join(["left out of the pairs, not imputed", *lines]) if lines else ""


def _negative(data: Data) -> str:
    lines = [
        f"  {_subject(entry)} TP{entry['tp']}: incompatible ({entry['cells']} cells)"
        for entry in data["incompatible"]
    ]
    lines += [
        f"  {gate['model']} TP{gate['tp']}: {gate['state']} at the gate: {gate['reason']}"
        for gate in data["gates"]
        if gate["state"] != "COMPATIBLE"
    ]
    return "\n".join(["negative results, in no table above", *lines]) if lines else ""


def _is(row: Data, pair: Data, metric: str) -> bool:
    return (row["metric"], row["baseline_tp"], row["candidate_tp"]) == (
        metric,
        pair["baseline_tp"],
        pair["candidate_tp"],
    )


def _subject(row: Data) -> str:
    return f"{row['model']} {row['workload']}"
