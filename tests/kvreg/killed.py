"""Kills pulls at random points, again and again: a program that test_pull_kills.py runs.

    python -m tests.kvreg.killed FOLDER REFERENCE COUNT SEED

The modules are loaded once; each pull is a fork, so that its time goes into the work. Kills add up:
the next pull goes on from what the killed one left, until one is let through to its end and the
home is emptied. After each kill everything in the home must be right. Prints a JSON object.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import kvreg.making  # noqa: F401 - loaded before the forks
from kvreg.home import Home
from kvreg.pull import pull
from kvreg.reference import parse_reference
from kvreg.sources import open_source
from kvreg.sources.remote import RegistrySource  # noqa: F401 - loaded before the forks
from tests.kvreg.pulls import check_home, load_published


def main(folder: Path, reference: str, count: int, seed: int) -> dict[str, object]:
    """Kill until `count` pulls died of it."""
    chance = random.Random(seed)
    material = load_published(folder, Home(folder / f"home-{seed}"))
    home = material.home

    def work() -> None:
        pull(material.profile.digest, lambda: open_source(parse_reference(reference)), None, home)

    def finish() -> float:
        begun = time.monotonic()
        child = _fork(work)
        _, status = os.waitpid(child, 0)
        assert status == 0, "the pull did not complete"
        return time.monotonic() - begun

    takes = finish()
    shutil.rmtree(home.root)
    killed, runs, points, found = 0, 0, [], {"runtime": 0, "blob": 0, "partial": 0, "staging": 0}
    while killed < count:
        runs += 1
        assert runs < 6 * count, "the pulls were too quick to be killed"
        child = _fork(work)
        delay = chance.uniform(0, takes)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            points.append(round(delay / takes, 2))
        found["staging"] += any(home.runtimes.glob(".staging-*"))
        found["partial"] += any(home.root.glob("blobs/sha256/*.partial"))
        found["blob"] += home.blob(material.manifest.layers[0].digest).exists()
        found["runtime"] += check_home(material, quiet=False) is not None
        if chance.random() < 0.34 or not os.WIFSIGNALED(status):
            finish()
            assert check_home(material) is not None
            shutil.rmtree(home.root)
    return {"killed": killed, "runs": runs, "found": found, "points": sorted(points)}


def _fork(work) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
