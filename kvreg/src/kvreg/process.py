"""Process trees: started apart from the terminal, stopped as a whole, never left behind.

>>> with ProcessTree.start(["sleep", "60"]) as tree:
...     tree.returncode is None
True
>>> tree.stop().returncode
-2

Every tree has a keeper process (`kvreg.keeper`) that stops the whole of it, workers included that
left their process group: when it is told to, when the command ends, when nothing refers to the
`ProcessTree` any more, and when the process that started it is gone, even by SIGKILL.
"""

import contextlib
import json
import os
import pkgutil
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kvreg.errors import NotFoundError, UsageError
from kvreg.keeper import descendants

_MARGIN_S = 10.0
"""How much longer than its own times the keeper may take to end a tree."""


@dataclass(frozen=True)
class Grace:
    """How long a tree may take to end: seconds after SIGINT to the command, then after SIGTERM."""

    interrupt_s: float = 15.0
    terminate_s: float = 5.0


@dataclass(frozen=True)
class Stopped:
    """How a tree ended.

    `returncode` is the command's as `subprocess` has it (negative: killed by that signal);
    `signals` were sent, in order, none when the command ended alone and left nothing; `killed` are
    the process ids that needed SIGKILL; `seconds` is how long stopping took.
    """

    returncode: int
    signals: tuple[str, ...]
    killed: tuple[int, ...]
    seconds: float


class ProcessTree:
    """A command, everything that it starts, and the keeper of both.

    Use it as a context manager, or call `stop`. Not for two threads at a time.
    """

    def __init__(
        self, command: Sequence[str], keeper: "subprocess.Popen[bytes]", channel: socket.socket
    ) -> None:
        self.command = tuple(command)
        self.pid = 0
        """Process id of the command, which leads a session and a group of the same number."""
        self._keeper = keeper
        self._channel = channel
        self._received = b""
        self._ended: dict[str, Any] | None = None
        self._stop_began: float | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        log: Path | None = None,
        grace: Grace | None = None,
    ) -> "ProcessTree":
        """Start `command` in a session of its own, its standard input empty.

        environment: all of it; the own one by default, and its ``PATH`` is where the command is
        looked up. log: a file that output and errors are appended to; they go where the own ones go
        by default. Raises `NotFoundError` when there is no such command, `UsageError` when it
        cannot be executed, `OSError` when the log cannot be written.
        """
        values = dict(os.environ if environment is None else environment)
        program = shutil.which(command[0], path=values.get("PATH", os.defpath))
        if program is None:
            raise NotFoundError(f"there is no command {command[0]!r} on PATH")
        grace = grace or Grace()
        own, other = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(other.close)
            on_failure = stack.enter_context(contextlib.ExitStack())
            on_failure.callback(own.close)
            output = stack.enter_context(log.open("ab")) if log else None
            keeper = subprocess.Popen(
                [
                    *_program(),
                    str(other.fileno()),
                    str(os.getpid()),
                    str(grace.interrupt_s),
                    str(grace.terminate_s),
                    program,
                    *command[1:],
                ],
                env=values,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                pass_fds=(other.fileno(),),
                # Out of the reach of Ctrl-C: it must outlive it to clean up.
                start_new_session=True,
            )
            on_failure.pop_all()
        tree = cls(command, keeper, own)
        try:
            tree._await_start()
        except BaseException:
            own.close()  # the keeper's word to stop
            keeper.wait()
            raise
        return tree

    @property
    def returncode(self) -> int | None:
        """The command's exit status, None while it or its keeper runs."""
        if self._ended is None:
            self._receive(0.0)
        return None if self._ended is None else int(self._ended["returncode"])

    def members(self) -> dict[int, str]:
        """The tree's living processes: process id to the kernel's name (15 characters)."""
        return descendants(self._keeper.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the whole tree; `TimeoutError` after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._ended is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self.command[0]} still runs after {timeout:g} s")
            self._receive(left)
        return int(self._ended["returncode"])

    def stop(self) -> Stopped:
        """Stop the whole tree and wait until it is gone; again and again does no harm.

        A KeyboardInterrupt while it waits kills what is left at once, and is raised then.
        """
        began = self._stop_began = self._stop_began or time.monotonic()
        try:
            if self.returncode is None:
                self._tell("stop")
                self.wait()
        except BaseException:
            self._tell("kill")
            self.wait(_MARGIN_S)
            raise
        finally:
            if self._ended is not None:
                self._keeper.wait()
                self._channel.close()
        assert self._ended is not None
        return Stopped(
            returncode=int(self._ended["returncode"]),
            signals=tuple(self._ended["signals"]),
            killed=tuple(self._ended["killed"]),
            seconds=time.monotonic() - began,
        )

    def __enter__(self) -> "ProcessTree":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _await_start(self) -> None:
        while self.pid == 0 and self._ended is None:
            self._receive(None)
        if self.pid == 0:
            number = (self._ended or {}).get("errno")
            raise UsageError(
                f"{self.command[0]} cannot be executed",
                found=os.strerror(number) if number else "the keeper of the process did not start",
            )

    def _tell(self, word: str) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(word.encode() + b"\n")

    def _receive(self, timeout: float | None) -> None:
        """Take what the keeper says, waiting at most so long for it."""
        self._channel.settimeout(timeout)
        try:
            data = self._channel.recv(65536)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "started":
                self.pid = event["pid"]
            else:
                self._ended = {"returncode": 127, "signals": [], "killed": [], **event}

    def _lost(self) -> None:
        """The keeper is gone without a word: the kernel has killed the command; kill the rest."""
        code = self._keeper.wait()
        killed = _kill_session(self.pid) if self.pid else []
        self._ended = {"returncode": code, "signals": ["SIGKILL"], "killed": killed}


def _program() -> list[str]:
    """How to run the keeper; from a zip file there is no path that could be run."""
    path = Path(__file__).with_name("keeper.py")
    if path.is_file():
        return [sys.executable, "-I", "-S", str(path)]
    source = pkgutil.get_data("kvreg", "keeper.py")
    assert source is not None
    return [sys.executable, "-I", "-S", "-c", source.decode("utf-8")]


def _kill_session(session: int) -> list[int]:
    killed = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 (a dozen times faster)
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == session:
                    os.kill(int(entry), 9)
                    killed.append(int(entry))
    return killed
