"""``kvreg sweep analyze``."""

from pathlib import Path
from typing import Any

import click

from kvreg.analysis.metrics import METRICS
from kvreg.console import emit, handled, json_option
from kvreg.errors import UsageError


@click.command("analyze")
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--cells", type=click.Path(path_type=Path), help="A bare cell table (CSV) instead.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=click.Choice(list(METRICS)),
    help="Only these, and always output_tokens_per_s. Default: all six.",
)
@click.option(
    "--baseline",
    type=click.IntRange(min=1),
    help="TP degree that each higher one is compared with. Default: the smallest.",
)
@click.option(
    "--points",
    is_flag=True,
    help="Also every interval and what every cell cost (the JSON has them always).",
)
@json_option
@handled
def command(
    directory: Path | None,
    cells: Path | None,
    metrics: tuple[str, ...],
    baseline: int | None,
    points: bool,
    as_json: bool,
) -> None:
    """Judge where a higher TP degree starts to pay, from a sweep or a table of cells.

    Repetitions of both arms are matched by number; a verdict is the side of zero on which the
    paired 95 % interval lies. The crossover is the smallest tested concurrency that is favourable
    there and at every larger tested one; gated concurrencies are never favourable, and at the top
    of the grid they make the result RESOURCE_GATED@C. Each metric has a table of its own. A model
    and token shape with planned cells left is incomplete and has no verdict; with one TP degree
    alone there are means and no crossover. Of a sweep, seconds by phase are told as well.

    \b
    Columns of a cell table, in any order, unmeasured values empty:
      model,workload,input_tokens,output_tokens,concurrency,tp,repetition,state,
      output_tokens_per_s,requests_per_s,ttft_ms,tpot_ms,itl_ms,e2e_ms,max_gpu_memory_mib
    state is MEASURED, RESOURCE_GATED, INCOMPATIBLE or FAILED; one row is one fresh server.

    \b
    Examples:
      kvreg sweep analyze ./m4
      kvreg sweep analyze --cells cells.csv --json
      kvreg sweep analyze ./m4 --metric ttft_ms --points
    """
    from kvreg.analysis import analyze
    from kvreg.analysis.table import read_cells, rows_of
    from kvreg.analysis.text import analysis_text
    from kvreg.report.cost import cost_of, cost_text

    if (directory is None) == (cells is None):
        raise UsageError(
            "name either a sweep directory or a cell table",
            remedy="kvreg sweep analyze DIR, or kvreg sweep analyze --cells cells.csv",
        )
    table = rows_of(directory) if directory is not None else read_cells(cells)  # type: ignore[arg-type]
    found = analyze(table, baseline=baseline, metrics=metrics or tuple(METRICS)).to_dict()
    if directory is not None:
        found["cost"] = cost_of(directory)

    def text(data: dict[str, Any]) -> str:
        parts = [analysis_text(data, points=points)]
        if cost := data.get("cost"):
            parts.append(cost_text(cost, cells=points))
        return "\n\n".join(parts)

    emit(found, as_json, text)
