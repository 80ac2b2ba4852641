"""How many compiler processes to run at once."""

from __future__ import annotations

import os
from dataclasses import dataclass

BYTES_PER_JOB = 6 * 1024**3
"""What the hungriest translation unit of vLLM takes (5.4 GB in cicc, measured), rounded up."""


@dataclass(frozen=True)
class Jobs:
    """The decision and why."""

    count: int
    reason: str


def choose_jobs(
    requested: int | None = None, *, cores: int | None = None, memory: int | None = None
) -> Jobs:
    """Jobs from cores and memory (bytes), or the number requested.

    >>> choose_jobs(cores=16, memory=24 * 1024**3)
    Jobs(count=4, reason='24 GiB of memory at 6 GiB a job (16 cores)')
    >>> choose_jobs(cores=2, memory=24 * 1024**3)
    Jobs(count=2, reason='2 cores (memory would allow 4)')
    """
    if requested:
        return Jobs(requested, "requested")
    cores = cores or len(os.sched_getaffinity(0))
    memory = memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A machine of "24 GiB" reports a little less; round to the nearest job.
    fitting = max(1, round(memory / BYTES_PER_JOB))
    if fitting < cores:
        gib = round(memory / 1024**3)
        return Jobs(fitting, f"{gib} GiB of memory at 6 GiB a job ({cores} cores)")
    return Jobs(cores, f"{cores} cores (memory would allow {fitting})")
