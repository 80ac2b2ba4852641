"""One server process tree: started, waited for, asked, stopped; its log and its end."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvreg.process import Grace, ProcessTree, Stopped
from kvreg.sweep.engine import HOST
from kvreg.sweep.failures import TAIL_BYTES, Verdict, verdict_on

PROCESS_FILE = "server.json"
_POLL_S = 0.02
_SLOW_POLL_S = 0.25
_LOG_BYTES = 4_000_000


class ServerError(Exception):
    """The server did not come up, or is gone. `verdict` says as what the cell ends."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Server:
    """A running server. `start` waits until it is healthy; `stop` ends the whole tree."""

    def __init__(self, tree: ProcessTree, port: int, log: Path) -> None:
        self.tree = tree
        self.port = port
        self.log = log
        self.healthy = False
        """Whether it was once."""

    @classmethod
    def start(
        cls,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        folder: Path,
        *,
        start_s: float,
        stop_s: float,
        watch: Callable[[], Verdict | None] = lambda: None,
    ) -> "Server":
        """Start `command(port)` with ``server.log`` in `folder` and wait for ``/health``.

        `watch` is asked all the while whether to give up. Raises `ServerError`, the tree stopped,
        when the server ends, is not healthy after `start_s` or is given up.
        """
        log = folder / "server.log"
        port = free_port()
        tree = ProcessTree.start(
            command(port),
            environment=environment,
            log=log,
            grace=Grace(interrupt_s=stop_s, terminate_s=max(1.0, stop_s / 2)),
        )
        server = cls(tree, port, log)
        try:
            (folder / PROCESS_FILE).write_text(json.dumps(_identity(tree.pid)), encoding="utf-8")
            server._await_health(start_s, watch)
        except BaseException:
            tree.stop()
            raise
        return server

    def stop(self) -> Stopped:
        """Stop the whole tree."""
        return self.tree.stop()

    def ended(self) -> Verdict | None:
        """What its end means, if it has ended; None while it runs."""
        code = self.tree.returncode
        if code is None:
            return None
        return self.because(f"the server {_ending(code)}")

    def because(self, otherwise: str) -> Verdict:
        """The verdict that the log asks for, else `FAILED` with `otherwise`."""
        return verdict_on(log_tail(self.log, _LOG_BYTES), otherwise, starting=not self.healthy)

    def tail(self) -> str:
        """The end of the log, for the record."""
        return log_tail(self.log)

    def _await_health(self, start_s: float, watch: Callable[[], Verdict | None]) -> None:
        began = time.monotonic()
        while True:
            if (verdict := self.ended()) is not None:
                raise ServerError(verdict)
            if self._answers():
                self.healthy = True
                return
            if (verdict := watch()) is not None:
                raise ServerError(verdict)
            waited = time.monotonic() - began
            if waited > start_s:
                what = f"the server was not healthy after {start_s:g} s"
                raise ServerError(self.because(what))
            # A server that imports for a minute needs no fifty questions a second.
            time.sleep(_POLL_S if waited < 5 else _SLOW_POLL_S)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def log_tail(path: Path, size: int = TAIL_BYTES) -> str:
    """At most the last `size` bytes of a log, whole lines where there are several."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            raw = file.read()
    except FileNotFoundError:
        return ""
    text = raw.decode("utf-8", "replace")
    return text.partition("\n")[2] or text if length > size else text


def free_port() -> int:
    """A TCP port of the loopback that nobody has now."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def await_gone(record: Path, timeout: float) -> bool:
    """Wait until the server that a ``server.json`` names is gone; False if it is still there.

    After the runner was killed, its servers' keepers stop them; a new session must not begin
    while that goes on, or it would take their memory for the idle level.
    """
    try:
        identity = json.loads(record.read_text(encoding="utf-8"))
        pid = int(identity["pid"])
    except (OSError, ValueError, LookupError, TypeError):
        return True
    end = time.monotonic() + timeout
    while _identity(pid) == identity:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _identity(pid: int) -> dict[str, int | str | None]:
    """A process and when it began: numbers are used again, beginnings are not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return {"pid": pid, "began": None, "boot": None}
    return {"pid": pid, "began": fields[19], "boot": boot}


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
