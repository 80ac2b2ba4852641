"""The parts of the page that need no script: head, identity, limits, cost, method, raw files."""

from typing import Any

from kvreg.report.cost import PHASES
from kvreg.report.evidence import Data, Evidence
from kvreg.report.markup import Child, Markup, element, join
from kvreg.report.wording import headline, limitations, pending_cells

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
    "incomplete": "Incomplete",
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
        text = f"Unfinished sweep: {pending_cells(pending)} no result yet."
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
    if not rows:
        return element("p", {}, "Nothing was recorded.")
    return element(
        "dl",
        {"class": "identity"},
        [[element("dt", {}, label), element("dd", {}, value)] for label, value in rows],
    )


def _host(facts: Data | None) -> list[str]:
    """The GPUs, versions and topology in a host's facts (`kvreg.facts`), as far as known."""
    if not facts:
        return []
    names = [str(gpu.get("name") or "GPU") for gpu in facts.get("gpus") or []]
    found = [f"{names.count(name)} {TIMES} {name}" for name in sorted(set(names))]
    links = sorted(
        {
            link
            for row, line in enumerate(facts.get("topology") or [])
            for column, link in enumerate(line)
            if row != column
        }
    )
    if links:
        found.append(f"linked by {' and '.join(links)}")
    for name, version in (
        ("driver", (facts.get("driver") or {}).get("version")),
        ("torch", (facts.get("torch") or {}).get("version")),
        ("NCCL", ((facts.get("nccl") or {}).get("loaded") or {}).get("version")),
        ("Python", (facts.get("python") or {}).get("version")),
    ):
        if version:
            found.append(f"{name} {version}")
    return [", ".join(found)] if found else []


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} hours" if seconds >= 7200 else f"{seconds / 60:,.1f} minutes"


def cost(evidence: Evidence) -> Markup:
    """Wall-clock per cell by phase, as a section of its own; nothing where it is not known."""
    known = evidence.cost
    if not known:
        return Markup("")
    head = ["Degree", "Cells", *PHASES.values(), "All"]
    rows = [
        element(
            "tr",
            {},
            element("th", {"scope": "row"}, f"TP{entry['tp']}"),
            element("td", {"class": "number"}, entry["cells"]),
            [
                element("td", {"class": "number"}, f"{seconds:,.1f}")
                for seconds in (*entry["mean"].values(), entry["mean_total"])
            ],
        )
        for entry in known["by_tp"]
    ]
    rows.append(
        element(
            "tr",
            {},
            element("th", {"scope": "row"}, "All, in total"),
            element("td", {"class": "number"}, known["finished"]),
            [
                element("td", {"class": "number"}, f"{seconds:,.1f}")
                for seconds in (*known["total"].values(), known["total_s"])
            ],
        )
    )
    cells = [
        element("th", {"scope": "col", "class": None if index == 0 else "number"}, name)
        for index, name in enumerate(head)
    ]
    broken = f", {known['broken']} attempts cut off" if known["broken"] else ""
    gates = f", compatibility gates {_duration(known['gates_s'])}" if known["gates_s"] else ""
    caption = (
        f"Mean seconds of a measured cell, and the total of all {known['finished']} finished"
        f" attempts: {_duration(known['total_s'])}{gates}{broken}. Every attempt is in"
        " tables/cost.csv."
    )
    table = element(
        "table",
        {"class": "plain"},
        element("caption", {}, caption),
        element("thead", {}, element("tr", {}, cells)),
        element("tbody", {}, rows),
    )
    return element(
        "section",
        {"id": "cost", "aria-labelledby": "cost-title"},
        element("h2", {"id": "cost-title"}, "What it cost"),
        element("div", {"class": "scroll"}, table),
    )


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
