"""Options that the commands of ``kvreg sweep`` share, and what they mean."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvreg.errors import UsageError
from kvreg.sweep.engine import Engine, other_engine, staged_engine

plan_argument = click.argument("plan", type=click.Path(path_type=Path), metavar="PLAN")
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The sweep directory: plan, identity, ledger, evidence.",
)
folder_argument = click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what chooses the engine, its GPUs' sampler and its caches."""
    for option in (
        click.option(
            "--caches",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where compile caches are shared. Default: DIR-caches beside the directory.",
        ),
        click.option(
            "--sampler",
            default="auto",
            show_default=True,
            metavar="KIND",
            help="Samples GPUs: auto, nvml, nvidia-smi, command:CMD or none.",
        ),
        click.option(
            "--engine-command",
            metavar="CMD",
            help="Another OpenAI-compatible server, called with the arguments of `vllm serve`.",
        ),
        click.option("--profile", metavar="PROFILE", help="The staged runtime that serves."),
    ):
        command = option(command)
    return command


def chosen_engine(profile: str | None, engine_command: str | None, home: Path | None) -> Engine:
    """The engine of the options; without any, `vllm serve` of an active runtime."""
    if profile and engine_command:
        raise UsageError("--profile and --engine-command exclude each other")
    if engine_command:
        return other_engine(engine_command)
    active = os.environ.get("KVREG_PROFILE_DIGEST")
    if profile or active:
        return staged_engine(profile or str(active), home)
    raise UsageError(
        "there is no engine",
        expected="--profile PROFILE, --engine-command CMD or an active runtime",
        remedy="for instance: --profile t4x2-cu128",
    )
