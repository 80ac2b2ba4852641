"""Process trees, with real processes that die, ignore signals and run away."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvreg.errors import NotFoundError, UsageError
from kvreg.process import Grace, ProcessTree

QUICK = Grace(interrupt_s=1.0, terminate_s=0.5)

# Starts a child and a grandchild that leaves session and parent; writes all process ids.
FAMILY = """
import os, signal, subprocess, sys, time
ignore, file = sys.argv[1].split(","), sys.argv[2]
for name in filter(None, ignore):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
child = subprocess.Popen(["sleep", "100"])
runaway = subprocess.run(
    ["sh", "-c", "setsid sleep 101 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True)
open(file + ".new", "w").write(f"{os.getpid()} {child.pid} {runaway.stdout.strip()}")
os.rename(file + ".new", file)
print("ready", flush=True)
time.sleep(100)
"""


def family(folder: Path, ignore: str = "", **options: object) -> tuple[ProcessTree, list[int]]:
    file = folder / "pids"
    command = [sys.executable, "-c", FAMILY, ignore, str(file)]
    tree = ProcessTree.start(command, log=folder / "log", grace=QUICK, **options)  # type: ignore[arg-type]
    return tree, pids_in(file)


def pids_in(file: Path) -> list[int]:
    end = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < end, "the family did not start"
        time.sleep(0.02)
    return [int(text) for text in file.read_text().split()]


def alive(pids: list[int]) -> list[int]:
    def lives(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    return [pid for pid in pids if lives(pid)]


def await_end(pids: list[int], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while alive(pids):
        assert time.monotonic() < end, f"still alive: {alive(pids)}"
        time.sleep(0.02)


def test_a_tree_is_stopped_as_a_whole(tmp_path: Path) -> None:
    tree, pids = family(tmp_path)
    assert alive(pids) == pids
    assert set(pids) <= set(tree.members())
    assert os.getsid(tree.pid) == tree.pid != os.getsid(0)
    stopped = tree.stop()
    assert alive(pids) == []
    # Interrupted, the command ends at once; its sleeping children need the second signal.
    assert stopped.returncode == -signal.SIGINT or stopped.returncode == 130
    assert stopped.signals == ("SIGINT", "SIGTERM")
    assert stopped.killed == ()
    assert tree.stop().returncode == stopped.returncode
    assert (tmp_path / "log").read_bytes().startswith(b"ready\n")


def test_what_ignores_signals_is_killed(tmp_path: Path) -> None:
    tree, pids = family(tmp_path, "SIGINT,SIGTERM")
    stopped = tree.stop()
    assert alive(pids) == []
    assert stopped.returncode == -signal.SIGKILL
    assert stopped.signals == ("SIGINT", "SIGTERM", "SIGKILL")
    assert pids[0] in stopped.killed
    assert 1.4 < stopped.seconds < 8


def test_what_a_command_leaves_behind_is_stopped_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    script = f"setsid sleep 102 & echo $! > {file}.new; mv {file}.new {file}; exit 7"
    with ProcessTree.start(["sh", "-c", script], grace=QUICK) as tree:
        assert tree.wait(20) == 7
        assert alive(pids_in(file)) == []
    assert tree.stop().signals == ("SIGTERM",)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_tree_ends_with_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "pids"
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from kvreg.process import *\n"
            "tree = ProcessTree.start(sys.argv[1:], grace=Grace(1, 0.5)); time.sleep(100)",
            *[sys.executable, "-c", FAMILY, "", str(file)],
        ]
    )
    pids = pids_in(file)
    owner.send_signal(number)
    owner.wait(10)
    await_end(pids)


def test_the_tree_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    tree, pids = family(tmp_path)
    os.kill(tree._keeper.pid, signal.SIGKILL)
    assert tree.wait(10) == -signal.SIGKILL
    await_end(pids[:2])
    os.kill(pids[2], signal.SIGKILL)  # in a session of its own and nobody's child: out of reach


def test_ctrl_c_reaches_the_owner_alone_and_a_second_one_kills(tmp_path: Path) -> None:
    """As in a terminal: SIGINT goes to the whole group of the owner."""
    file = tmp_path / "pids"
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from kvreg.process import *\n"
            "with ProcessTree.start(sys.argv[1:], grace=Grace(60, 60)):\n"
            "    try: time.sleep(100)\n"
            "    finally: print('stopping', flush=True)",
            *[sys.executable, "-c", FAMILY, "SIGINT,SIGTERM", str(file)],
        ],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = pids_in(file)
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.stdout is not None
    while "stopping" not in owner.stdout.readline():
        pass
    time.sleep(0.3)
    assert pids[0] in alive(pids), "it was told to stop, and may take its time"
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.wait(15) != 0
    assert alive(pids) == []


def test_a_command_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no-such-command"):
        ProcessTree.start(["no-such-command"])
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF not really")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="cannot be executed") as caught:
        ProcessTree.start([str(broken)])
    assert "xec format" in str(caught.value)


def test_waiting_has_an_end() -> None:
    with (
        ProcessTree.start(["sleep", "100"], grace=QUICK) as tree,
        pytest.raises(TimeoutError, match="still runs"),
    ):
        tree.wait(0.1)


def test_environment_directory_and_exit_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tree = ProcessTree.start(
        ["sh", "-c", "pwd; echo $WORD; cat; kill -9 $$"],
        environment={"PATH": os.environ["PATH"], "WORD": "heard"},
        directory=tmp_path,
        log=log,
    )
    assert tree.wait(10) == -signal.SIGKILL
    assert log.read_text() == f"{tmp_path}\nheard\n"


def test_signals_that_the_owner_blocks_reach_the_tree():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGCHLD})
    try:
        tree = ProcessTree.start(["sleep", "100"], grace=QUICK)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    ended = tree.stop()
    assert (ended.returncode, ended.signals) == (-signal.SIGINT, ("SIGINT",))
