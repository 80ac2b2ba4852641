"""A pull request for a proposed profile: a branch with that folder alone, pushed, and opened."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.errors import ContractError, NotFoundError

SECONDS = 300
"""For one command of git or gh."""


@dataclass(frozen=True)
class Opened:
    """The branch and commit that were pushed; `url` of the pull request, None when not opened."""

    branch: str
    commit: str
    url: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return dict(vars(self))


def open_pull_request(
    root: Path, folder: Path, title: str, body: Path, *, remote: str = "origin", push_only: bool
) -> Opened:
    """Commit `folder` on a branch ``profile/<name>``, push it and open a pull request with `gh`.

    The branch begins at what is checked out; the working tree is left as it was. push_only: leave
    the opening to someone else. Raises ContractError when git or gh refuses, NotFoundError when
    one is not there.
    """
    name = folder.name
    branch = f"profile/{name}"
    relative = folder.resolve().relative_to(root.resolve()).as_posix()
    before = _run(root, "git", "rev-parse", "HEAD")
    _run(root, "git", "add", "--", relative)
    tree = _run(root, "git", "write-tree")
    message = f"{title}\n\n{body.read_text('utf-8')}"
    commit = _run(root, "git", "commit-tree", tree, "-p", before, text=message)
    _run(root, "git", "reset", "--quiet", "--", relative)
    _run(root, "git", "push", "--quiet", "--force", remote, f"{commit}:refs/heads/{branch}")
    if push_only:
        return Opened(branch, commit, None)
    url = _run(
        *(root, "gh", "pr", "create", "--head", branch),
        *("--title", title, "--body-file", str(body)),
    )
    return Opened(branch, commit, url.splitlines()[-1] if url else None)


def _run(root: Path, *command: str, text: str | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise NotFoundError(
            f"{command[0]} is not installed", remedy="install it, or open the request by hand"
        )
    done = subprocess.run(
        command, cwd=root, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        raise ContractError(
            f"{' '.join(command[:3])} failed",
            expected="exit status 0",
            found=f"exit status {done.returncode}: {done.stderr.strip()[-800:]}",
        )
    return done.stdout.strip()
