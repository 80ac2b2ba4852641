"""The memory of the GPUs while cells run: the idle level, the boundary, the way back to idle."""

import time

from kvreg.sweep.design import Limits
from kvreg.sweep.failures import Verdict
from kvreg.sweep.ledger import RESOURCE_GATED
from kvreg.sweep.sampling import Sampler

_POLL_S = 0.02


class Devices:
    """All GPUs that the sampler sees, held against the plan's limits."""

    def __init__(self, sampler: Sampler, limits: Limits) -> None:
        self.sampler = sampler
        self.limits = limits
        self.idle = {gpu: sample.memory_mib for gpu, sample in sampler.latest().items()}

    def over_boundary(self) -> Verdict | None:
        """The verdict when a GPU is past the boundary now."""
        for gpu, sample in self.sampler.latest().items():
            if sample.memory_mib > self.limits.memory_boundary_mib:
                return self.gated(gpu, sample.memory_mib)
        return None

    def gated(self, gpu: int, memory_mib: float) -> Verdict:
        """The verdict on a GPU with so much memory in use."""
        return Verdict(
            RESOURCE_GATED,
            f"GPU {gpu} had {memory_mib:.0f} MiB in use, "
            f"past the boundary of {self.limits.memory_boundary_mib} MiB",
        )

    def busy(self) -> dict[int, float]:
        """GPUs with more memory in use than when idle, by more than the tolerance: MiB."""
        return {
            gpu: sample.memory_mib
            for gpu, sample in self.sampler.latest().items()
            if sample.memory_mib > self.idle.get(gpu, 0.0) + self.limits.idle_tolerance_mib
        }

    def await_idle(self) -> dict[int, float]:
        """Wait until all are idle, at most `idle_s`; those that are not, with their MiB.

        Only samples from after the call count.
        """
        if not self.sampler.sees:
            return {}
        began = time.monotonic()
        while True:
            latest = self.sampler.latest()
            fresh = all(sample.time > began for sample in latest.values())
            busy = self.busy() if fresh else None
            if busy == {}:
                return {}
            if time.monotonic() - began > self.limits.idle_s:
                return self.busy()
            time.sleep(_POLL_S)
