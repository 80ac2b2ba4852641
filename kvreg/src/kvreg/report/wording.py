"""What a report says in words: verdicts that are read at a glance, and what limits them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvreg.report.evidence import Data, Evidence

PAYS, NEVER, GATED, UNKNOWN = "pays", "never", "gated", "unknown"

MINUS = "\N{MINUS SIGN}"

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


def answer(
    found: Data, effects: Mapping[int, float | None], by_means: int | str | None = None
) -> Answer:
    """What an entry of ``crossovers`` says.

    `effects` are the relative differences at the tested concurrencies, None where there is no
    valid one; `by_means` is the descriptive crossover, told where nothing can be inferred.
    """
    value, candidate = found["first_sustained_favorable"], found["candidate_tp"]
    if isinstance(value, int):
        if found["at_top_of_grid"]:
            said = _effect(effects, value) or f"TP{candidate} pays"
            return Answer(PAYS, f"at {value}", f"{said}; nothing larger was tested")
        sizes = [
            text
            for level in (value, max(effects, default=value))
            if (text := _effect(effects, level))
        ]
        return Answer(
            PAYS, f"from {value}", ", ".join(sizes) or f"TP{candidate} pays from there on"
        )
    if found["pending"]:
        return Answer(UNKNOWN, value, f"{pending_cells(found['pending'])} no result yet")
    if value.startswith("RESOURCE_GATED@"):
        valid = [level for level, effect in effects.items() if effect is not None]
        below = f"; {_effect(effects, max(valid))} below it" if valid else ""
        return Answer(GATED, f"gated at {value.partition('@')[2]}", f"memory boundary{below}")
    if not found["estimable"]:
        pattern = f"; by means alone: from {by_means}" if isinstance(by_means, int) else ""
        return Answer(UNKNOWN, "not estimable", f"fewer than two matched repetitions{pattern}")
    if found["gated_concurrencies"]:
        return Answer(NEVER, "none", "no sustained gain; some levels gated")
    said = _effect(effects, max(effects, default=0))
    return Answer(NEVER, "none", "no sustained gain" + (f"; {said}" if said else ""))


def _effect(effects: Mapping[int, float | None], level: int) -> str:
    effect = effects.get(level)
    return "" if effect is None else f"{signed_percent(effect)} at {level}"


def signed_percent(share: float) -> str:
    """A share as a percentage with its sign.

    >>> signed_percent(-0.046)
    '\N{MINUS SIGN}5%'
    """
    return f"{'+' if share >= 0 else MINUS}{abs(share):.0%}"


def headline(evidence: Evidence) -> str:
    """The finding in one sentence."""
    analysis = evidence.analysis
    if analysis["label"] is not None:
        return f"Means only ({analysis['label']}): no intervals and no crossovers are claimed."
    if analysis["alone"]:
        return f"{analysis['alone']}."
    crossovers = analysis["crossovers"]
    if crossovers and all(found["pending"] for found in crossovers):
        return "The sweep is unfinished: there is no verdict on any model and token shape yet."
    if not crossovers:
        return "Nothing here could be compared."
    counts = dict.fromkeys((PAYS, NEVER, GATED, UNKNOWN), 0)
    for found in crossovers:
        counts[answer(found, {}).kind] += 1
    pair, total = analysis["pairs"][0], len(crossovers)
    if counts[UNKNOWN] == total:
        return (
            f"No verdict on TP{pair['candidate_tp']} against TP{pair['baseline_tp']}:"
            " there are fewer than two matched repetitions. Means alone are a pattern."
        )
    said = [
        f"TP{pair['candidate_tp']} beats TP{pair['baseline_tp']} from some concurrency on in"
        f" {counts[PAYS] or 'none'} of {total} combination{'' if total == 1 else 's'} of model and"
        " token shape",
        f"{counts[NEVER]} {_verb(counts[NEVER], 'show')} no sustained gain",
        f"{counts[GATED]} {_verb(counts[GATED], 'meet')} the memory boundary",
        f"{counts[UNKNOWN]} could not be judged",
    ]
    kept = [text for text, kind in zip(said, counts, strict=True) if counts[kind] or kind == PAYS]
    return f"By output throughput, {'; '.join(kept)}."


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def effects_of(
    analysis: Data, pair: Data, metric: str
) -> dict[tuple[str, str], dict[int, float | None]]:
    """Relative differences by (model, workload) and concurrency; None where gated or missing."""
    found: dict[tuple[str, str], dict[int, float | None]] = {}
    for point in analysis["points"]:
        if all(point[key] == pair[key] for key in ("baseline_tp", "candidate_tp")):
            judged = point["metrics"].get(metric)
            if judged is not None:
                effect = None if point["gated"] else judged["relative"]
                subject = (point["model"], point["workload"])
                found.setdefault(subject, {})[point["concurrency"]] = effect
    return found


def limitations(evidence: Evidence) -> list[str]:
    """What the reader must know before using a number; what applies, most urgent first."""
    return [*_provenance(evidence), *_inference(evidence), *_scope(evidence)]


def _provenance(evidence: Evidence) -> Iterator[str]:
    identity = evidence.analysis["identity"]
    if evidence.simulated:
        yield "These numbers are simulated: no GPU produced them."
    if identity.get("pending"):
        yield (
            f"Unfinished: {pending_cells(identity['pending'])} no result yet;"
            " everything here is provisional."
        )
    if identity.get("source") != "sweep":
        yield "From a bare cell table: nothing ties these numbers to an artifact, a host or a plan."
    else:
        unknown = [name for name in ("artifact", "facts") if not identity.get(name)]
        if unknown:
            yield f"Not recorded with the sweep: {' and '.join(unknown)} digest."


def pending_cells(count: int) -> str:
    """So many planned cells have; the sentence goes on with what they have not."""
    return "1 planned cell has" if count == 1 else f"{count} planned cells have"


def _inference(evidence: Evidence) -> Iterator[str]:
    analysis = evidence.analysis
    if analysis["label"] is not None:
        yield f"{analysis['label']}: repetitions inside one server are no replications."
        return
    if analysis["alone"]:
        yield "One degree alone: nothing here says whether another GPU helps."
        return
    levels = ", ".join(map(str, analysis["design"]["concurrencies"]))
    yield (
        f"A crossover is known as finely as the grid ({levels}): it lies between the level named"
        " and the one below."
    )
    top = [_subject(found) for found in analysis["crossovers"] if found["at_top_of_grid"]]
    if top:
        yield f"Favourable at the largest level alone, with nothing above: {'; '.join(top)}."
    if not any(found["estimable"] for found in analysis["crossovers"]):
        yield "One server for each cell shows a pattern; it is no basis for an inference."
        return
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
