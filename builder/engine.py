"""The container engine, driven through the Docker SDK for Python.

Docker and Podman (through its Docker-compatible socket) are both served. A container that runs
here sees its image, the mounts and the environment it is given, and nothing else of the machine:
no network unless asked for, a fixed host name, no capabilities when it does not run as root.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound
from docker.types import Mount as DockerMount

from builder.engine_lines import LineSplitter
from builder.engine_usage import UsageSampler
from builder.errors import BuildError
from kvreg.errors import NotFoundError, Problem, UsageError

HOSTNAME = "kvreg-build"
RUN_LABEL = "vnd.kvreg.run"
"""On every container that runs here: which process of which machine waits for it."""

REQUEST_TIMEOUT = 600
"""Seconds for one answer of the engine; unpacking a large layer takes tens of them."""

_START = (
    "start one: `apt-get install docker.io` and `systemctl start docker` (without systemd: "
    "`dockerd &`), or `systemctl --user start podman.socket`; or set DOCKER_HOST to its socket"
)


@dataclass(frozen=True)
class Mount:
    """A host folder or file that the container sees at the absolute path `target`."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class RunResult:
    """What a finished container cost.

    exit_code: of the command. seconds: wall time from start to exit. cpu_seconds: user and system
    time of all its processes, from the kernel's counter as last read before the exit (read twice
    a second where the control group is readable, else once). peak_memory_bytes: highest sampled
    anonymous memory, so without the page cache, which grows with whatever is free.
    high_water_bytes: the kernel's own high-water mark, page cache included; None where it has
    none. out_of_memory: the kernel killed a process of it for memory.
    """

    exit_code: int
    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    high_water_bytes: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True)
class EngineInfo:
    """What is known of an engine. kind: ``docker`` or ``podman``; address: where it listens."""

    kind: str
    version: str
    address: str
    rootless: bool
    cgroup_version: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data, without the address, which is the machine's own affair."""
        return {
            "kind": self.kind,
            "version": self.version,
            "rootless": self.rootless,
            "cgroup_version": self.cgroup_version,
        }


def candidate_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where an engine may listen, in the order of preference.

    DOCKER_HOST alone when it is set: who names an engine does not want another one.

    >>> candidate_addresses({"DOCKER_HOST": "unix:///tmp/d.sock"})
    ('unix:///tmp/d.sock',)
    """
    named = environment.get("DOCKER_HOST")
    if named:
        return (named,)
    found = ["unix:///var/run/docker.sock", "unix:///run/podman/podman.sock"]
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        found += [f"unix://{runtime}/docker.sock", f"unix://{runtime}/podman/podman.sock"]
    return tuple(found)


def run_owner() -> str:
    """``<host name>:<process id>`` of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def connect(environment: Mapping[str, str] | None = None) -> Engine:
    """The first engine that answers.

    Raises NotFoundError with every address that was tried, why it did not do, and how to start
    an engine.
    """
    environment = os.environ if environment is None else environment
    problems = []
    for address in candidate_addresses(environment):
        try:
            return Engine(_open(address, environment), address)
        except (DockerException, requests.RequestException, OSError, ValueError) as error:
            problems.append(Problem(address, _why_silent(address, error)))
    remedy = _START
    if "DOCKER_HOST" in environment:
        remedy = "start that engine, or unset DOCKER_HOST to use the usual sockets"
    elif any("permission" in p.what for p in problems):
        remedy = "let this user use the engine (`usermod -aG docker USER`, then log in anew)"
    raise NotFoundError("no container engine answers", remedy=remedy, problems=problems)


def _open(address: str, environment: Mapping[str, str]) -> docker.DockerClient:
    if "DOCKER_HOST" in environment:  # TLS settings travel with it
        return docker.from_env(
            version="auto", timeout=REQUEST_TIMEOUT, environment=dict(environment)
        )
    if not Path(urlsplit(address).path).exists():
        raise FileNotFoundError(address)
    return docker.DockerClient(base_url=address, version="auto", timeout=REQUEST_TIMEOUT)


def _why_silent(address: str, error: Exception) -> str:
    text = str(error)
    if isinstance(error, FileNotFoundError) or "No such file" in text:
        return "there is no such socket"
    if "Permission denied" in text:
        return "the socket is there, but this user lacks the permission to use it"
    if "Connection refused" in text:
        return "the socket is there, but nothing listens on it (the engine is not running)"
    return f"no usable answer: {text}"


class Engine:
    """A connection to an engine that answered; see `connect`."""

    def __init__(self, client: docker.DockerClient, address: str) -> None:
        self.client = client
        self.address = address
        self._info: EngineInfo | None = None

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself."""
        if self._info is None:
            version, info = self.client.version(), self.client.info()
            components = {c.get("Name", "") for c in version.get("Components", [])}
            podman = any("podman" in name.lower() for name in components)
            options = " ".join(info.get("SecurityOptions") or [])
            self._info = EngineInfo(
                kind="podman" if podman else "docker",
                version=version.get("Version", "unknown"),
                address=self.address,
                rootless="rootless" in options or bool(info.get("Rootless")),
                cgroup_version=str(info.get("CgroupVersion", "1")),
            )
        return self._info

    def close(self) -> None:
        """End the connection."""
        self.client.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        image_id: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        environment: Mapping[str, str] | None = None,
        network: bool = False,
        user: str | None = None,
        memory: int | None = None,
        workdir: str | None = None,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> RunResult:
        """Run a command in a fresh container and remove the container, whatever happens.

        argv: the command; an entry point of the image is not used. environment: added to the
        image's own; nothing of this process's is inherited. user: ``uid:gid``; under a rootless
        engine the container's root is used in its place, because that is this very user outside,
        while any other would be a stranger to the mounted folders. memory: limit in bytes, swap
        included. on_line: called with each line of either stream as it comes, without its end.

        Raises UsageError for a mount whose source is absent, NotFoundError for an unknown image,
        BuildError when the engine cannot start the command. A KeyboardInterrupt or an exception
        of `on_line` kills the container on its way out.
        """
        if self.info.rootless:
            user = None
        settings: dict[str, Any] = {
            "command": list(argv),
            "entrypoint": [],
            "environment": dict(environment or {}),
            "hostname": HOSTNAME,
            "labels": {RUN_LABEL: run_owner()},
            "mounts": [_docker_mount(mount) for mount in mounts],
            "security_opt": ["no-new-privileges"],
            "use_config_proxy": False,
            "user": user,
            "working_dir": workdir,
        }
        if not network:
            settings["network_mode"] = "none"
        if user is not None and user.split(":")[0] not in ("0", "root"):
            settings["cap_drop"] = ["ALL"]
        if memory is not None:
            settings["mem_limit"] = settings["memswap_limit"] = memory
        try:
            container = self.client.containers.create(image_id, **settings)
        except ImageNotFound as error:
            raise NotFoundError(
                f"the engine has no image {image_id}",
                found=_explain(error),
                remedy="build it with: builder toolchain build NAME",
            ) from error
        except APIError as error:
            raise _engine_error("the engine cannot make the container", error) from error
        try:
            return self._watch(container, on_line)
        finally:
            with suppress(APIError):
                container.remove(force=True, v=True)

    def reap(self) -> int:
        """Remove containers whose process on this machine is gone (killed -9); how many."""
        reaped = 0
        for container in self.client.containers.list(all=True, filters={"label": RUN_LABEL}):
            machine, _, process = container.labels[RUN_LABEL].rpartition(":")
            if machine == socket.gethostname() and not _alive(process):
                with suppress(APIError):
                    container.remove(force=True, v=True)
                    reaped += 1
        return reaped

    def _watch(self, container: Any, on_line: Callable[[str], None]) -> RunResult:
        try:
            # Attached before the start, so that no line can be missed.
            chunks = container.attach(stdout=True, stderr=True, stream=True, demux=True)
            clock = time.monotonic()
            container.start()
        except APIError as error:
            raise _engine_error("the engine cannot start the command", error) from error
        with UsageSampler(container) as sampler:
            splitters = (LineSplitter(on_line), LineSplitter(on_line))
            for pair in chunks:
                for splitter, chunk in zip(splitters, pair, strict=True):
                    if chunk:
                        splitter.feed(chunk)
            for splitter in splitters:
                splitter.end()
            exit_code = int(container.wait()["StatusCode"])
            seconds = time.monotonic() - clock
        usage = sampler.usage
        container.reload()
        return RunResult(
            exit_code=exit_code,
            seconds=round(seconds, 3),
            cpu_seconds=round(usage.cpu_seconds, 3),
            peak_memory_bytes=usage.peak_memory_bytes,
            high_water_bytes=usage.high_water_bytes,
            out_of_memory=bool(container.attrs["State"].get("OOMKilled")) or usage.oom_kills > 0,
        )


def _docker_mount(mount: Mount) -> DockerMount:
    source = Path(mount.source).absolute()
    if not source.exists():
        raise UsageError(
            f"nothing to mount at {mount.target}",
            expected="an existing file or folder",
            found=f"{source} does not exist",
        )
    return DockerMount(mount.target, str(source), type="bind", read_only=mount.read_only)


def _explain(error: APIError) -> str:
    return str(error.explanation or error)


def _engine_error(what: str, error: APIError) -> BuildError:
    return BuildError(what, found=_explain(error))
