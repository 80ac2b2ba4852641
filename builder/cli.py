"""The command line `builder`: commands import what they need when they run."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click

from builder import __version__
from builder.commands.audit import audit
from builder.commands.build import build
from builder.commands.cache import cache
from builder.commands.ci import ci, matrix
from builder.commands.fetch import fetch
from builder.commands.lock import lock
from builder.commands.overlay import overlay
from builder.commands.publish import publish
from builder.commands.rebuild import compare, rebuild
from builder.commands.record import record
from builder.commands.thin import thin
from builder.commands.toolchain import toolchain
from builder.commands.upstream import upstream
from builder.commands.zipapp import zipapp


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="builder")
def main() -> None:
    """Build CUDA runtime wheels from locked sources, audit and publish them.

    \b
    A first run on a machine with a container engine:
      builder build --profile t4-probe --toolchain cuda-12.4-debian12
      builder publish --profile t4-probe
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    # As an exception, so that what is running in a container is stopped on the way out.
    sys.exit(128 + number)


for command in (
    *(lock, overlay, fetch, build, thin, audit, publish, record, toolchain, zipapp),
    *(rebuild, compare, upstream, cache, matrix, ci),
):
    main.add_command(command)
