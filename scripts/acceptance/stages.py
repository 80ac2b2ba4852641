"""The stages of an acceptance, in order."""

from __future__ import annotations

from acceptance.host import doctor, facts, imports, kernels, llm, pull, refusals, serve, staged
from acceptance.state import Stage
from acceptance.sweeping import boundary, evidence, judged, killed, nccl, sweep

STAGES = (
    Stage("facts", facts, 30, again=True),
    Stage("doctor", doctor, 30, ("facts",)),
    Stage("refusals", refusals, 30, ("facts",)),
    Stage("pull", pull, 60, ("facts",), again=True),
    Stage("staged", staged, 60, ("pull",)),
    Stage("imports", imports, 60, ("pull",)),
    Stage("kernels", kernels, 60, ("pull",)),
    Stage("llm", llm, 150, ("pull",)),
    Stage("serve", serve, 150, ("pull",)),
    Stage("boundary", boundary, 120, ("pull",)),
    Stage("nccl", nccl, 120, ("facts",)),
    Stage("killed", killed, 240, ("pull",)),
    Stage("sweep", sweep, 120, ("pull", "killed")),
    Stage("judged", judged, 60, ("sweep",)),
    Stage("evidence", evidence, 30, ("sweep",)),
)
