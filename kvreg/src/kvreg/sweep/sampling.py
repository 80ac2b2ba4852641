"""GPU samples at 10 Hz: memory, utilisation, power and clocks of every GPU.

A sampler runs for the whole session and keeps what it saw; a cell takes its own window out. Kinds:

================  ===========================================================================
``nvml``          through NVML, in a thread
``nvidia-smi``    one ``nvidia-smi`` that prints every 100 ms
``command:CMD``   any command that prints what that one prints, for other devices
``none``          nothing is seen: memory is unknown and the boundary is not enforced
================  ===========================================================================

``auto`` is the first of NVML, nvidia-smi and none that works here. NVML and nvidia-smi count memory
alike: used, without what the driver reserves.
"""

import csv
import io
import shlex
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from kvreg.errors import NotFoundError, UsageError

PERIOD_S = 0.1
COLUMNS = (
    "time_s",
    "gpu",
    "memory_mib",
    "utilization_percent",
    "power_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
)

_QUERY = "index,memory.used,utilization.gpu,power.draw,clocks.sm,clocks.mem"
_SMI = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "--loop-ms=100")
_KEPT = 2_000_000
_FIRST_S = 15.0
_LATE_S = 5.0


@dataclass(frozen=True)
class Sample:
    """One GPU at one time (monotonic seconds); what the device does not tell is None."""

    time: float
    gpu: int
    memory_mib: float
    utilization: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None


class Sampler:
    """Keeps samples; the subclasses make them. `kind` is what it calls itself in records."""

    kind = "none"
    sees = False
    """Whether it sees any memory at all."""

    def __init__(self, visible: frozenset[int] | None = None) -> None:
        self._visible = visible
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._latest: dict[int, Sample] = {}
        self._lock = threading.Lock()
        self._first = threading.Event()
        self._closing = threading.Event()

    def latest(self) -> dict[int, Sample]:
        """The last sample of each GPU. Raises `UsageError` if they stopped coming."""
        with self._lock:
            found = dict(self._latest)
        if found and time.monotonic() - max(item.time for item in found.values()) > _LATE_S:
            raise UsageError(
                f"the sampler {self.kind} has stopped",
                expected=f"a sample every {PERIOD_S:g} s",
                remedy="choose another with --sampler",
            )
        return found

    def window(self, since: float) -> list[Sample]:
        """The samples from a time on; older ones are forgotten."""
        with self._lock:
            while self._samples and self._samples[0].time < since:
                self._samples.popleft()
            return list(self._samples)

    def await_first(self) -> None:
        """Wait for the first sample. Raises `UsageError` when none comes."""
        if self.sees and not self._first.wait(_FIRST_S):
            self.close()
            raise UsageError(
                f"the sampler {self.kind} gives no samples",
                remedy="choose another with --sampler, or --sampler none",
            )

    def close(self) -> None:
        """Stop sampling."""
        self._closing.set()

    def _keep(self, samples: Iterable[Sample]) -> None:
        with self._lock:
            for sample in samples:
                if self._visible is None or sample.gpu in self._visible:
                    self._samples.append(sample)
                    self._latest[sample.gpu] = sample
        self._first.set()


class NvmlSampler(Sampler):
    """Samples through NVML. `nvml` is the module ``pynvml``, initialised."""

    kind = "nvml"
    sees = True

    def __init__(self, nvml: Any, visible: frozenset[int] | None = None) -> None:
        super().__init__(visible)
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._thread = threading.Thread(target=self._loop, name="nvml", daemon=True)
        self._thread.start()

    def close(self) -> None:
        super().close()
        self._thread.join(2)

    def _loop(self) -> None:
        due = time.monotonic()
        while not self._closing.is_set():
            self._keep([self._sample(index) for index in range(len(self._devices))])
            due = max(due + PERIOD_S, time.monotonic())
            self._closing.wait(due - time.monotonic())

    def _sample(self, index: int) -> Sample:
        nvml, device = self._nvml, self._devices[index]
        return Sample(
            time=time.monotonic(),
            gpu=index,
            memory_mib=self._memory(device) / 2**20,
            utilization=self._maybe(lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu),
            power_w=self._maybe(lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000),
            sm_clock_mhz=self._maybe(
                lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)
            ),
            memory_clock_mhz=self._maybe(
                lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM)
            ),
        )

    def _memory(self, device: Any) -> float:
        nvml = self._nvml
        try:
            # The second version leaves out what the driver reserves, as nvidia-smi does.
            return float(nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2).used)
        except (AttributeError, TypeError, nvml.NVMLError):
            return float(nvml.nvmlDeviceGetMemoryInfo(device).used)

    def _maybe(self, read: Callable[[], float]) -> float | None:
        try:
            return float(read())
        except self._nvml.NVMLError:
            return None


class CommandSampler(Sampler):
    """Samples out of the lines of a command: index, MiB, percent, W, MHz, MHz."""

    sees = True

    def __init__(
        self, kind: str, command: Sequence[str], visible: frozenset[int] | None = None
    ) -> None:
        super().__init__(visible)
        self.kind = kind
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise NotFoundError(f"there is no command {command[0]!r} for the sampler") from None
        self._thread = threading.Thread(target=self._loop, name=kind, daemon=True)
        self._thread.start()

    def close(self) -> None:
        super().close()
        self._process.kill()
        self._process.wait()
        self._thread.join(2)

    def _loop(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (sample := parse_sample(line, time.monotonic())) is not None:
                self._keep([sample])


def parse_sample(line: str, at: float) -> Sample | None:
    """A sample out of one line of ``nvidia-smi``; None if it is none.

    >>> parse_sample("0, 14895, 98, 68.21, 1590, 5000", 1.5)
    Sample(time=1.5, gpu=0, memory_mib=14895.0, utilization=98.0, power_w=68.21, \
sm_clock_mhz=1590.0, memory_clock_mhz=5000.0)
    >>> parse_sample("0, 3, [N/A], [N/A], [N/A], [N/A]", 0.0).power_w is None
    True
    """
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 6 or not fields[0].isdigit():
        return None
    try:
        memory = float(fields[1])
    except ValueError:
        return None
    return Sample(at, int(fields[0]), memory, *(_number(field) for field in fields[2:]))


def open_sampler(choice: str, visible: frozenset[int] | None = None) -> Sampler:
    """The sampler of a ``--sampler`` option, once it has given its first sample.

    `visible`: only these GPUs count, by their index on the bus; all when None.
    """
    sampler = _open(choice, visible)
    sampler.await_first()
    return sampler


def visible_gpus(environment: Mapping[str, str]) -> frozenset[int] | None:
    """The indices in ``CUDA_VISIBLE_DEVICES``; None when it is not set or names no indices.

    >>> sorted(visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}))
    [2, 3]
    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8a1e3c"}) is None
    True
    """
    parts = [part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return frozenset(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _open(choice: str, visible: frozenset[int] | None) -> Sampler:
    if choice.startswith("command:"):
        return CommandSampler("command", shlex.split(choice.removeprefix("command:")), visible)
    if choice not in ("auto", "nvml", "nvidia-smi", "none"):
        raise UsageError(
            "there is no such sampler",
            expected="auto, nvml, nvidia-smi, command:CMD or none",
            found=choice,
        )
    if choice in ("auto", "nvml"):
        try:
            import pynvml

            pynvml.nvmlInit()
            return NvmlSampler(pynvml, visible)
        except ImportError:
            reason = "there is no module pynvml"
        except Exception as error:  # pynvml's own errors can only be named where it is there
            reason = f"NVML does not work here: {error}"
        if choice == "nvml":
            raise NotFoundError(reason, remedy="pip install nvidia-ml-py, or --sampler nvidia-smi")
    if choice == "nvidia-smi" or (choice == "auto" and shutil.which("nvidia-smi")):
        return CommandSampler("nvidia-smi", _SMI, visible)
    return Sampler()


def peak_memory(samples: Iterable[Sample]) -> float | None:
    """The most memory of any GPU at any time, in MiB."""
    return max((sample.memory_mib for sample in samples), default=None)


def sample_table(samples: Iterable[Sample], since: float) -> str:
    """``samples.csv``: one line a sample, times in seconds after `since`."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for sample in samples:
        at, *rest = astuple(sample)
        values = ["" if value is None else f"{value:.10g}" for value in rest]
        writer.writerow([f"{at - since:.3f}", *values])
    return stream.getvalue()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
