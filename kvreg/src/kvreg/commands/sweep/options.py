"""Options that the commands of ``kvreg sweep`` share, and what they mean."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvreg.sweep.engine import EngineChoice

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


def engine_choice(
    profile: str | None, engine_command: str | None, home: Path | None
) -> EngineChoice:
    """The choice of the options; without any, the active runtime's."""
    if profile is None and engine_command is None:
        profile = os.environ.get("KVREG_PROFILE_DIGEST")
    return EngineChoice(profile, engine_command, home)
