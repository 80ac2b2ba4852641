"""Processes that are killed, and processes that pull at the same time."""

import os
import signal
import subprocess
import sys
import time

import pytest

from kvreg.integrity import check_runtime
from tests.support import faults
from tests.support.faults import faulty_registry

KVREG = [sys.executable, "-m", "kvreg"]


def start(published, reference, *options):
    return subprocess.Popen(
        [*KVREG, "pull", "demo", "--registry", reference, "--home", published.home.root, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would the command that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def large(publish):
    """An artifact of some megabytes that do not compress."""
    return publish(extra={"demo_pkg/large.bin": os.urandom(8 << 20)})


def test_killed_in_the_middle_of_a_transfer(large):
    partial = large.home.blob(large.manifest.layers[0].digest + "").with_suffix(".partial")
    with faulty_registry(large.layout) as server:
        # The config passes, the wheel stops after five million bytes.
        server.faults["blobs"] += [lambda h, content, start: h.serve(content, start)]
        server.faults["blobs"] += [faults.stall_after(5_000_000)]
        process = start(large, server.reference)
        wait_for(lambda: partial.exists() and partial.stat().st_size == 5_000_000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not list(large.home.runtimes.glob("*")) if large.home.runtimes.exists() else True
        pulled = large.pull(server.reference)
        assert pulled.staged
        ranges = [headers.get("Range") for path, headers in server.requests if "/blobs/" in path]
        assert ranges[-1] == "bytes=5000000-"
    assert check_runtime(pulled.runtime).ok
    assert not partial.exists()


def test_killed_in_the_middle_of_staging(large):
    """Killed at many moments: there is never a half-made runtime, and the next pull is whole."""
    reference = f"oci-layout:{large.layout}"
    final = large.home.runtime(large.profile.digest)
    staging = large.home.staging(large.profile.digest)
    seen = 0
    for delay in (0.0, 0.002, 0.01):
        process = start(large, reference)
        wait_for(lambda process=process: staging.exists() or process.poll() is not None)
        time.sleep(delay)
        process.kill()
        process.communicate()
        if final.exists():
            break
        seen += staging.exists()
    if final.exists():
        assert check_runtime(large.pull(reference).runtime).ok
    pulled = large.pull(reference)
    assert check_runtime(pulled.runtime).ok
    assert not staging.exists()
    assert seen or final.exists()


def test_two_pulls_at_once_do_the_work_once(large):
    with faulty_registry(large.layout) as server:
        processes = [start(large, server.reference, "--json") for _ in range(3)]
        outputs = [process.communicate(timeout=180) for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], outputs
        digest = large.manifest.layers[0].digest
        assert len([path for path in server.paths("blobs") if path.endswith(digest)]) == 1
    assert sorted('"staged": true' in output for output, _ in outputs) == [False, False, True]


def test_terminated_pull_leaves_no_runtime(large):
    with faulty_registry(large.layout) as server:
        server.faults["blobs"] += [faults.stall_after(100)]
        process = start(large, server.reference)
        wait_for(lambda: server.paths("blobs"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode != 0
    assert not list(large.home.runtimes.glob("*"))
