"""The command `python -m kvreg_probe`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import kvreg_probe
from kvreg_probe.table import render

_EPILOG = """\
examples:
  python -m kvreg_probe             text for people
  python -m kvreg_probe --json      the same as JSON (kvreg_probe/report.schema.json)
  CUDA_VISIBLE_DEVICES=1 python -m kvreg_probe

exit codes:
  0  every device passed, or there is no GPU (status "no-gpu" with the reason)
  1  something is wrong: the problems are listed with their codes
  2  wrong usage
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; answers the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvreg_probe",
        description="Run checked CUDA kernels on every visible GPU and measure its bandwidth.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--version", action="version", version=f"kvreg-probe {kvreg_probe.__version__}"
    )
    arguments = parser.parse_args(argv)
    report = kvreg_probe.probe()
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=2, allow_nan=False))
    else:
        print(render(report))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
