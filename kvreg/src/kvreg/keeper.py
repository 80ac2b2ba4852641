"""The keeper of a process tree: starts one command and leaves nothing of it behind.

Run as a program of its own by `kvreg.process`, with the standard library alone (``python -I -S``)::

    keeper.py FD OWNER INTERRUPT TERMINATE COMMAND [ARGUMENT…]

FD is a socket to the owner, OWNER its process id; INTERRUPT and TERMINATE are seconds. The command
runs in a session of its own, so that a terminal's Ctrl-C reaches the owner alone. The keeper is the
reaper of orphans below it (``PR_SET_CHILD_SUBREAPER``), so that a worker that left its group or
lost its parent still belongs to the tree.

The tree is stopped when the owner asks for it (``stop``), when the owner is gone, however it went,
and when the command itself has ended. Stopping: SIGINT to the command, which most servers answer
by an orderly end; after INTERRUPT seconds SIGTERM to all; after TERMINATE more SIGKILL to all.
``kill`` cuts the waiting short. Should the keeper itself be killed, the kernel kills the command.

It says one JSON object a line: ``{"event": "started", "pid": …}`` (or ``"failed"``), and then
``{"event": "ended", "returncode": …, "signals": [...], "killed": [...]}``.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2
_LAST_S = 5.0
"""How long a killed process may take to disappear; one that hangs in a driver may never do."""


def descendants(pid: int) -> "dict[int, str]":
    """The living processes below `pid` with their names; zombies are not among them."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 (a dozen times faster)
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                head, _, rest = file.read().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        children.setdefault(int(parent), []).append(int(entry))
        if state not in "ZX":
            names[int(entry)] = head.partition("(")[2]
    found: dict[int, str] = {}
    rest_of = list(children.get(pid, ()))
    while rest_of:
        child = rest_of.pop()
        rest_of.extend(children.get(child, ()))
        if child in names:
            found[child] = names[child]
    return found


class Keeper:
    """One command, its tree and the socket to the owner."""

    def __init__(
        self, channel: socket.socket, owner: int, interrupt_s: float, terminate_s: float
    ) -> None:
        self.channel = channel
        self.owner = owner
        self.interrupt_s = interrupt_s
        self.terminate_s = terminate_s
        self.root = 0
        self.status: int | None = None
        self.asked = ""
        self.signals: list[str] = []
        self.killed: list[int] = []

    def run(self, command: "list[str]") -> int:
        """Start the command, keep it, stop what is left; returns the exit status to end with."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # An owner's thread may block signals, and what it starts would too: workers of Ray do.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: self._ask("stop"))
        # A handler must exist for the wake-up byte to be written.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._start(command)
        while self.status is None and not self.asked:
            self._listen(_TICK_S)
        self._stop()
        code = self.status if self.status is not None else -signal.SIGKILL
        self._say(event="ended", returncode=code, signals=self.signals, killed=self.killed)
        return code if code >= 0 else 128 - code

    def _start(self, command: "list[str]") -> None:
        reader, writer = os.pipe()  # closed by a successful exec
        keeper = os.getpid()
        self.root = os.fork()
        if self.root == 0:
            try:
                os.setsid()
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != keeper:
                    os._exit(125)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them; a program expects not
                    signal.signal(getattr(signal, name), signal.SIG_DFL)
                os.execvp(command[0], command)
            except OSError as error:
                os.write(writer, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(writer)
        failure = os.read(reader, 64)
        os.close(reader)
        if failure:
            self._say(event="failed", errno=int(failure))
            os._exit(127)
        self._say(event="started", pid=self.root)

    def _listen(self, seconds: float) -> None:
        """Wait for a word of the owner or the end of a child, at most so long."""
        readable, _, _ = select.select([self.channel, _WAKE], [], [], seconds)
        if _WAKE in readable:
            _WAKE.recv(4096)
        if self.channel in readable:
            try:
                text = self.channel.recv(4096).decode("ascii", "replace")
            except OSError:
                text = ""
            if not text:
                self.owner = 0
            for word in text.split():
                self._ask(word)
        if self.owner and os.getppid() != self.owner:
            self.owner = 0
        if not self.owner:
            self._ask("stop")
        self._reap()

    def _ask(self, word: str) -> None:
        if self.asked != "kill":
            self.asked = word

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.root:
                self.status = os.waitstatus_to_exitcode(status)

    def _stop(self) -> None:
        if self.status is None and self.asked == "stop":
            self._send(signal.SIGINT, [self.root])
            self._while_alive(self.interrupt_s, lambda: self.status is None)
        if self.asked != "kill" and (left := descendants(os.getpid())):
            self._send(signal.SIGTERM, list(left))
            self._while_alive(self.terminate_s, lambda: bool(descendants(os.getpid())))
        end = time.monotonic() + _LAST_S
        while (left := descendants(os.getpid())) and time.monotonic() < end:
            # Again and again: a child that was just born is not in the first list.
            self.killed.extend(pid for pid in left if pid not in self.killed)
            self._send(signal.SIGKILL, list(left))
            self._reap()
            time.sleep(0.02)
        self._reap()

    def _while_alive(self, seconds: float, alive: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while alive() and self.asked != "kill" and (left := end - time.monotonic()) > 0:
            if self.owner:
                self._listen(min(left, _TICK_S))
            else:
                time.sleep(min(left, 0.05))
                self._reap()

    def _send(self, number: int, pids: "list[int]") -> None:
        name = signal.Signals(number).name
        if name not in self.signals:
            self.signals.append(name)
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _say(self, **event: object) -> None:
        try:
            self.channel.sendall(json.dumps(event).encode() + b"\n")
        except OSError:
            self.owner = 0


_WAKE, _WAKER = socket.socketpair()


def main(arguments: "list[str]") -> int:
    """Keep the command that `arguments` name."""
    fd, owner, interrupt_s, terminate_s = arguments[:4]
    _WAKE.setblocking(False)
    _WAKER.setblocking(False)
    signal.set_wakeup_fd(_WAKER.fileno(), warn_on_full_buffer=False)
    channel = socket.socket(fileno=int(fd))
    channel.set_inheritable(False)
    keeper = Keeper(channel, int(owner), float(interrupt_s), float(terminate_s))
    return keeper.run(arguments[4:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
