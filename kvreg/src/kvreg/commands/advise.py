"""``kvreg advise``."""

from pathlib import Path

import click

from kvreg.analysis.metrics import METRICS, PRIMARY
from kvreg.console import emit, handled, json_option


@click.command("advise")
@click.option("--model", required=True, help="As the evidence names it.")
@click.option("--input-tokens", required=True, type=click.IntRange(min=0))
@click.option("--output-tokens", required=True, type=click.IntRange(min=1))
@click.option("--concurrency", required=True, type=click.IntRange(min=1))
@click.option(
    "--evidence",
    required=True,
    type=click.Path(path_type=Path),
    help="A sweep directory or a cell table (CSV).",
)
@click.option(
    "--metric",
    type=click.Choice(list(METRICS)),
    default=PRIMARY,
    show_default=True,
    help="What decides where every degree fits.",
)
@json_option
@handled
def command(
    model: str,
    input_tokens: int,
    output_tokens: int,
    concurrency: int,
    evidence: Path,
    metric: str,
    as_json: bool,
) -> None:
    """Say which TP degree measured evidence speaks for, and why: capacity or performance.

    The answer comes from cells of exactly this model and token shape, at this concurrency or where
    both tested neighbours agree. Without such evidence the answer is "inconclusive": nothing is
    extrapolated. A higher degree is advised for performance only where its advantage is sustained
    at every larger tested concurrency. The evidence is named by its digests.

    \b
    Examples:
      kvreg advise --model Phi-4-mini-instruct --input-tokens 512 --output-tokens 256 \\
        --concurrency 32 --evidence ./m4
      kvreg advise --model Phi-4-mini-instruct --input-tokens 512 --output-tokens 256 \\
        --concurrency 32 --evidence cells.csv --metric ttft_ms --json
    """
    from kvreg.analysis.advice import Question, advice_text, advise
    from kvreg.analysis.table import read_evidence

    question = Question(model, input_tokens, output_tokens, concurrency, metric)
    emit(advise(question, read_evidence(evidence)).to_dict(), as_json, advice_text)
