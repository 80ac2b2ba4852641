"""The parts of the page that need no script: head, verdicts, identity, method, raw files."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvreg.report.evidence import Data, Evidence
from kvreg.report.markup import Child, Markup, element, join
from kvreg.report.wording import SYMBOLS, answer, effects_of, headline, limitations

TIMES = "\N{MULTIPLICATION SIGN}"

_DIGESTS = {
    "artifact": "runtime artifact",
    "plan": "plan",
    "facts": "host facts",
    "profile": "profile",
    "ledger": "ledger",
    "cells": "cell table",
}
_RULES = {
    "sustained": "Crossover",
    "gated": "Gated",
    "missing": "Missing",
    "replication": "Replication",
    "holm": "Holm",
    "detectable": "Detectable",
    "moderated": "Cross-check",
    "descriptive": "Descriptive",
}
_UNKNOWN = "not recorded"


def banners(evidence: Evidence) -> Markup:
    """What must be seen first: that numbers are simulated, or provisional."""
    pending = evidence.analysis["identity"].get("pending")
    found = []
    if evidence.simulated:
        text = "Simulated data. No GPU produced these numbers; they show the method, not a machine."
        found.append(element("p", {"class": "banner simulated", "role": "note"}, text))
    if pending:
        text = f"Unfinished sweep: {pending} planned cells have no result yet."
        found.append(element("p", {"class": "banner pending", "role": "note"}, text))
    return join(found)


def summary(evidence: Evidence) -> Markup:
    """The finding in a sentence and the design in numbers."""
    design = evidence.analysis["design"]
    states = design["states"]
    facts = [
        (len(design["models"]), "models"),
        (len(design["workloads"]), "token shapes"),
        (len(design["concurrencies"]), "concurrencies"),
        (len(design["repetitions"]), "repetitions"),
        (design["cells"], "fresh-server cells"),
        *((states[name], name.lower().replace("_", "-")) for name in sorted(states)),
    ]
    return join(
        [
            element("p", {"class": "headline"}, headline(evidence)),
            element(
                "ul",
                {"class": "numbers"},
                [
                    element("li", {}, element("b", {}, f"{count:,}"), " ", _singular(count, word))
                    for count, word in facts
                ],
            ),
        ]
    )


def _singular(count: int, word: str) -> str:
    return word.removesuffix("s") if count == 1 else word


def verdicts(evidence: Evidence) -> Markup:
    """One table of answers per pair of degrees and metric; scripts show one at a time."""
    analysis = evidence.analysis
    if analysis["label"] is not None:
        return _descriptive(evidence)
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
    model: str,
    workload: str,
) -> Markup:
    if found is None:
        text = element("span", {"class": "small"}, "not compared")
        return element(
            "td", {"class": "answer unknown", "data-shape": workload.replace("_", " ")}, text
        )
    said = answer(found, effects)
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


def identity(evidence: Evidence) -> Markup:
    """What the numbers came from: digests whole, so that they can be looked up."""
    known = evidence.analysis["identity"]
    rows: list[tuple[str, Child]] = []
    for name, label in _DIGESTS.items():
        if name in known:
            value = known[name]
            rows.append((label, element("code", {}, value) if value else _UNKNOWN))
    engine = known.get("engine") or {}
    if engine:
        command = " ".join(map(str, engine.get("command") or []))
        rows.append(
            (
                "engine",
                [f"{engine.get('version') or 'version unknown'} ", element("code", {}, command)],
            )
        )
    rows += [(name, str(known[name])) for name in ("kvreg", "created") if known.get(name)]
    if evidence.boundary_mib:
        rows.append(("memory boundary", f"{evidence.boundary_mib:,.0f} MiB per GPU"))
    rows += [("host", text) for text in _host(evidence.facts)]
    return element(
        "dl",
        {"class": "identity"},
        [[element("dt", {}, label), element("dd", {}, value)] for label, value in rows],
    )


def _host(facts: Data | None) -> list[str]:
    """The GPUs and versions in a host's facts, as far as they are there."""
    if not facts:
        return []
    gpus = facts.get("gpus")
    names: list[str] = []
    if isinstance(gpus, list):
        names = [str(gpu.get("name", "GPU")) for gpu in gpus if isinstance(gpu, dict)]
    found = [f"{names.count(name)} {TIMES} {name}" for name in sorted(set(names))]
    versions = [
        f"{key} {facts[key]}"
        for key in ("python", "torch", "driver")
        if isinstance(facts.get(key), str)
    ]
    return [", ".join([*found, *versions])] if found or versions else []


def limits(evidence: Evidence) -> Markup:
    """The limitations as a list."""
    return element(
        "ul", {"class": "limits"}, [element("li", {}, text) for text in limitations(evidence)]
    )


def method(evidence: Evidence) -> Markup:
    """The rules that the verdicts follow, and what did not become one."""
    analysis = evidence.analysis
    rule: dict[str, Any] = dict(analysis["rule"])
    named = [("Interval", f"{rule['level']:.0%}, {rule['interval']}")]
    named += [(label, rule[name]) for name, label in _RULES.items()]
    parts: list[Child] = [
        element(
            "dl",
            {"class": "method"},
            [[element("dt", {}, name), element("dd", {}, text)] for name, text in named],
        )
    ]
    negative = [
        f"{gate['model']}, TP{gate['tp']}: {gate['state']} {gate['reason'] or ''}".strip()
        for gate in analysis["gates"]
    ] + [
        f"{entry['model']}, {entry['workload']}, TP{entry['tp']}: never ran"
        for entry in analysis["incompatible"]
    ]
    if negative:
        parts.append(element("h3", {}, "Compatibility gates"))
        parts.append(element("ul", {}, [element("li", {}, text) for text in negative]))
    left = [
        f"{point['model']}, {point['workload']}, concurrency {point['concurrency']}, repetition"
        f" {entry['repetition']}: {entry['reason']}"
        for point in analysis["points"]
        for entry in point["left_out"]
    ]
    if left:
        parts.append(element("h3", {}, "Repetitions that made no pair"))
        parts.append(element("ul", {"class": "dense"}, [element("li", {}, text) for text in left]))
    disagree = [
        f"{entry['model']}, {entry['workload']}, concurrency {entry['concurrency']},"
        f" {check['metric']}: {entry['verdict']}; cross-check {entry['moderated']}"
        for check in analysis["cross_check"]
        for entry in check["disagree"]
    ]
    if disagree:
        parts.append(element("h3", {}, "Where the cross-check disagrees"))
        parts.append(
            element("ul", {"class": "dense"}, [element("li", {}, text) for text in disagree])
        )
    return join(parts)


def raw_files(evidence: Evidence) -> Markup:
    """Path, size and SHA-256 of every file that a number came from."""
    rows = [
        element(
            "tr",
            {},
            element("th", {"scope": "row"}, file.path),
            element("td", {"class": "number"}, f"{file.size:,}"),
            element("td", {}, element("code", {}, file.digest.removeprefix("sha256:"))),
        )
        for file in evidence.raw_files
    ]
    head = [element("th", {"scope": "col"}, name) for name in ("File", "Bytes", "SHA-256")]
    return element(
        "table",
        {"class": "plain files"},
        element("thead", {}, element("tr", {}, head)),
        element("tbody", {}, rows),
    )


def _same_pair(entry: Data, pair: Data) -> bool:
    return all(entry[key] == pair[key] for key in ("baseline_tp", "candidate_tp"))
