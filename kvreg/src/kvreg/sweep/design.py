"""The parts of a plan, as data; `kvreg.sweep.plan` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvreg.sweep.reading import Setting

FRESH_SERVER = "fresh-server"
WITHIN_SERVER = "within-server"
ORDERS = ("interleaved", "as-written")
PERFORMANCE = "performance"
GATE_ONLY = "gate"


@dataclass(frozen=True)
class Model:
    """A model at a fixed commit. With role ``gate`` it only passes the compatibility gate."""

    name: str
    repository: str
    revision: str
    role: str
    engine: Mapping[str, Setting] = field(hash=False)


@dataclass(frozen=True)
class Prompt:
    """A text to send as it is, and the language that it is in."""

    language: str
    text: str


@dataclass(frozen=True)
class Workload:
    """A token shape: exact counts, or `prompts` as texts with `input_tokens` None.

    `concurrency` overrides the design's. `engine` holds settings that differ from the plan's, the
    same in all arms.
    """

    name: str
    input_tokens: int | None
    output_tokens: int
    concurrency: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    engine: Mapping[str, Setting] = field(hash=False)


@dataclass(frozen=True)
class Design:
    """`tensor_parallel` degrees are the arms; a repetition of all arms is a matched one."""

    tensor_parallel: tuple[int, ...]
    concurrency: tuple[int, ...]
    repetitions: int
    seed: int
    order: str
    replication: str


@dataclass(frozen=True)
class Requests:
    """How many requests a cell sends; see `kvreg.sweep.pilot`.

    `precision` is the wanted half width of the 95 % interval of a cell's throughput, relative to
    it. One wave is as many requests as the concurrency. `min_seconds` (0 by default) and
    `max_seconds` bound how long a cell measures, at its pilot's pace. `token_ids` is the half-open
    range that prompts are drawn from.
    """

    precision: float
    warmup_waves: int
    pilot_waves: int
    min_waves: int
    max_requests: int
    max_seconds: float
    token_ids: tuple[int, int]
    min_seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Memory in MiB per GPU, times in seconds; `attempts` of a failed cell."""

    memory_boundary_mib: int
    idle_tolerance_mib: int
    start_s: float
    stall_s: float
    measure_s: float
    stop_s: float
    idle_s: float
    attempts: int


@dataclass(frozen=True)
class Expected:
    """Seconds that the parts of a cell are expected to take; `warm_s` once per compile cache."""

    start_s: float
    warm_s: float
    measure_s: float
    stop_s: float
    other_s: float

    @property
    def cell_s(self) -> float:
        """One cell in a fresh server, caches warm."""
        return self.start_s + self.measure_s + self.stop_s + self.other_s
