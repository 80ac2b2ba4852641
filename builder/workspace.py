"""The folders that a build container sees, laid out on the host."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.cache import InputCache, storage_errors
from builder.inputs import TREE_LITTER, Input
from builder.recipes.model import Recipe

OWNER = 1000  # user and group that the container runs as where the builder is root


@dataclass(frozen=True)
class Workspace:
    """Host folders: `inputs` and `recipe` are mounted read-only, `work` and `out` are written."""

    inputs: Path
    recipe: Path
    work: Path
    out: Path


def prepare(
    root: Path,
    recipe: Recipe,
    inputs: Iterable[Input],
    cache: InputCache,
    parameters: dict[str, Any],
) -> Workspace:
    """Lay out a fresh workspace below `root`, which must be on the cache's file system to be cheap.

    Inputs are hard links into the cache (copies where the file system does not allow them);
    members of a wheel lie under ``members/`` by their path in it. Raises StorageError.
    """
    with storage_errors("lay out the workspace in", root):
        shutil.rmtree(root, ignore_errors=True)
        space = Workspace(root / "inputs", root / "recipe", root / "work", root / "out")
        for folder in (space.inputs, space.recipe, space.work, space.out):
            folder.mkdir(parents=True)
        for item in inputs:
            if item.kind == "members":
                for member in item.members:
                    _link(cache.path(member.sha256), space.inputs / "members" / member.path)
            elif item.kind != "tree":  # a tree comes with the recipe's files
                _link(cache.path(item.sha256), space.inputs / item.filename)
        for name, source in recipe.files.items():
            target = space.recipe / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(*TREE_LITTER))
            else:
                shutil.copyfile(source, target)
        (space.recipe / "parameters.json").write_text(json.dumps(parameters, indent=1))
        _open(space.inputs, files=False)  # files there are the cache's own
        _open(space.recipe)
        for folder in (space.work, space.out):
            give(folder)
    return space


def sweep(root: Path) -> None:
    """Remove workspaces of processes that are gone; their names end in the process id."""
    for folder in root.iterdir():
        process = folder.name.rpartition("-")[2]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def give(folder: Path) -> None:
    """Let the container's user write to `folder`."""
    if os.geteuid() == 0:
        os.chown(folder, OWNER, OWNER)


def container_user() -> str:
    """``uid:gid`` for the container: never root."""
    if os.geteuid() == 0:
        return f"{OWNER}:{OWNER}"
    return f"{os.geteuid()}:{os.getegid()}"


def _open(root: Path, *, files: bool = True) -> None:
    """Modes that the caller's umask, and that of the checkout, have no say in.

    The container's user is a stranger to the folders, and modes of sources end in wheels.
    """
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        elif files:
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o444)
