"""What the load generator is asked to do, and what it answers: JSON over a pipe."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """So many `requests`, `concurrency` of them in flight, to the server at `host`:`port`.

    Prompts are `input_tokens` token ids from the half-open range `token_ids`, drawn by `seed`; or,
    when there are `texts`, these in turn. `stall_s`: give up when no request got a token for so
    long; `limit_s`: give up after so long. `output`: a file for every request's observations.
    """

    host: str
    port: int
    model: str
    requests: int
    concurrency: int
    input_tokens: int | None
    output_tokens: int
    token_ids: tuple[int, int]
    seed: str
    texts: tuple[str, ...] = ()
    stall_s: float = 60.0
    limit_s: float = 3600.0
    output: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> "Job":
        """The job of what `to_dict` gave."""
        return cls(
            **{
                **tree,
                "token_ids": tuple(tree["token_ids"]),
                "texts": tuple(tree["texts"]),
            }
        )

    def bodies(self) -> list[bytes]:
        """The HTTP bodies of all requests: the fields that ``vllm bench serve`` sends."""
        return [
            json.dumps(
                {
                    "model": self.model,
                    "prompt": prompt,
                    "repetition_penalty": 1.0,
                    "temperature": 0.0,
                    "max_tokens": self.output_tokens,
                    "logprobs": None,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "ignore_eos": True,
                }
            ).encode()
            for prompt in self._prompts()
        ]

    def _prompts(self) -> Sequence[str | list[int]]:
        if self.texts:
            return [self.texts[index % len(self.texts)] for index in range(self.requests)]
        first, end = self.token_ids
        choices = range(first, end)
        prompts: list[str | list[int]] = []
        for index in range(self.requests):
            # By hash, so that a prompt depends on nothing but its own name.
            state = hashlib.sha256(f"{self.seed}\x1f{index}".encode()).digest()
            chance = random.Random(int.from_bytes(state, "big"))
            prompts.append(chance.choices(choices, k=self.input_tokens or 1))
        return prompts


@dataclass(frozen=True)
class Answer:
    """`metrics` as by `kvreg.sweep.metrics`; `latencies` in seconds, a request each.

    `error` says why the run broke off: ``kind`` (``refused``, ``lost``, ``counts``, ``stalled``,
    ``too-long``, ``generator``) and ``what``; None when every request was answered in full.
    """

    metrics: Mapping[str, Any]
    latencies: tuple[float, ...]
    error: Mapping[str, str] | None
