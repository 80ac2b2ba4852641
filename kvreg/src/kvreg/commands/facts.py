"""``kvreg facts``."""

from pathlib import Path

import click

from kvreg.commands.options import facts_option, home_option
from kvreg.console import emit, handled, json_option, note


@click.command("facts")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the JSON to this file as well.",
)
@click.option(
    "--import-torch",
    is_flag=True,
    help="Ask torch itself instead of its files: takes seconds.",
)
@facts_option
@home_option
@json_option
@handled
def command(
    output: Path | None,
    import_torch: bool,
    facts_file: Path | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Print what is known of this host, as text or JSON.

    Nothing is imported or started for it but nvidia-smi where NVML's Python module is missing.
    What could not be found out is listed with the reason. The JSON is what --facts of other
    commands reads, so that a report can be replayed on another machine. It holds versions, sizes,
    paths and the environment variables of CUDA, NCCL, torch and vLLM, and no secrets.

    \b
    Examples:
      kvreg facts
      kvreg facts --json
      kvreg facts --output facts.json
      kvreg facts --facts facts.json
    """
    from kvreg.facts import collect, load, replayed
    from kvreg.facts.files import save
    from kvreg.facts.text import text

    facts_file = facts_file or replayed()
    found = load(facts_file) if facts_file else collect(import_torch=import_torch, home=home)
    if output is not None:
        save(found, output)
        note(f"facts {found.digest} are in {output}")
    emit(found, as_json, text)
