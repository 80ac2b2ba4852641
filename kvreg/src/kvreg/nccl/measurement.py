"""Run the ranks of a communication measurement, each repetition in fresh processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.nccl.design import Design, captured
from kvreg.nccl.record import Record, Repetition

RECORDED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
RECORDED_NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS")

_LEAVE_S = 20.0  # for ranks that have their result and only have to end
_LOG_TAIL = 4000


@dataclass(frozen=True)
class Host:
    """Where ranks run: an interpreter that has torch, and what it sees (`worker.survey`)."""

    python: str
    survey: dict[str, Any]

    @property
    def gpus(self) -> int:
        """How many GPUs torch sees."""
        return len(self.survey["devices"])


def survey_host(python: str | None = None, timeout_s: float = 300) -> Host:
    """Ask an interpreter (default: this one) for its torch and GPUs.

    Raises `NotFoundError` when it has no torch, `ContractError` when torch fails there.
    """
    python = python or sys.executable
    with _Ranks(python, environment(None)) as ranks:
        ranks.start(0, {"task": "survey"})
        try:
            [survey] = ranks.results(timeout_s)
        except ContractError as error:
            if "No module named 'torch'" not in (error.found or ""):
                raise
            raise NotFoundError(
                "this interpreter has no torch",
                expected="an interpreter that can import torch",
                found=python,
                remedy="name one with --python, or run in the notebook's own interpreter",
            ) from error
    return Host(python, survey)


def choose_backend(wanted: str | None, ranks: int, host: Host) -> str:
    """The backend to measure with: the wanted one, else NCCL where there is a GPU, else gloo.

    Raises `UsageError` when there are GPUs but fewer than ranks: gloo then has to be asked for.
    """
    backend = wanted or ("nccl" if host.gpus else "gloo")
    if backend == "nccl" and host.gpus < ranks:
        raise UsageError(
            "NCCL needs a GPU for every rank",
            expected=f"{ranks} GPUs",
            found=f"{host.gpus}",
            remedy="choose fewer ranks with --tp, or --backend gloo to measure host memory",
        )
    return backend


def environment(design: Design | None) -> dict[str, str]:
    """The environment of the ranks: the caller's, and what the design asks for."""
    variables = dict(os.environ)
    if design is not None and not design.peer:
        variables["NCCL_P2P_DISABLE"] = "1"
    if design is not None and design.backend == "gloo":
        # Ranks of one host; a host name that resolves nowhere must not matter.
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return variables


def describe(host: Host, variables: dict[str, str]) -> dict[str, Any]:
    """What a repetition's times depend on beside its design."""
    named = {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(RECORDED_PREFIXES) or name in RECORDED_NAMES
    }
    return {**host.survey, "variables": named}


def measure(
    record: Record, host: Host, *, timeout_s: float = 900, done: Callable[[], object] = lambda: None
) -> int:
    """Run the repetitions that `record` lacks and add each as it ends; returns how many ran.

    `done` is called after each. Raises `ContractError` when a rank fails or takes longer than
    `timeout_s` seconds; what was measured before stays in the record.
    """
    design = record.design
    variables = environment(design)
    described = describe(host, variables)
    record.check_environment(described)
    missing = record.missing()
    for index in missing:
        started = time.monotonic()
        samples, unavailable = _repetition(design, index, host.python, variables, timeout_s)
        seconds = round(time.monotonic() - started, 3)
        record.add(Repetition(index, described, samples, unavailable, seconds))
        done()
    return len(missing)


def _repetition(
    design: Design, index: int, python: str, variables: dict[str, str], timeout_s: float
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    job = {
        "task": "measure",
        "backend": design.backend,
        "ranks": design.ranks,
        "payloads": design.order(index),
        "collectives": design.collectives,
        "warmup": design.warmup,
        "dtype": design.dtype,
        "captured": {str(payload): captured(payload) for payload in design.payloads},
        "timeout_s": timeout_s,
    }
    with _Ranks(python, variables) as ranks:
        for rank in range(design.ranks):
            ranks.start(rank, {**job, "rank": rank, "store": str(ranks.folder / "store")})
        results = ranks.results(timeout_s)
    unavailable: dict[str, str] = {}
    for result in results:
        unavailable.update(result["unavailable"])
    return _slowest([result["samples"] for result in results], unavailable), unavailable


def _slowest(
    by_rank: list[list[dict[str, Any]]], unavailable: dict[str, str]
) -> list[dict[str, Any]]:
    """One list of samples from the ranks' lists: of each collective the slowest rank (to 1 ns)."""
    keyed = [{(s["bytes"], s["timer"]): s for s in samples} for samples in by_rank]
    kept = []
    for key, sample in keyed[0].items():
        if key[1] in unavailable:
            continue  # a timer that failed half-way would compare different sets of payloads
        columns = zip(*(samples[key]["us"] for samples in keyed), strict=True)
        kept.append({**sample, "us": [round(max(column), 3) for column in columns]})
    return kept


class _Ranks:
    """Worker processes in a folder of their own; leaving the context ends every one of them."""

    def __init__(self, python: str, variables: dict[str, str]) -> None:
        self._python, self._variables = python, variables
        self._scratch = tempfile.TemporaryDirectory(prefix="kvreg-nccl-")
        self.folder = Path(self._scratch.name)
        self._worker = self.folder / "worker.py"
        source = resources.files("kvreg.nccl").joinpath("worker.py").read_text("utf-8")
        self._worker.write_text(source, "utf-8")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "_Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.stdin:
                process.stdin.close()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._scratch.cleanup()

    def start(self, rank: int, job: dict[str, Any]) -> None:
        """Start the process of one rank."""
        path = self.folder / f"job-{rank}.json"
        path.write_text(json.dumps({**job, "result": str(self._result(rank))}))
        with self._log(rank).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [self._python, self._worker.name, path.name],
                    cwd=self.folder,
                    env=self._variables,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def results(self, timeout_s: float) -> list[dict[str, Any]]:
        """Every rank's result. A rank that ends without one, or none in time: `ContractError`."""
        deadline = time.monotonic() + timeout_s
        paths = [self._result(rank) for rank in range(len(self._processes))]
        while not all(path.exists() for path in paths):
            for rank, process in enumerate(self._processes):
                if process.poll() is not None and not paths[rank].exists():
                    raise self._failure(rank, f"ended with status {process.returncode}")
            if time.monotonic() > deadline:
                late = next(rank for rank, path in enumerate(paths) if not path.exists())
                raise self._failure(late, f"had no result after {timeout_s:g} s")
            time.sleep(0.02)
        # A communicator that hangs while it is torn down takes no measurement with it.
        leave = time.monotonic() + _LEAVE_S
        while any(p.poll() is None for p in self._processes) and time.monotonic() < leave:
            time.sleep(0.02)
        return [json.loads(path.read_text()) for path in paths]

    def _failure(self, rank: int, what: str) -> ContractError:
        tail = self._log(rank).read_text("utf-8", "replace")[-_LOG_TAIL:].strip()
        return ContractError(
            f"rank {rank} {what}",
            expected="a result from every rank",
            found=tail or "nothing in its log",
            remedy="NCCL_DEBUG=INFO in the environment makes NCCL say what it does",
        )

    def _result(self, rank: int) -> Path:
        return self.folder / f"result-{rank}.json"

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"
