"""``kvreg sweep compare``."""

from pathlib import Path

import click

from kvreg.analysis.metrics import METRICS, PRIMARY
from kvreg.console import emit, handled, json_option


@click.command("compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--variable",
    metavar="GROUP",
    help="What is under study. Default: the one group in which the two differ.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="GROUP|KEY",
    help="Compare although this differs too; may be repeated.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=click.Choice(list(METRICS)),
    help="Tables of these (the JSON has all). Default: output_tokens_per_s.",
)
@json_option
@handled
def command(
    a: Path,
    b: Path,
    variable: str | None,
    allowed: tuple[str, ...],
    metrics: tuple[str, ...],
    as_json: bool,
) -> None:
    """Put two sweeps side by side that differ in one variable.

    Conditions that are not recorded count as different. A comparison of sweeps that differ in more
    than the variable under study is refused, with every difference named, unless --allow says that
    you know.

    \b
    Groups: gpu, interconnect, driver, runtime, host, settings, model, workload, design, protocol,
    boundary, tool, unknown.

    \b
    Examples:
      kvreg sweep compare ./m4-t4 ./m4-l4 --variable gpu --allow driver --allow boundary
      kvreg sweep compare ./vllm-0.18 ./vllm-0.19 --json
      kvreg sweep compare a.csv b.csv --allow unknown
    """
    from kvreg.analysis.comparison import compare, comparison_text
    from kvreg.analysis.conditions import GROUPS
    from kvreg.errors import UsageError

    if variable is not None and (variable not in GROUPS or variable == "unknown"):
        raise UsageError(
            "there is no such variable",
            expected=", ".join(name for name in GROUPS if name != "unknown"),
            found=variable,
        )
    found = compare(a, b, variable=variable, allowed=allowed)
    emit(found.to_dict(), as_json, lambda data: comparison_text(data, metrics or (PRIMARY,)))
