"""Processes that are killed, and processes that pull at the same time."""

import os
import shutil
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


def serve(handler, content, start):
    """No fault: what was asked for."""
    handler.serve(content, start, stop=handler.stop)


def test_killed_in_the_middle_of_a_transfer(large):
    layer = large.manifest.layers[0]
    with faulty_registry(large.layout) as server:
        # The config passes, and the end of the wheel; the two other ranges stop on their way.
        server.faults["blobs"] += [serve, serve]
        server.faults["blobs"] += [faults.stall_after(2_500_000), faults.stall_after(1_200_000)]
        process = start(large, server.reference)
        tail = 1 << 20
        wait_for(lambda: server.sent(layer.digest) == tail + 2_500_000 + 1_200_000)
        time.sleep(1)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not list(large.home.runtimes.glob("[!.]*"))
        before = server.sent(layer.digest)
        pulled = large.pull(server.reference)
        assert pulled.staged
        fetched = server.sent(layer.digest) - before
        # What a connection had received since its last line in the journal is all that is lost.
        assert before + fetched - layer.size < 2 * ((1 << 20) + (1 << 18))
        assert fetched == pulled.work.received
    assert check_runtime(pulled.runtime).ok
    assert not list(large.home.root.glob("blobs/sha256/*.partial*"))


def test_a_pull_that_is_done_but_for_its_name_transfers_nothing(large):
    with faulty_registry(large.layout) as server:
        large.pull(server.reference)
        before = server.sent(large.manifest.layers[0].digest)
        shutil.rmtree(large.home.runtimes)
        pulled = large.pull(server.reference)
        assert pulled.work.received == 0
        assert server.sent(large.manifest.layers[0].digest) == before == pulled_size(large)


def pulled_size(published):
    """Bytes of the wheel."""
    return published.manifest.layers[0].size


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
        assert server.sent(large.manifest.layers[0].digest) == pulled_size(large)
    assert sorted('"staged": true' in output for output, _ in outputs) == [False, False, True]


def test_one_that_waits_goes_on_when_the_one_at_work_is_killed(large):
    with faulty_registry(large.layout) as server:
        server.faults["blobs"] += [serve, serve, faults.stall_after(2_000_000)]
        first = start(large, server.reference)
        wait_for(lambda: server.sent(large.manifest.layers[0].digest) > 3_000_000)
        second = start(large, server.reference, "--json")
        wait_for(lambda: "waiting" in second.stderr.readline())
        server.faults.clear()
        first.kill()
        first.communicate()
        output, _ = second.communicate(timeout=180)
        assert second.returncode == 0
        assert '"staged": true' in output
    assert check_runtime(large.pull(server.reference).runtime).ok


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_interrupted_by_the_user(large, knows_ranges):
    """Ctrl-C ends a pull at once, also while its connections hang; what has arrived is kept."""
    with faulty_registry(large.layout) as server:
        server.knows_ranges = knows_ranges
        server.faults["blobs"] += [serve, *[faults.stall_after(1_500_000)] * 4]
        process = start(large, server.reference)
        wait_for(lambda: server.sent(large.manifest.layers[0].digest) >= 1_500_000)
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert time.monotonic() - begun < 20
        assert process.returncode != 0
        assert not list(large.home.runtimes.glob("*"))
        server.faults.clear()
        assert large.pull(server.reference).work.received < pulled_size(large)
