"""``kill -9`` at two hundred random points of pulls from a layout and from a registry: what a home
names is right, and the next pull completes from there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kvreg.pulls import members
from tests.support.distribution import push_layout


@pytest.fixture
def large(publish):
    """An artifact of some megabytes, so that kills find all parts of a pull."""
    return publish(extra=members(24_000_000))


def kill(published, reference, count, seed):
    folder = published.layout.parent
    command = [sys.executable, "-m", "tests.kvreg.killed", folder, reference, count, seed]
    done = subprocess.run(
        [str(item) for item in command],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["killed"] == count
    return found["found"]


counts = pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])


@counts
def test_killed_while_it_pulls_from_a_layout(large, count):
    found = kill(large, f"oci-layout:{large.layout}", count, count)
    assert found["staging"]


@counts
def test_killed_while_it_pulls_from_a_registry(large, count, distribution):
    push_layout(f"http://{distribution.host}", "pull/kills", large.layout)
    found = kill(large, f"{distribution.host}/pull/kills", count, count)
    assert found["partial"] and found["staging"]
