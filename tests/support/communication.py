"""Communication measurements that never ran: observations of a line that is known."""

import random
from pathlib import Path

from kvreg.nccl.design import Design, captured
from kvreg.nccl.record import Record, Repetition

ENVIRONMENT = {
    "python": "3.12.13",
    "machine": "x86_64",
    "torch": "2.10.0+cu128",
    "cuda": "12.8",
    "nccl": "2.27.5",
    "devices": [{"name": "Tesla T4", "capability": "7.5", "memory_mib": 15360}] * 2,
    "peer_access": [[True, False], [False, True]],
    "variables": {},
}

LAUNCH_US = 25.0
"""What a host-timed call costs on top, in the simulation."""


def simulate(
    path: Path,
    latency_us: float,
    bandwidth: float,
    *,
    design: Design | None = None,
    noise: float = 0.03,
    between: float = 0.003,
    seed: int = 1,
) -> Record:
    """A complete measurement of T(S) = `latency_us` + S/`bandwidth` (GB/s), marked as simulated.

    Every collective has relative noise `noise`, every repetition a common factor of deviation
    `between`; host-timed calls cost `LAUNCH_US` more.
    """
    design = design or Design()
    rng = random.Random(seed)
    record = Record(path, design, simulated=True)
    record.begin()
    for index in range(design.repetitions):
        factor = 1 + rng.gauss(0, between)
        samples = []
        for payload in design.order(index):
            for timer in ("host", "event", "graph"):
                true = latency_us + payload / bandwidth / 1000
                true += LAUNCH_US if timer == "host" else 0
                times = [
                    round(true * factor * max(0.5, 1 + rng.gauss(0, noise)), 3)
                    for _ in range(design.collectives)
                ]
                calls = captured(payload) if timer == "graph" else 1
                samples.append({"bytes": payload, "timer": timer, "calls": calls, "us": times})
        record.add(Repetition(index, ENVIRONMENT, samples, {}, 1.0))
    return record
