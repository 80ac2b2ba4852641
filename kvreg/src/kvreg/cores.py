"""How many cores this process may use, which is not how many the machine has."""

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Cores that the process may run on, and that its container's quota pays for (cgroup v2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _QUOTA.read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        # No quota ("max"), or no such file.
        pass
    return max(1, cores)
