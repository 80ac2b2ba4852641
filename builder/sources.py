"""The builder's own sources by digest: whoever builds a thing again knows whether by the same code.

What reaches no wheel is not among them: commands, what watches upstream, the client's own file, and
comparing. Recipes have a digest of their own (`builder.key.recipe_digest`), and the probe's sources
are a locked input.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from builder.inputs import TREE_LITTER

APART = frozenset({"client", "commands", "comparison", "probe", "rebuild", "recipes", "upstream"})
"""Folders of the package that are left out."""


def builder_digest(root: Path | None = None) -> str:
    """``sha256:<hex>`` over one line a Python file, ``<sha256>  <path>``, sorted by path.

    root: the package's folder [default: this one's].
    """
    root = Path(__file__).parent if root is None else root
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path.parts[0] in APART or TREE_LITTER.intersection(path.parts):
            continue
        line = f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path.as_posix()}\n"
        digest.update(line.encode())
    return f"sha256:{digest.hexdigest()}"
