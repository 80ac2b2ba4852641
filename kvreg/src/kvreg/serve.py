"""Upstream's OpenAI-compatible server with an activated runtime, started and stopped as a whole.

>>> with serve("t4x2-cu128", "Qwen/Qwen2.5-3B-Instruct") as server:  # doctest: +SKIP
...     print(server.url)
http://127.0.0.1:8000/v1
"""

import contextlib
import os
import shlex
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from kvreg.activation import check_environment, find_runtime, variables
from kvreg.engine import for_command
from kvreg.errors import KvregError, UsageError
from kvreg.home import Home
from kvreg.process import Grace, ProcessTree, Stopped
from kvreg.settings import require_trusted, required_keys

LOOPBACK = "127.0.0.1"
ENGINE = ("vllm", "serve")
_PROBE_S = 0.5
_ANY = {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}
_TAIL_LINES = 25


class ServerError(KvregError):
    """A server did not start, did not answer, or ended by itself."""

    exit_code = 1


@dataclass(frozen=True)
class ServerPlan:
    """What will be started: decided, checked, and nothing done yet.

    `defaults` are the engine options that the profile added. `host` is what the server binds to.
    """

    profile: str
    manifest_digest: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(hash=False, repr=False)
    defaults: Mapping[str, str] = field(hash=False)
    host: str
    port: int
    log: Path

    @property
    def root(self) -> str:
        """Where it answers, without a path."""
        host = _ANY.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL that OpenAI clients take."""
        return f"{self.root}/v1"

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data, without the environment, which may hold secrets."""
        return {
            "profile": self.profile,
            "manifest_digest": self.manifest_digest,
            "command": list(self.command),
            "defaults": dict(self.defaults),
            "host": self.host,
            "port": self.port,
            "url": self.url,
            "log": str(self.log),
        }


@dataclass(frozen=True)
class Server:
    """A running server; a context manager that stops it."""

    plan: ServerPlan
    tree: ProcessTree

    @property
    def url(self) -> str:
        """The base URL that OpenAI clients take."""
        return self.plan.url

    def wait_ready(
        self, timeout: float, waiting: Callable[[float], object] = lambda seconds: None
    ) -> float:
        """Wait until ``/health`` answers 200; how many seconds it took.

        `waiting` is called with the seconds so far, again and again. Raises `ServerError` with
        the end of the log when the server ends, or has not answered after `timeout` seconds; it is
        left as it is then.
        """
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            code = self.tree.returncode
            if code is not None:
                raise self._failed(f"the server ended before it was ready, after {passed:.0f} s",
                                   f"exit status {code}")  # fmt: skip
            if _healthy(f"{self.plan.root}/health"):
                return passed
            if passed >= timeout:
                raise self._failed(f"the server is not ready after {timeout:g} s", "no answer")
            waiting(passed)
            time.sleep(min(_PROBE_S, max(timeout - passed, 0.01)))

    def wait(self) -> int:
        """Wait until the server ends by itself; its exit status."""
        return self.tree.wait()

    def stop(self) -> Stopped:
        """Stop the server and everything that it started."""
        return self.tree.stop()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _failed(self, what: str, found: str) -> ServerError:
        tail = log_tail(self.plan.log)
        return ServerError(
            what,
            expected=f"200 from {self.plan.root}/health",
            found=found + (f"; the log ends:\n    {tail}" if tail else ""),
            remedy=f"the whole log is {self.plan.log}",
        )


def plan_server(
    profile: str,
    model: str,
    arguments: Sequence[str] = (),
    *,
    home: Home,
    host: str = LOOPBACK,
    port: int = 8000,
    log: Path | None = None,
    engine: Sequence[str] = ENGINE,
) -> ServerPlan:
    """Decide what to start.

    `arguments` go to the engine as they are, after the profile's defaults. Raises `NotFoundError`
    when no runtime is staged, `ContractError` when environment or arguments ask for what the
    profile denies, `UsageError` for a port that is in use and for --host and --port among the
    arguments.
    """
    if taken := {word.partition("=")[0] for word in arguments} & {"--host", "--port"}:
        raise UsageError(
            f"{' and '.join(sorted(taken))} belong to kvreg serve",
            remedy="give them before the --",
        )
    runtime = find_runtime(home, profile)
    require_trusted(runtime, required_keys())
    contract = runtime.profile()
    check_environment(contract, os.environ)
    chosen = for_command(contract.runtime.engine, arguments, contract.name)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    plan = ServerPlan(
        profile=contract.name,
        manifest_digest=runtime.manifest_digest,
        command=(*engine, model, "--host", host, "--port", str(port), *chosen.words),
        environment={**os.environ, **variables(runtime, home, os.environ)},
        defaults=chosen.defaults,
        host=host,
        port=port,
        log=log or home.root / "logs" / f"serve-{contract.name}-{stamp}-{port}.log",
    )
    _require_free(plan)
    return plan


def start_server(plan: ServerPlan, grace: Grace | None = None) -> Server:
    """Start what was planned; its output goes to the end of its log."""
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    with plan.log.open("a", encoding="utf-8") as log:
        log.write(f"# {shlex.join(plan.command)}\n")
    tree = ProcessTree.start(
        plan.command, environment=plan.environment, log=plan.log, grace=grace
    )  # fmt: skip
    return Server(plan, tree)


@contextlib.contextmanager
def serve(
    profile: str,
    model: str,
    arguments: Sequence[str] = (),
    *,
    home: Path | str | None = None,
    host: str = LOOPBACK,
    port: int = 8000,
    timeout: float = 900.0,
    log: Path | None = None,
) -> Any:
    """A server that is ready, for as long as the context lasts: for notebooks.

    Raises what `plan_server` and `Server.wait_ready` raise; nothing is left running then.
    """
    place = Home.find(Path(home) if home is not None else None)
    plan = plan_server(profile, model, arguments, home=place, host=host, port=port, log=log)
    with start_server(plan) as server:
        server.wait_ready(timeout)
        yield server


def log_tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, indented for an error."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 65536, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n    ".join(text.splitlines()[-lines:])


def _healthy(url: str) -> bool:
    # No proxy stands between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError, ValueError):
        return False
    except Exception as error:  # http.client's errors are of no common class but HTTPException
        if type(error).__module__ != "http.client":
            raise
        return False


def _require_free(plan: ServerPlan) -> None:
    host = _ANY.get(plan.host, plan.host)
    with contextlib.suppress(OSError), socket.create_connection((host, plan.port), timeout=1):
        raise UsageError(
            f"port {plan.port} of {host} is in use",
            expected="a port that nobody answers on",
            remedy="stop what uses it, or choose another one with --port",
        )
