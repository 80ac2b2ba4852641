"""Memory of one rank: weights, KV cache, and what fits under a boundary.

The cache of a sequence of S tokens takes 2 · L · H_kv · D_h · B_e · S bytes: keys and values of L
layers with H_kv heads of D_h elements of B_e bytes. A layer with a sliding window keeps no more
than the window. Engines hand the cache out in blocks, so a sequence takes whole blocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvreg.capacity.architecture import DTYPES, KV_DTYPES, Architecture
from kvreg.capacity.parameters import (
    active,
    kv_heads_per_rank,
    obstacle,
    padded_vocabulary,
    per_rank,
    tensors,
    total,
)
from kvreg.errors import ContractError

MIB = 2**20
BLOCK_TOKENS = 16
"""vLLM's default block."""


@dataclass(frozen=True)
class Terms:
    """Under which terms memory is counted: element types, MiB per GPU, tokens per block.

    `overhead_mib` is what the engine uses beside weights and cache; the model cannot know it, the
    evidence of a sweep can.
    """

    dtype: str
    kv_dtype: str
    boundary_mib: float | None
    overhead_mib: float
    block: int = BLOCK_TOKENS


def kv_bytes(arch: Architecture, tokens: int, kv_dtype: str, *, tp: int = 1, block: int = 1) -> int:
    """Bytes of the cache of one sequence of `tokens` on one of `tp` ranks, in whole blocks."""
    heads = kv_heads_per_rank(arch, tp)
    kept = sum(
        _whole_blocks(tokens if window is None else min(tokens, window), block)
        for window in arch.windows
    )
    return 2 * heads * arch.head_dim * KV_DTYPES[kv_dtype] * kept


def _whole_blocks(tokens: int, block: int) -> int:
    return -(-tokens // block) * block


@dataclass(frozen=True)
class Sequence:
    """The cache of one sequence, and how many fit at once (None without a boundary)."""

    tokens: int
    bytes_total: int
    bytes_per_rank: int
    concurrency: int | None

    def to_dict(self) -> dict[str, Any]:
        """The sequence as JSON-ready data."""
        return {
            "tokens": self.tokens,
            "kv_bytes": self.bytes_total,
            "kv_bytes_per_gpu_in_blocks": self.bytes_per_rank,
            "concurrency": self.concurrency,
        }


@dataclass(frozen=True)
class Degree:
    """One TP degree: why it cannot run, or what each GPU holds."""

    tp: int
    obstacle: str | None
    weights: int | None = None
    kv_heads: int | None = None
    kv_replicated: bool = False
    budget: int | None = None
    sequences: tuple[Sequence, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The degree as JSON-ready data; bytes are per GPU."""
        return {
            "tp": self.tp,
            "obstacle": self.obstacle,
            "weight_bytes_per_gpu": self.weights,
            "kv_heads_per_gpu": self.kv_heads,
            "kv_heads_replicated": self.kv_replicated,
            "kv_budget_bytes_per_gpu": self.budget,
            "weights_fit": None if self.budget is None else self.budget >= 0,
            "sequences": [sequence.to_dict() for sequence in self.sequences],
        }


@dataclass(frozen=True)
class Capacity:
    """What a model needs at each degree, and what fits."""

    arch: Architecture
    terms: Terms
    degrees: tuple[Degree, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data.

        ::

            model     {"model_type", "parameters", "active_parameters", "by_kind": {kind: n},
                       "layers", "kv_heads", "head_dim", "tied_embeddings", "padded_vocabulary",
                       "sliding_layers", "window", "max_context", "experts": null | {..}}
            terms     {"dtype", "kv_dtype", "boundary_mib", "overhead_mib", "block_tokens"}
            kv_bytes_per_token   of all layers with full attention and sliding ones alike
            degrees   [{"tp", "obstacle": words | null, "weight_bytes_per_gpu", "kv_heads_per_gpu",
                        "kv_heads_replicated", "kv_budget_bytes_per_gpu": null without a boundary,
                        "weights_fit", "sequences": [{"tokens", "kv_bytes": of the equation,
                        "kv_bytes_per_gpu_in_blocks", "concurrency"}]}]

        With evidence the command adds ``observed`` (see `Observation.to_dict`), ``beyond`` (by
        degree, what the engine used beyond the prediction) and ``evidence`` (the identity).
        """
        arch = self.arch
        sliding = [window for window in arch.windows if window is not None]
        experts = arch.experts
        return {
            "schema": 1,
            "kind": "kvreg-capacity",
            "model": {
                "model_type": arch.model_type,
                "parameters": total(arch),
                "active_parameters": active(arch),
                "by_kind": {item.name: item.elements for item in tensors(arch)},
                "layers": arch.layers,
                "kv_heads": arch.kv_heads,
                "head_dim": arch.head_dim,
                "tied_embeddings": arch.tied,
                "padded_vocabulary": padded_vocabulary(arch),
                "sliding_layers": len(sliding),
                "window": sliding[0] if sliding else None,
                "max_context": arch.max_context,
                "experts": (
                    {"count": experts.count, "used": experts.used, "layers": len(experts.layers)}
                    if experts
                    else None
                ),
                "quantization": arch.quantization,
            },
            "terms": {
                "dtype": self.terms.dtype,
                "kv_dtype": self.terms.kv_dtype,
                "boundary_mib": self.terms.boundary_mib,
                "overhead_mib": self.terms.overhead_mib,
                "block_tokens": self.terms.block,
            },
            "kv_bytes_per_token": kv_bytes(arch, 1, self.terms.kv_dtype),
            "degrees": [degree.to_dict() for degree in self.degrees],
        }


def capacity(
    arch: Architecture,
    terms: Terms,
    degrees: Iterable[int],
    contexts: Iterable[int],
    *,
    unquantized: bool = False,
) -> Capacity:
    """What each degree holds, and how many sequences of each length fit.

    Raises `ContractError` for a quantized checkpoint, whose weights are not modelled; with
    `unquantized` they are counted as if they were of `terms.dtype`.
    """
    if arch.quantization is not None and not unquantized:
        raise ContractError(
            f"weights quantized with {arch.quantization} are not modelled",
            remedy="give --dtype to count the weights as if they were not quantized",
        )
    contexts = tuple(contexts)
    return Capacity(
        arch, terms, tuple(_degree(arch, terms, tp, contexts) for tp in sorted(set(degrees)))
    )


def _degree(arch: Architecture, terms: Terms, tp: int, contexts: tuple[int, ...]) -> Degree:
    if reason := obstacle(arch, tp):
        return Degree(tp, reason)
    weights = per_rank(arch, tp) * DTYPES[terms.dtype]
    budget = None
    if terms.boundary_mib is not None:
        budget = int((terms.boundary_mib - terms.overhead_mib) * MIB) - weights
    return Degree(
        tp,
        None,
        weights,
        kv_heads_per_rank(arch, tp),
        tp > arch.kv_heads,
        budget,
        tuple(_sequence(arch, terms, tp, tokens, budget) for tokens in contexts),
    )


def _sequence(
    arch: Architecture, terms: Terms, tp: int, tokens: int, budget: int | None
) -> Sequence:
    mine = kv_bytes(arch, tokens, terms.kv_dtype, tp=tp, block=terms.block)
    fits = None if budget is None else max(0, budget // mine)
    return Sequence(tokens, kv_bytes(arch, tokens, terms.kv_dtype), mine, fits)
