"""``kvreg serve``."""

import json
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from kvreg.commands.options import home_option
from kvreg.console import emit, handled, json_option, note, progress
from kvreg.home import Home


@click.command("serve")
@click.argument("profile")
@click.argument("model")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM-ARGS...]")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to bind to. Other machines reach only what you name here.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=900.0,
    show_default=True,
    help="Seconds until the server must be ready.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    help="Seconds that the server may take to end by itself when it is stopped.",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where its output goes. Default: a new file in the home's logs.",
)
@click.option(
    "--engine-command",
    default="vllm serve",
    show_default=True,
    metavar="COMMAND",
    help="What serves; it gets MODEL, --host, --port and the arguments.",
)
@click.option("--dry-run", is_flag=True, help="Check and show what would be started, and stop.")
@home_option
@json_option
@handled
def command(
    profile: str,
    model: str,
    arguments: tuple[str, ...],
    host: str,
    port: int,
    timeout: float,
    grace: float,
    log: Path | None,
    engine_command: str,
    dry_run: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    """Serve a model with upstream's OpenAI-compatible server.

    The runtime is activated for the server alone, with the profile's safe engine options (shown
    when it starts) unless you give your own; options that the profile denies are refused. Once
    /health answers, its URL is printed (as JSON on one line with --json). Ctrl-C or SIGTERM stops
    the server and every process that it started; should this command be killed, they are stopped
    as well.

    \b
    Examples:
      kvreg serve t4x2-cu128 Qwen/Qwen2.5-3B-Instruct -- --tensor-parallel-size 2
      kvreg serve t4x2-cu128 ./model --port 8080 -- --max-model-len 4096
      kvreg serve t4x2-cu128 ./sharded -- --load-format sharded_state --tensor-parallel-size 2
    """
    from kvreg.process import Grace
    from kvreg.serve import ServerError, log_tail, plan_server, start_server

    plan = plan_server(
        profile,
        model,
        arguments,
        home=Home.find(home),
        host=host,
        port=port,
        log=log,
        engine=shlex.split(engine_command),
    )
    if dry_run:
        emit(plan, as_json, lambda planned: shlex.join(planned.command))
        return
    for name, value in plan.defaults.items():
        note(f"--{name} {value}: the profile's default")
    note(f"starting; its output goes to {plan.log}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    ready = False
    try:
        with start_server(plan, Grace(interrupt_s=grace)) as server:
            with progress(None, "loading", unit="s") as bar:
                seconds = server.wait_ready(timeout, lambda passed: bar.update(passed - bar.n))
            ready = True
            if as_json:
                shown = {**plan.to_dict(), "pid": server.tree.pid, "ready_s": round(seconds, 1)}
                click.echo(json.dumps(shown, ensure_ascii=False))
            else:
                click.echo(f"ready after {seconds:.0f} s: {plan.url}\nCtrl-C stops it")
            sys.stdout.flush()
            code = server.wait()
            raise ServerError(
                "the server ended by itself",
                expected="to run until it is stopped",
                found=f"exit status {code}; the log ends:\n    {log_tail(plan.log)}",
                remedy=f"the whole log is {plan.log}",
            )
    except KeyboardInterrupt:
        note("stopped" if ready else "stopped before it was ready")
        if not ready:
            sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
