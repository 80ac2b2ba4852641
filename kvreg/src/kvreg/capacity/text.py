"""A capacity as text."""

from collections.abc import Mapping
from typing import Any

from kvreg.analysis.text import grid
from kvreg.capacity.memory import MIB

Data = Mapping[str, Any]


def capacity_text(data: Data) -> str:
    """The text of `Capacity.to_dict`, with ``observed`` where there is evidence."""
    parts = [_model(data), _degrees(data)]
    if data.get("observed"):
        parts.append(_observed(data))
    return "\n\n".join(part for part in parts if part)


def _model(data: Data) -> str:
    model, terms = data["model"], data["terms"]
    lines = [f"{model['model_type']}: {model['parameters']:,} parameters"]
    if model["experts"]:
        experts = model["experts"]
        lines[0] += f", {model['active_parameters']:,} per token"
        lines.append(
            f"  {experts['used']} of {experts['count']} experts in {experts['layers']} of "
            f"{model['layers']} layers; all of them are held"
        )
    tied = "tied embeddings" if model["tied_embeddings"] else "an output head of its own"
    lines.append(f"  {tied}; vocabulary padded to {model['padded_vocabulary']:,} rows")
    lines.append(
        f"  KV cache: 2 x {model['layers']} layers x {model['kv_heads']} heads x "
        f"{model['head_dim']} x {terms['kv_dtype']} = {data['kv_bytes_per_token']:,} bytes a token"
    )
    if model["sliding_layers"]:
        lines.append(
            f"  {model['sliding_layers']} layers keep no more than {model['window']} tokens"
        )
    if model["quantization"]:
        lines.append(
            f"  quantized with {model['quantization']}: weights counted as if they were not"
        )
    return "\n".join(lines)


def _degrees(data: Data) -> str:
    terms = data["terms"]
    rows: list[list[object]] = []
    for degree in data["degrees"]:
        if degree["obstacle"]:
            rows.append([f"TP{degree['tp']}", *[None] * 5, degree["obstacle"]])
            continue
        note = "KV heads repeated" if degree["kv_heads_replicated"] else ""
        if degree["weights_fit"] is False:
            note = "weights alone do not fit"
        for sequence in degree["sequences"]:
            budget = degree["kv_budget_bytes_per_gpu"]
            rows.append(
                [
                    f"TP{degree['tp']}",
                    degree["weight_bytes_per_gpu"] / MIB,
                    None if budget is None else budget / MIB,
                    sequence["tokens"],
                    sequence["kv_bytes_per_gpu_in_blocks"] / MIB,
                    sequence["concurrency"],
                    note,
                ]
            )
    boundary = (
        f"under {terms['boundary_mib']:g} MiB"
        + (f" less {terms['overhead_mib']:g} of the engine" if terms["overhead_mib"] else "")
        if terms["boundary_mib"] is not None
        else "no boundary was given"
    )
    header = ["", "weights", "left for KV", "tokens", "KV/sequence", "sequences", ""]
    return (
        f"MiB per GPU, weights as {terms['dtype']}, {boundary}\n{grid(header, rows)}\n"
        "a bound from arithmetic: context, activations, graphs and fragmentation come on top"
    )


def _observed(data: Data) -> str:
    rows = [
        [
            f"{item['workload']} TP{item['tp']}",
            item["concurrency"],
            item["need_mib"],
            item["reserved_mib"],
            item["observed_mib"],
            item["beyond_mib"],
            f"{item['gated']}/{item['repetitions']}",
            item["outcome"],
        ]
        for item in data["observed"]
    ]
    counts: dict[str, int] = {}
    for item in data["observed"]:
        counts[item["outcome"]] = counts.get(item["outcome"], 0) + 1
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    header = ["", "C", "need", "reserved", "observed", "beyond", "gated", ""]
    own = "; ".join(
        f"TP{tp} {found['median_mib']:.0f} MiB in the median, {found['max_mib']:.0f} at most"
        for tp, found in data["beyond"].items()
    )
    return f"predicted against observed, MiB per GPU: {summary}\n{grid(header, rows)}" + (
        f"\nthe engine's own, beyond the prediction (for --overhead): {own}" if own else ""
    )
