"""What a report says in words: verdicts that are read at a glance, and what limits them."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvreg.report.evidence import Data, Evidence

PAYS, NEVER, GATED, UNKNOWN = "pays", "never", "gated", "unknown"

SYMBOLS = {
    "favourable": ("▲", "favourable"),
    "unfavourable": ("▽", "unfavourable"),
    "inconclusive": ("○", "inconclusive"),
    "gated": ("✕", "gated"),
}
"""Each verdict's sign, so that colour is never alone, and its word."""


@dataclass(frozen=True)
class Answer:
    """One crossover at a glance: its kind, the large text and the line below it."""

    kind: str
    large: str
    small: str


def answer(found: Data, concurrencies: list[int]) -> Answer:
    """What an entry of ``crossovers`` says."""
    value, candidate = found["first_sustained_favorable"], found["candidate_tp"]
    if isinstance(value, int):
        if found["at_top_of_grid"]:
            return Answer(PAYS, f"at {value}", f"TP{candidate} pays; nothing larger was tested")
        return Answer(PAYS, f"from {value}", f"TP{candidate} pays there and above")
    if value.startswith("RESOURCE_GATED@"):
        level = value.partition("@")[2]
        return Answer(GATED, f"gated at {level}", "memory boundary; no comparison at the top")
    if not found["estimable"]:
        return Answer(UNKNOWN, "not estimable", "fewer than two matched repetitions")
    if found["gated_concurrencies"]:
        return Answer(NEVER, "none", "no sustained gain; some levels gated")
    top = max(concurrencies, default=0)
    return Answer(NEVER, "none", f"no sustained gain up to {top}")


def headline(evidence: Evidence) -> str:
    """The finding in one sentence."""
    analysis = evidence.analysis
    if analysis["label"] is not None:
        return f"Means only ({analysis['label']}): no intervals and no crossovers are claimed."
    crossovers = analysis["crossovers"]
    if not crossovers:
        return "Nothing here could be compared."
    levels = analysis["design"]["concurrencies"]
    counts = dict.fromkeys((PAYS, NEVER, GATED, UNKNOWN), 0)
    for found in crossovers:
        counts[answer(found, levels).kind] += 1
    pair, total = analysis["pairs"][0], len(crossovers)
    said = [
        f"pays from some tested concurrency on in {counts[PAYS]}" if counts[PAYS] else "",
        f"shows no sustained gain in {counts[NEVER]}" if counts[NEVER] else "",
        f"meets the memory boundary in {counts[GATED]}" if counts[GATED] else "",
        f"could not be judged in {counts[UNKNOWN]}" if counts[UNKNOWN] else "",
    ]
    listed = [part for part in said if part]
    text = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    subject = "the one combination" if total == 1 else f"the {total} combinations"
    return (
        f"By output throughput, TP{pair['candidate_tp']} against TP{pair['baseline_tp']} {text}"
        f" of {subject} of model and token shape."
    )


def limitations(evidence: Evidence) -> list[str]:
    """What the reader must know before using a number; what applies, most urgent first."""
    return [*_provenance(evidence), *_inference(evidence), *_scope(evidence)]


def _provenance(evidence: Evidence) -> Iterator[str]:
    identity = evidence.analysis["identity"]
    if evidence.simulated:
        yield "These numbers are simulated: no GPU produced them."
    if identity.get("pending"):
        yield (
            f"Unfinished: {identity['pending']} planned cells have no result yet;"
            " everything here is provisional."
        )
    if identity.get("source") != "sweep":
        yield "From a bare cell table: nothing ties these numbers to an artifact, a host or a plan."
    else:
        unknown = [name for name in ("artifact", "facts") if not identity.get(name)]
        if unknown:
            yield f"Not recorded with the sweep: {' and '.join(unknown)} digest."


def _inference(evidence: Evidence) -> Iterator[str]:
    analysis = evidence.analysis
    if analysis["label"] is not None:
        yield f"{analysis['label']}: repetitions inside one server are no replications."
        return
    levels = ", ".join(map(str, analysis["design"]["concurrencies"]))
    yield f"A crossover is known as finely as the grid ({levels}): it lies below the level named."
    top = [_subject(found) for found in analysis["crossovers"] if found["at_top_of_grid"]]
    if top:
        yield f"Favourable at the largest level alone, with nothing above: {'; '.join(top)}."
    changed = [
        _subject(found)
        for found in analysis["crossovers"]
        if found["holm_first_sustained_favorable"] != found["first_sustained_favorable"]
    ]
    yield (
        f"Corrected for many comparisons (Holm), the answer changes for {'; '.join(changed)}."
        if changed
        else "Corrected for many comparisons (Holm), no answer changes."
    )
    missing = sum(len(point["left_out"]) for point in analysis["points"] if not point["gated"])
    if missing:
        yield f"{missing} repetitions had no partner and were left out, not imputed."
    for pairs, effect in analysis["power"]["pairs"].items():
        yield (
            f"With {pairs} pairs, differences below {effect:.2f} standard deviations are likely"
            f" missed ({analysis['power']['power']:.0%} power)."
        )


def _scope(evidence: Evidence) -> Iterator[str]:
    analysis = evidence.analysis
    if analysis["design"]["states"].get("RESOURCE_GATED"):
        yield "Gated is not zero and not a defeat: no valid throughput exists there."
    negative = [
        f"{gate['model']} (TP{gate['tp']})"
        for gate in analysis["gates"]
        if gate["state"] != "COMPATIBLE"
    ]
    if negative:
        yield f"Did not pass the compatibility gate and is in no table: {', '.join(negative)}."
    yield (
        "Compatibility, capacity, performance and quality are different questions;"
        " nothing here is about the quality of generated text."
    )
    yield (
        "The communication measurement is context: it does not explain serving results by itself."
        if evidence.communication
        else "Communication between the GPUs was not measured."
    )
    yield "It holds for the tested models, shapes, runtime, topology and memory boundary only."


def _subject(found: Data) -> str:
    return f"{found['model']} {found['workload']}"
