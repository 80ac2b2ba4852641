"""``kvreg capacity``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvreg.capacity.architecture import DTYPES, KV_DTYPES
from kvreg.console import emit, handled, json_option
from kvreg.errors import NotFoundError, UsageError


class Numbers(click.ParamType):
    """Whole numbers above zero, separated by commas."""

    name = "N,N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """See `click.ParamType`."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            found = ()
        if not found or min(found) < 1:
            self.fail(f"{value!r} is not a list of numbers above zero", param, ctx)
        return found


@click.command("capacity")
@click.argument("config", metavar="MODEL_CONFIG", type=click.Path(path_type=Path))
@click.option("--tp", type=Numbers(), default="1,2", show_default=True, help="TP degrees.")
@click.option(
    "--boundary",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MIB",
    help="Memory that may be used on each GPU. Default: that of the evidence's plan.",
)
@click.option(
    "--overhead",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    metavar="MIB",
    help="What the engine uses beside weights and cache, from a measurement.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", *DTYPES]),
    default="auto",
    show_default=True,
    help="Of the weights; auto is what the configuration says.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", *KV_DTYPES]),
    default="auto",
    show_default=True,
    help="Of the cache; auto is that of the weights.",
)
@click.option(
    "--context",
    "contexts",
    type=Numbers(),
    help="Tokens of a sequence, prompt and answer. Default: the evidence's, else the model's most.",
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path),
    help="A sweep directory or a cell table: predicted against observed.",
)
@click.option("--model", help="Which model of the evidence this is. Default: the only one.")
@json_option
@handled
def command(
    config: Path,
    tp: tuple[int, ...],
    boundary: float | None,
    overhead: float,
    dtype: str,
    kv_dtype: str,
    contexts: tuple[int, ...] | None,
    evidence: Path | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Say what a model's weights and KV cache take at each TP degree, and what fits.

    MODEL_CONFIG is the config.json of a model, or its directory; no weights are needed. The cache
    of a sequence is 2 x layers x KV heads x head size x bytes x tokens; degrees divide heads,
    repeat KV heads that do not suffice, and pad the vocabulary. What an engine uses beside that is
    not arithmetic: --evidence shows it from a sweep.

    \b
    Examples:
      kvreg capacity ./Qwen2.5-3B-Instruct --boundary 14848 --context 2176
      kvreg capacity config.json --tp 1,2,4,8 --dtype float16 --json
      kvreg capacity config.json --evidence ./m4 --model Qwen2.5-3B-Instruct
    """
    from kvreg.capacity.architecture import read_architecture
    from kvreg.capacity.memory import Terms, capacity
    from kvreg.capacity.text import capacity_text

    arch = read_architecture(config)
    table = rows = None
    if evidence is not None:
        table, rows = _evidence(evidence, model)
        if boundary is None:
            boundary = table.identity.get("memory_boundary_mib")
    elif model is not None:
        raise UsageError("--model names a model of the evidence", remedy="give --evidence as well")
    weights = arch.dtype if dtype == "auto" else dtype
    terms = Terms(weights, weights if kv_dtype == "auto" else kv_dtype, boundary, overhead)
    if contexts is None:
        shapes = {(row.input_tokens or 0) + row.output_tokens for row in rows or ()}
        contexts = tuple(sorted(shapes)) or (arch.max_context,)
    found = capacity(arch, terms, tp, contexts, unquantized=dtype != "auto").to_dict()
    if evidence is not None and rows is not None:
        found = {**found, **_observed(arch, terms, table, rows, evidence)}
    emit(found, as_json, capacity_text)


def _evidence(path: Path, model: str | None) -> tuple[Any, list[Any]]:
    from kvreg.analysis.table import read_evidence

    table = read_evidence(path)
    models = sorted({row.model for row in table})
    if model is None and len(models) > 1:
        raise UsageError(
            "the evidence has more than one model",
            expected=f"--model with one of {', '.join(models)}",
        )
    chosen = model or models[0]
    rows = [row for row in table if row.model == chosen]
    if not rows:
        raise NotFoundError(f"the evidence has no cell of {chosen}", expected=", ".join(models))
    return table, rows


def _observed(
    arch: Any, terms: Any, table: Any, rows: list[Any], evidence: Path
) -> Mapping[str, Any]:
    from kvreg.capacity.evidence import beyond, observations, reservation

    model = rows[0].model
    reserved = reservation(evidence, model) if evidence.is_dir() else None
    found = observations(arch, terms, rows, reserved)
    return {
        "observed": [item.to_dict() for item in found],
        "beyond": beyond(found),
        "evidence": {"model": model, **table.identity},
    }
