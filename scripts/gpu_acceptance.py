#!/usr/bin/env python3
"""Accepts a runtime on a host with GPUs: everything that the product promises, once, offline.

    python3 scripts/gpu_acceptance.py t4x2-cu128 --registry oci-layout:/kaggle/input/t4x2-cu128
    python3 scripts/gpu_acceptance.py h200-cu130 --registry oci-layout:dist/pack/h200-cu130 \\
        --probe h200-probe --refused t4x2-cu128 --budget 540 --out "$OUT"

In order: the host's facts; `doctor --strict`; profiles of other hosts refused; the artifact pulled
from where it lies, the host unchanged by it; the staged runtime held against the host, and the
probe; vLLM and its modules imported; native kernels against torch; `kvreg.LLM` generates; `kvreg
serve` serves; a cell past a low memory boundary; all-reduce where there are two GPUs; a sweep whose
runner is killed in the middle and resumed; capacity predicted against observed, tables and report;
the evidence packed, and attached to the artifact where `registry` is installed.

The model has the shape of a 3B decoder and dummy weights, so nothing is downloaded. Stages that
passed are not run again: a session that ends early (`--budget`) is gone on with by the same
command, on the same machine, or on another one with `--restore` and the archive that `--out`
received. One that failed is tried again. The exit status is 0 when everything passed, 1 when
something failed, 75 when something is left for another session.

Standard library alone; kvreg is the installed one, or this checkout's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from acceptance.common import Acceptance, Choices
from acceptance.stages import STAGES
from acceptance.state import (
    FAILED,
    LEFT,
    PAGE,
    PASSED,
    RESULTS,
    SKIPPED,
    Commands,
    NoTime,
    Outcome,
    Record,
    Stage,
    StageFailed,
    client_command,
    restore,
    save,
    stamp,
)
from acceptance.summary import table

ROOT = Path(__file__).resolve().parents[1]
TRY_AGAIN = 75
DAY = 86_400.0

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left; see the module."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    work = options.work.absolute()
    if options.restore:
        restore(options.restore, work)
    record = Record(work / RESULTS)
    record.sessions.append(
        {"began": stamp(), "arguments": sys.argv[1:] if arguments is None else list(arguments)}
    )
    kvreg, environment = client_command(ROOT)
    environment |= OFFLINE | {"KVREG_HOME": str(work / "home")}
    if options.inputs:
        environment["KVREG_INPUTS"] = ":".join(str(path.absolute()) for path in options.inputs)
    commands = Commands(work / RESULTS / "logs", kvreg, environment)
    deadline = began + options.budget if options.budget else began + DAY
    acceptance = Acceptance(_choices(options, work), commands, deadline)
    for stage in STAGES:
        outcome = _run(stage, acceptance, record, options)
        if outcome is None:
            continue
        record.add(outcome)
        print(
            f"{outcome.state:>8}  {stage.name}  {outcome.seconds:.0f} s  {outcome.reason[:600]}",
            flush=True,
        )
    record.sessions[-1]["seconds"] = round(time.monotonic() - began, 1)
    record.write()
    (work / RESULTS / PAGE).write_text(table(options.profile, record), "utf-8")
    if options.out:
        for path in save(work / RESULTS, options.out):
            print(f"   saved  {path} ({path.stat().st_size:,} bytes)")
    states = {outcome.state for outcome in record.outcomes.values()}
    if FAILED in states:
        return 1
    return TRY_AGAIN if LEFT in states else 0


def _run(
    stage: Stage, acceptance: Acceptance, record: Record, options: argparse.Namespace
) -> Outcome | None:
    """Run a stage, or say why not; None when there is nothing to say."""
    if options.stages and stage.name not in options.stages:
        return None
    known = record.outcomes.get(stage.name)
    if record.passed(stage.name) and not stage.again:
        return None
    if known is not None and known.state == FAILED and not options.retry:
        return None
    if stage.name in options.skip or (stage.name == "llm" and options.engine_command):
        why = "not wanted" if stage.name in options.skip else "another engine serves"
        return Outcome(stage.name, SKIPPED, why, ended=stamp())
    for needed in stage.needs:
        found = record.outcomes.get(needed)
        if found is None or found.state in (FAILED, LEFT):
            return Outcome(stage.name, LEFT, f"{needed} has not passed", ended=stamp())
    if acceptance.left < stage.seconds:
        text = f"{acceptance.left:.0f} s are left, {stage.seconds:.0f} would be needed"
        return Outcome(stage.name, LEFT, text, ended=stamp())
    acceptance.commands.stage = stage.name
    clock = time.monotonic()
    state, reason, facts = PASSED, "", {}
    try:
        facts = dict(stage.run(acceptance))
    except NoTime as error:
        state, reason = LEFT, str(error)
    except StageFailed as error:
        state, reason = FAILED, str(error)
    except Exception as error:  # a stage is never to keep the later ones from running
        state, reason = FAILED, f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - clock, 1)
    return Outcome(stage.name, state, reason, seconds, stamp(), facts)


def _choices(options: argparse.Namespace, work: Path) -> Choices:
    return Choices(
        profile=options.profile,
        probe=options.probe,
        refused=tuple(options.refused),
        work=work,
        registry=options.registry,
        evidence_registry=options.evidence_registry,
        tp=options.tp,
        concurrency=options.concurrency,
        repetitions=options.repetitions,
        measure_s=options.measure_s,
        engine_command=options.engine_command,
        sampler=options.sampler,
        low_boundary=options.low_boundary,
        options=tuple(options.option),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("profile", help="what the host shall be accepted for")
    add("--registry", metavar="REF", help="where the artifact is; default: what kvreg pull tries")
    add(
        "--inputs",
        type=Path,
        nargs="*",
        default=[],
        help="folders with packed layouts (KVREG_INPUTS)",
    )
    add("--probe", metavar="PROFILE", help="a probe whose code runs on these GPUs, pulled as well")
    add(
        "--refused",
        nargs="*",
        default=[],
        metavar="PROFILE",
        help="profiles this host must not pass",
    )
    add("--work", type=Path, default=Path("acceptance"), help="home, caches, results [acceptance]")
    add("--out", type=Path, help="folder that gets a copy of the results")
    add(
        "--restore",
        type=Path,
        metavar="TAR",
        help="acceptance-results.tar.gz of an earlier machine",
    )
    add(
        "--budget",
        type=float,
        metavar="S",
        help="begin nothing that would end after so many seconds",
    )
    add("--stages", nargs="*", default=[], help="only these; others keep their state")
    add("--skip", nargs="*", default=[], help="leave these out, on record")
    add(
        "--retry",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="try failed stages again",
    )
    add("--tp", type=_numbers, metavar="N,N", help="TP degrees [1, and 2 where there are two GPUs]")
    add("--concurrency", type=_numbers, default=(1, 8, 32), metavar="N,N")
    add("--repetitions", type=int, default=2)
    add("--measure-s", type=float, default=15, help="seconds of measurement in a cell, at most")
    add(
        "--option",
        action="append",
        default=[],
        metavar="'NAME = VALUE'",
        help="more engine options of the sweep, as TOML",
    )
    add(
        "--low-boundary",
        type=int,
        default=4096,
        metavar="MIB",
        help="the boundary that is to be passed",
    )
    add("--evidence-registry", metavar="REF", help="attach the evidence here (needs `registry`)")
    add(
        "--engine-command",
        metavar="CMD",
        help="another OpenAI-compatible server, for a host without GPUs",
    )
    add("--sampler", default="auto", help="as of kvreg sweep run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
