"""``kill -9`` at random points, a hundred times: what the stores name stays whole, and the same
command again completes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registry.killed import WORKS
from tests.support.distribution import Distribution

EACH = 25


@pytest.fixture(scope="module")
def running(
    distribution: Distribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One program for each kind of work, all at the same time."""
    started = {}
    for name in WORKS:
        folder = tmp_path_factory.mktemp("kills")
        command = [sys.executable, "-m", "tests.registry.killed", name, str(EACH)]
        started[name] = subprocess.Popen(
            [*command, str(folder), distribution.host],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("work", WORKS)
def test_a_writer_that_is_killed_breaks_nothing(
    work: str, running: dict[str, subprocess.Popen[str]]
) -> None:
    output, errors = running[work].communicate(timeout=300)
    assert running[work].returncode == 0, errors
    found = json.loads(output)
    assert found["killed"] == EACH
    print(found)
