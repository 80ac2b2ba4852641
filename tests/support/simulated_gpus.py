"""Prints, every 100 ms, what ``nvidia-smi`` prints in a loop, for the GPUs of simulated servers.

``python simulated_gpus.py DIR [COUNT]``: a file of DIR is named after a living process and holds
the MiB that it uses on each GPU, as ``openai_server.py`` writes them. Memory goes with its process.
"""

import json
import os
import sys
import time
from pathlib import Path

IDLE_MIB = 3.0


def used(folder: Path, count: int) -> list[float]:
    """MiB in use on each GPU."""
    memory = [IDLE_MIB] * count
    for path in folder.iterdir():
        if path.name.isdigit() and alive(int(path.name)):
            for gpu, mib in enumerate(json.loads(path.read_text())):
                memory[gpu] += mib
    return memory


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def main() -> None:
    folder = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    owner = os.getppid()
    due = time.monotonic()
    while os.getppid() == owner:
        for gpu, mib in enumerate(used(folder, count)):
            print(f"{gpu}, {mib:.0f}, {100 if mib > IDLE_MIB else 0}, [N/A], 1590, 5000")
        sys.stdout.flush()
        due += 0.1
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
