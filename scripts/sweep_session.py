#!/usr/bin/env python3
"""Goes on with sweeps on a machine that is lent for minutes: brings, runs and returns them.

    python3 scripts/sweep_session.py h200x2-pilot h200x2 --profile h200x2-cu130 \\
        --registry oci-layout:.dev/h200x2-cu130 --carried .dev --work /tmp/x2 \\
        --budget 560 --out "$OUT"
    python3 scripts/sweep_session.py --merge evidence --from call-1 call-2

Sweeps are named by preset, or by the file of a plan, and run one after the other while the budget
lasts; each ends between matched cells. A session on a bare machine begins from what `--carried`
holds: `NAME.state.tar.xz` (plan, identity, facts, ledger: no logs of cells that are done) and
`caches.tar.xz` (what servers have compiled). `--work` must be the same path every time.

`--out` gets those files anew, `NAME.cells-*.tar.gz` with the evidence of the cells that this call
ran, `doctor.json` and `session.json` with the seconds that every step took. `--merge` puts the
files of all calls together again: whole sweep directories, which analysis and packing take.

Standard library alone; kvreg is the installed one, or this checkout's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from acceptance.shape import write_model
from acceptance.state import client_command
from sweeps.carrying import merge, restore, restore_caches, save, save_caches
from sweeps.running import Runner, table
from sweeps.warming import Warming

ROOT = Path(__file__).resolve().parents[1]
TRY_AGAIN = 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one session; the exit status is 0 when every sweep is done, 75 when something is left."""
    began = time.monotonic()
    options = _parser().parse_args(arguments)
    if options.merge:
        for name, cells in merge(options.files, options.merge).items():
            print(f"{name}: {cells} cells with their files in {options.merge / name}")
        return 0
    work, out = options.work.absolute(), options.out.absolute()
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    kvreg, environment = client_command(ROOT)
    runner = Runner(kvreg, environment, work, options)
    warming = None if options.engine_command else Warming()
    with runner.step("restore"):
        restore_caches(options.carried, work)
        plans = [runner.plan(name) for name in options.plans]
        for plan in plans:
            restore(options.carried, work, plan.name)
    with runner.step("model"):
        write_model(work, "float16")
    if not options.engine_command:
        with runner.step("pull"):
            runner.pull(ROOT)
        with runner.step("doctor"):
            runner.doctor(out)
    if warming is not None:
        with runner.step("warm files"):
            runner.notes["warmed"] = warming.wait(60.0)
    left = 0
    for plan in plans:
        until = began + options.budget - options.margin
        with runner.step(f"sweep {plan.name}"):
            left += runner.sweep(plan, until)
        print(table(plan.folder), flush=True)
    with runner.step("save"):
        for plan in plans:
            save(plan.folder, out)
    with runner.step("save caches"):
        save_caches(work, out)
    runner.notes["seconds"] = round(time.monotonic() - began, 1)
    (out / "session.json").write_text(json.dumps(runner.notes, indent=1), "utf-8")
    print(json.dumps(runner.notes), flush=True)
    for path in sorted(out.iterdir()):
        print(f"   saved  {path.name} ({path.stat().st_size:,} bytes)")
    return TRY_AGAIN if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("plans", nargs="*", help="presets, or files of plans")
    add("--profile", help="the staged runtime that serves")
    add("--registry", metavar="REF", help="where its artifact is")
    add("--carried", type=Path, default=Path(".dev"), help="what an earlier call left [.dev]")
    add("--work", type=Path, default=Path("sweeps"), help="home, caches, sweeps [sweeps]")
    add("--out", type=Path, default=Path("out"), help="gets what leaves the machine [out]")
    add("--budget", type=float, default=540.0, metavar="S", help="seconds, packing included")
    add(
        "--margin",
        type=float,
        default=15.0,
        metavar="S",
        help="kept back of the budget for packing, and as much again before a cell is broken off",
    )
    add("--engine-command", metavar="CMD", help="another server, for a host without GPUs")
    add("--sampler", default="auto", help="as of kvreg sweep run")
    add("--merge", type=Path, metavar="DIR", help="put the files of several calls together here")
    add("--from", dest="files", type=Path, nargs="*", default=[], help="folders of calls, in order")
    return parser


if __name__ == "__main__":
    sys.exit(main())
