"""Whether another host's facts stand for this one's: asked by commands that need no facts else."""

import os
from pathlib import Path

FACTS_VARIABLE = "KVREG_FACTS"
"""The file of another host's facts that ``kvreg --facts FILE COMMAND`` sets for the command."""


def replayed() -> Path | None:
    """The file that stands for this host, if one does."""
    named = os.environ.get(FACTS_VARIABLE)
    return Path(named) if named else None
