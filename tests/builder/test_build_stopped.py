"""A build that is stopped leaves no container and no workspace behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from builder.engine import RUN_LABEL, connect
from builder.workspace import sweep
from tests.support.toolchain import engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

pytestmark = pytest.mark.engine

RUN = """
import sys
from builder.cli import main
import click
from builder.engine import connect

@main.command()
def wait():
    engine = connect()
    image = sys.argv[-1]
    engine.run(image, ["sleep", "600"], on_line=print)

main.main(["wait"])
"""


def containers_of(process: int) -> list[object]:
    found = connect().client.containers.list(all=True, filters={"label": RUN_LABEL})
    return [c for c in found if c.labels[RUN_LABEL].endswith(f":{process}")]


def start(image: str) -> subprocess.Popen[bytes]:
    # A shell's background job ignores Ctrl-C, and what it starts does too: that is not under test.
    running = subprocess.Popen(
        [sys.executable, "-c", RUN, image],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not any(c.status == "running" for c in containers_of(running.pid)):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_container_too(toolchain_image, number):
    running = start(toolchain_image.image_digest)
    running.send_signal(number)
    assert running.wait(60) != 0
    assert containers_of(running.pid) == []


def test_what_a_killed_process_left_is_reaped_by_the_next(toolchain_image):
    running = start(toolchain_image.image_digest)
    running.kill()
    running.wait()
    assert containers_of(running.pid) != []
    assert connect().reap() >= 1
    assert containers_of(running.pid) == []


def test_a_container_that_is_waited_for_is_left_alone(toolchain_image):
    running = start(toolchain_image.image_digest)
    try:
        connect().reap()
        assert containers_of(running.pid) != []
    finally:
        running.terminate()
        running.wait(60)


def test_workspaces_of_gone_processes_are_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / f"t4x2-cu128-{gone.pid}").mkdir()
    (tmp_path / f"t4x2-cu128-{os.getpid()}").mkdir()
    (tmp_path / "other").mkdir()
    sweep(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {f"t4x2-cu128-{os.getpid()}", "other"}
