"""The table of answers: a crossover for every model and token shape, readable at a glance."""

from collections.abc import Iterator, Mapping

from kvreg.report.evidence import Data, Evidence
from kvreg.report.markup import Markup, element, join
from kvreg.report.wording import SYMBOLS, answer, effects_of


def verdicts(evidence: Evidence) -> Markup:
    """One table of answers per pair of degrees and metric; scripts show one at a time."""
    analysis = evidence.analysis
    if analysis["label"] is not None:
        return _descriptive(evidence)
    if analysis["alone"]:
        return element("p", {"class": "about"}, f"{analysis['alone']}. Its means are below.")
    tables = []
    for number, pair in enumerate(evidence.pairs):
        for metric in analysis["metrics"]:
            first = number == 0 and metric == analysis["primary_metric"]
            tables.append(_verdict_table(evidence, pair, number, metric, hidden=not first))
    return join(tables)


def _verdict_table(
    evidence: Evidence, pair: Data, number: int, metric: str, *, hidden: bool
) -> Markup:
    analysis, workloads = evidence.analysis, evidence.workloads()
    found = {
        (entry["model"], entry["workload"]): entry
        for entry in analysis["all_crossovers"]
        if entry["metric"] == metric and _same_pair(entry, pair)
    }
    marks: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for point in analysis["points"]:
        if _same_pair(point, pair) and metric in point["metrics"]:
            key = (point["model"], point["workload"])
            said = point["metrics"][metric]["verdict"]
            marks.setdefault(key, []).append((point["concurrency"], said))
    about = analysis["metrics"][metric]
    effects = effects_of(analysis, pair, metric)
    by_means = {
        (entry["model"], entry["workload"]): entry["descriptive_crossover"]
        for entry in analysis["descriptive"]
        if entry["metric"] == metric and _same_pair(entry, pair)
    }
    rows = [
        element(
            "tr",
            {},
            element("th", {"scope": "row"}, model),
            [
                _verdict_cell(
                    found.get((model, name)),
                    sorted(marks.get((model, name), [])),
                    effects.get((model, name), {}),
                    by_means.get((model, name)),
                    model,
                    name,
                )
                for name in workloads
            ],
        )
        for model in analysis["design"]["models"]
    ]
    caption = (
        f"First sustained favourable concurrency of TP{pair['candidate_tp']} against"
        f" TP{pair['baseline_tp']} by {about['label']} ({about['better']} is better)"
    )
    return element(
        "table",
        {
            "class": "verdicts",
            "data-pair": number,
            "data-metric": metric,
            "hidden": hidden,
        },
        element("caption", {}, caption),
        element(
            "thead",
            {},
            element("tr", {}, element("th", {"scope": "col"}, "Model"), _shapes(evidence)),
        ),
        element("tbody", {}, rows),
    )


def _shapes(evidence: Evidence) -> Iterator[Markup]:
    shapes = evidence.analysis["design"]["workloads"]
    for name in evidence.workloads():
        tokens = f"{shapes[name]['input_tokens']} in, {shapes[name]['output_tokens']} out"
        yield element("th", {"scope": "col"}, name.replace("_", " "), element("small", {}, tokens))


def _verdict_cell(
    found: Data | None,
    marks: list[tuple[int, str]],
    effects: Mapping[int, float | None],
    by_means: int | str | None,
    model: str,
    workload: str,
) -> Markup:
    if found is None:
        text = element("span", {"class": "small"}, "not compared")
        return element(
            "td", {"class": "answer unknown", "data-shape": workload.replace("_", " ")}, text
        )
    said = answer(found, effects, by_means)
    corrected = found["holm_first_sustained_favorable"]
    holm = None
    if corrected != found["first_sustained_favorable"]:
        holm = element("span", {"class": "small holm"}, f"Holm-corrected: {corrected}")
    strip = [
        element(
            "span",
            {"class": f"mark {verdict}", "title": f"concurrency {level}: {SYMBOLS[verdict][1]}"},
            element("i", {"aria-hidden": "true"}, SYMBOLS[verdict][0]),
            element("b", {}, level),
            element("span", {"class": "unseen"}, f" {SYMBOLS[verdict][1]}; "),
        )
        for level, verdict in marks
    ]
    return element(
        "td",
        {
            "class": f"answer {said.kind}",
            "data-model": model,
            "data-workload": workload,
            "data-shape": workload.replace("_", " "),
        },
        element("span", {"class": "large"}, said.large),
        element("span", {"class": "small"}, said.small),
        holm,
        element("span", {"class": "strip"}, strip),
    )


def _descriptive(evidence: Evidence) -> Markup:
    analysis = evidence.analysis
    rows = [
        element(
            "tr",
            {},
            element("th", {"scope": "row"}, entry["model"]),
            element("td", {}, entry["workload"]),
            element("td", {}, analysis["metrics"][entry["metric"]]["label"]),
            element("td", {}, str(entry["descriptive_crossover"])),
        )
        for entry in analysis["descriptive"]
    ]
    head = ("Model", "Workload", "Metric", "Means favourable from")
    return element(
        "table",
        {"class": "plain"},
        element("caption", {}, f"{analysis['label']}: means without intervals, never an inference"),
        element("thead", {}, element("tr", {}, [element("th", {"scope": "col"}, n) for n in head])),
        element("tbody", {}, rows),
    )


def _same_pair(entry: Data, pair: Data) -> bool:
    return all(entry[key] == pair[key] for key in ("baseline_tp", "candidate_tp"))
