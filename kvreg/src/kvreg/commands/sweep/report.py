"""``kvreg sweep report``."""

from pathlib import Path
from typing import Any

import click

from kvreg.console import emit, handled, json_option, progress
from kvreg.errors import NotFoundError, UsageError


@click.command("report")
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--cells", type=click.Path(path_type=Path), help="A bare cell table (CSV) instead.")
@click.option(
    "--nccl",
    "communication",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A measurement of kvreg nccl; may be given more than once.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory to write into.",
)
@click.option("--title", help="The page's title. Default: the plan's or the file's name.")
@click.option(
    "--boundary",
    type=click.FloatRange(min=1),
    metavar="MIB",
    help="Memory boundary of each GPU. Default: the plan's.",
)
@click.option("--simulated", is_flag=True, help="Say that no GPU produced these numbers.")
@json_option
@handled
def command(
    directory: Path | None,
    cells: Path | None,
    communication: tuple[Path, ...],
    out: Path,
    title: str | None,
    boundary: float | None,
    simulated: bool,
    as_json: bool,
) -> None:
    """Write tables, figures and one page that holds everything.

    OUT/index.html is a single file that loads nothing: verdicts, charts that answer to the
    pointer, tables that sort and filter, what the numbers came from and what they do not say.
    OUT/tables has CSV and JSON, OUT/figures SVG and PNG. The same input gives the same bytes.
    Needs scipy and matplotlib, which notebooks have.

    \b
    Examples:
      kvreg sweep report ./m4 --out ./m4-report
      kvreg sweep report ./m4 --nccl nccl.jsonl --nccl nccl-no-peer.jsonl --out ./m4-report
      kvreg sweep report --cells cells.csv --boundary 14848 --out ./report
    """
    source = directory if directory is not None else cells
    if source is None or (directory is not None and cells is not None):
        raise UsageError(
            "name either a sweep directory or a cell table",
            remedy="kvreg sweep report DIR --out OUT, or --cells cells.csv",
        )
    if directory is not None and out.resolve().is_relative_to(directory.resolve()):
        raise UsageError(
            "the report would become part of the sweep that it is drawn from",
            expected=f"a directory outside {directory}",
            found=str(out),
        )
    _require_libraries()
    from kvreg.report.evidence import gather
    from kvreg.report.figures import figure_count
    from kvreg.report.publication import publish

    evidence = gather(
        source,
        communication=communication,
        title=title,
        simulated=simulated,
        boundary_mib=boundary,
    )
    with progress(figure_count(evidence), "figures", unit="file") as bar:
        files = publish(evidence, out, done=bar.update)
    emit({"page": str(out / "index.html"), "files": files}, as_json, _text)


def _require_libraries() -> None:
    try:
        import matplotlib  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise NotFoundError(
            f"a report needs scipy and matplotlib, and there is no {error.name} here",
            remedy="pip install scipy matplotlib",
        ) from None


def _text(result: dict[str, Any]) -> str:
    folders: dict[str, int] = {}
    for name in result["files"]:
        folders[name.rpartition("/")[0]] = folders.get(name.rpartition("/")[0], 0) + 1
    listed = ", ".join(f"{count} in {folder}/" for folder, count in folders.items() if folder)
    return f"{result['page']}\n  and {listed}"
