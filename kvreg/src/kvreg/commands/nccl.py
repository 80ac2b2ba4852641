"""``kvreg nccl``: measure communication between ranks and fit it."""

from pathlib import Path
from typing import Any

import click

from kvreg.console import emit, handled, json_option, note, progress
from kvreg.facts import require_own_host
from kvreg.nccl.design import (
    BACKENDS,
    DEFAULT_PAYLOADS,
    ELEMENT_BYTES,
    Design,
    human_size,
    parse_payloads,
)
from kvreg.nccl.fit import STATISTICS, analyse
from kvreg.nccl.measurement import choose_backend, measure, survey_host
from kvreg.nccl.record import open_record, read_record

statistic_option = click.option(
    "--statistic",
    type=click.Choice(STATISTICS),
    default="mean",
    show_default=True,
    help="How the collectives of one repetition become one value.",
)


@click.group("nccl", invoke_without_command=True)
@click.option(
    "--backend", type=click.Choice(BACKENDS), help="Default: nccl where there is a GPU, else gloo."
)
@click.option(
    "--payloads",
    metavar="SIZES",
    help="Bytes per rank, such as 1KiB,64KiB,16MiB."
    f" Default: {len(DEFAULT_PAYLOADS)} sizes, {human_size(DEFAULT_PAYLOADS[0])} to"
    f" {human_size(DEFAULT_PAYLOADS[-1])}.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often everything is measured, each time in fresh processes.",
)
@click.option(
    "--collectives",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Timed all-reduces per payload, repetition and timer.",
)
@click.option("--tp", "ranks", type=click.IntRange(min=2), default=2, show_default=True,
              help="How many ranks, one GPU each.")  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(list(ELEMENT_BYTES)), default="float32", show_default=True
)
@click.option("--no-peer", is_flag=True, help="Without peer access: NCCL_P2P_DISABLE=1.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("nccl.jsonl"),
    show_default=True,
    help="Where observations are appended; a file that a session left is gone on with.",
)
@click.option("--python", metavar="PATH", help="An interpreter that has torch. Default: this one.")
@click.option("--timeout", type=click.FloatRange(min=1), default=900.0, show_default=True,
              help="Seconds that one repetition may take.")  # fmt: skip
@statistic_option
@json_option
@click.pass_context
@handled
def command(
    context: click.Context,
    backend: str | None,
    payloads: str | None,
    repetitions: int,
    collectives: int,
    ranks: int,
    dtype: str,
    no_peer: bool,
    out: Path,
    python: str | None,
    timeout: float,
    statistic: str,
    as_json: bool,
) -> None:
    """Measure all-reduce between GPUs and fit latency and bandwidth.

    Every payload is timed in fresh processes per repetition, by the host's clock, by device events
    and in captured graphs; the slowest rank of each collective is the observation. The default
    design gives 5,000 observations a timer. Where there is no GPU, host memory is measured with
    gloo, and the result says so. A measurement that was stopped goes on at its next repetition.

    \b
    Examples:
      kvreg nccl --out nccl.jsonl
      kvreg nccl --no-peer --out nccl-no-peer.jsonl
      kvreg nccl --backend gloo --payloads 1KiB,1MiB --repetitions 3 --json
      kvreg nccl fit nccl.jsonl
    """
    if context.invoked_subcommand is not None:
        return
    require_own_host("measuring")
    sizes = parse_payloads(payloads) if payloads else DEFAULT_PAYLOADS
    host = survey_host(python)
    design = Design(
        backend=choose_backend(backend, ranks, host),
        ranks=ranks,
        payloads=sizes,
        repetitions=repetitions,
        collectives=collectives,
        dtype=dtype,
        peer=not no_peer,
    )
    if design.backend == "gloo":
        note("measuring host memory with gloo: this says nothing about GPUs")
    with open_record(out, design) as record:
        missing = len(record.missing())
        if missing < design.repetitions:
            note(f"{out}: {design.repetitions - missing} of {design.repetitions} repetitions kept")
        with progress(missing, f"{design.backend} all-reduce", unit="rep") as bar:
            measure(record, host, timeout_s=timeout, done=bar.update)
    emit(analyse(record, statistic=statistic), as_json, _text)


@command.command("fit")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@statistic_option
@json_option
@handled
def fit(file: Path, statistic: str, as_json: bool) -> None:
    """Fit T(S) = a + S/b to a measurement, plain and by relative error.

    Needs numpy and scipy, and no GPU.

    \b
    Examples:
      kvreg nccl fit nccl.jsonl
      kvreg nccl fit nccl.jsonl --statistic median --json
    """
    emit(analyse(read_record(file), statistic=statistic), as_json, _text)


def _text(result: dict[str, Any]) -> str:
    design, environment = result["design"], result["environment"]
    devices = sorted({device["name"] for device in environment["devices"]})
    where = ", ".join(devices) if design["backend"] == "nccl" else "host memory, no GPU"
    lines = [
        f"{design['ranks']} ranks over {design['backend']} ({where}), {design['dtype']}"
        + ("" if design["peer"] else ", peer access off")
        + ("  SIMULATED" if result["simulated"] else ""),
        f"torch {environment['torch']}, NCCL {environment['nccl'] or 'none'},"
        f" design {result['design_digest']}",
        f"{len(result['repetitions'])} of {design['repetitions']} repetitions,"
        f" {design['collectives']} collectives each; {result['statistic']} of the slowest rank",
    ]
    if variables := environment["variables"]:
        lines.append("  ".join(f"{name}={value}" for name, value in variables.items()))
    for timer, entry in result["timers"].items():
        lines += ["", f"{timer}: {entry['meaning']}"]
        lines += _timer(entry, result["level"])
    return "\n".join(lines)


def _timer(entry: dict[str, Any], level: float) -> list[str]:
    if not entry["available"]:
        return [f"  not available: {entry['reason']}"]
    lines = [
        f"  {'payload':>9} {'us':>11} {'p5':>11} {'p95':>11} {'alg GB/s':>9} {'bus GB/s':>9}"
        f" {'off plain':>10} {'relative':>9}"
    ]
    for row in entry["payloads"]:
        off = [row["residuals"].get(name) for name in ("plain", "relative")]
        shown = ["-" if residual is None else f"{residual['relative']:+.1%}" for residual in off]
        lines.append(
            f"  {human_size(row['bytes']):>9} {row['us']:>11.2f} {row['p05_us']:>11.2f}"
            f" {row['p95_us']:>11.2f} {row['algorithm_bandwidth_GB_per_s']:>9.3f}"
            f" {row['bus_bandwidth_GB_per_s']:>9.3f} {shown[0]:>10} {shown[1]:>9}"
        )
    for name, fitted in entry["fits"].items():
        lines.append(
            f"  {name:<9} a = {_interval(fitted['intercept_us'], level)} us,"
            f" b = {_interval(fitted['algorithm_bandwidth_GB_per_s'], level)} GB/s"
            f" (bus {_interval(fitted['bus_bandwidth_GB_per_s'], level)})"
        )
    return lines


def _interval(estimate: dict[str, float | None], level: float) -> str:
    value, low, high = (
        "open" if estimate[key] is None else f"{estimate[key]:.4g}"
        for key in ("value", "low", "high")
    )
    return f"{value} [{low}, {high}] {level:.0%}"
