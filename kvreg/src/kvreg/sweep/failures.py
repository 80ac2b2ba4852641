"""What a server's log says about why it failed: patterns as data.

The first rule that matches decides. Running out of memory is a capacity outcome, a model or kernel
that this device cannot run a compatibility outcome, everything else a failure.
"""

import re
from dataclasses import dataclass

from kvreg.sweep.ledger import FAILED, INCOMPATIBLE, RESOURCE_GATED

TAIL_BYTES = 4000


@dataclass(frozen=True)
class Verdict:
    """A state and the reason for it."""

    state: str
    reason: str


RULES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (state, meaning, re.compile(pattern, re.IGNORECASE))
    for state, meaning, pattern in (
        (RESOURCE_GATED, "the engine ran out of GPU memory", r"(CUDA|HIP) out of memory"),
        (RESOURCE_GATED, "the engine ran out of GPU memory", r"torch(\.cuda)?\.OutOfMemoryError"),
        (RESOURCE_GATED, "the engine ran out of GPU memory", r"CUDA error: out of memory"),
        (RESOURCE_GATED, "NCCL ran out of GPU memory", r"NCCL\b.*out of memory"),
        (
            RESOURCE_GATED,
            "no memory is left for the KV cache",
            r"No available memory for the cache blocks",
        ),
        (
            RESOURCE_GATED,
            "the KV cache has no room for one sequence",
            r"KV cache is needed, which is larger than the available KV cache memory",
        ),
        (
            INCOMPATIBLE,
            "the device has no bfloat16",
            r"Bfloat16 is only supported on GPUs with compute capability",
        ),
        (
            INCOMPATIBLE,
            "the model's data type is refused",
            r"does not support (float16|bfloat16|float32|dtype)|not support .{0,40}dtype",
        ),
        (
            INCOMPATIBLE,
            "no device code for this GPU",
            r"no kernel image is available for execution on the device",
        ),
        (
            INCOMPATIBLE,
            "the engine does not know the model",
            r"Model architectures .{0,200}not supported",
        ),
        (
            INCOMPATIBLE,
            "no attention backend for the model on this device",
            r"No valid attention backend found|Selected backend \S+ is not valid",
        ),
        (
            INCOMPATIBLE,
            "a kernel needs another compute capability",
            r"(requires?|only supported on|supports?)\b.{0,80}compute capability",
        ),
        (
            INCOMPATIBLE,
            "the model has no such parallel degree",
            r"must be divisible by tensor parallel size|is not divisible by .{0,40}parallel",
        ),
    )
)


# Lines of vLLM's logger below the level of an error: warnings about backends that a device lacks
# are part of every healthy start on it.
_CALM = re.compile(r"\b(DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d")


def verdict_on(log: str, otherwise: str, *, starting: bool) -> Verdict:
    """The verdict that a log asks for; `FAILED` with the reason `otherwise` if none.

    A server that was healthy once (not `starting`) has shown that it is compatible, so what looks
    like the contrary in its log is none.

    >>> log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    >>> verdict_on(log, "", starting=False).state
    'RESOURCE_GATED'
    >>> verdict_on("Segmentation fault", "the server was killed by SIGSEGV", starting=True)
    Verdict(state='FAILED', reason='the server was killed by SIGSEGV')
    """
    lines = [line for line in log.splitlines() if _CALM.search(line) is None]
    text = "\n".join(lines)
    for state, meaning, pattern in RULES:
        if state == INCOMPATIBLE and not starting:
            continue
        if (match := pattern.search(text)) is not None:
            start = text.rfind("\n", 0, match.start()) + 1
            end = text.find("\n", match.end())
            line = text[start : end if end >= 0 else len(text)].strip()
            return Verdict(state, f"{meaning}: {line[:300]}")
    return Verdict(FAILED, otherwise)
