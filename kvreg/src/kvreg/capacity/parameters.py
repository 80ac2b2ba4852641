"""Counting parameters: in all, those that a token uses, and those that one rank holds.

Tensor parallelism divides heads, intermediate columns and rows of the vocabulary; normalisations,
routers and position tables are whole on every rank. Key and value heads are divided while there
are enough of them and repeated where a degree exceeds their number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from kvreg.capacity.architecture import Architecture

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it divides the rows."""


class Split(Enum):
    """How a rank's share of a tensor follows from the degree."""

    EVEN = "divided"
    KV = "by key-value heads"
    VOCABULARY = "by padded vocabulary rows"
    WHOLE = "on every rank"


@dataclass(frozen=True)
class Tensors:
    """Parameters of one kind: `elements` in all copies; a token uses `active` of them."""

    name: str
    elements: int
    split: Split
    active: int | None = None


def tensors(arch: Architecture) -> Iterator[Tensors]:
    """Every parameter of the model, by kind."""
    yield from _embeddings(arch)
    yield from _attention(arch)
    yield from _mlp(arch)
    norm = arch.hidden * (2 if arch.family.norm_bias else 1)
    count = arch.layers * arch.family.norms + int(arch.final_norm)
    yield Tensors("normalisations", norm * count, Split.WHOLE)
    if arch.vision is not None:
        yield Tensors("vision, divided", arch.vision.divided, Split.EVEN)
        yield Tensors("vision, whole", arch.vision.whole, Split.WHOLE)


def total(arch: Architecture) -> int:
    """The parameter count, as a checkpoint has them (tied embeddings once)."""
    return sum(item.elements for item in tensors(arch))


def active(arch: Architecture) -> int:
    """The parameters that one token passes: of the routed experts only the chosen ones."""
    return sum(item.elements if item.active is None else item.active for item in tensors(arch))


def per_rank(arch: Architecture, tp: int) -> int:
    """The parameters that one of `tp` ranks holds; `obstacle` must be None."""
    return sum(_share(item, arch, tp) for item in tensors(arch))


def kv_heads_per_rank(arch: Architecture, tp: int) -> int:
    """Key-value heads of one rank: at least one, repeated where the degree exceeds their number."""
    return max(1, arch.kv_heads // tp)


def padded_vocabulary(arch: Architecture) -> int:
    """Rows of the embedding after padding."""
    return -(-arch.vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING


def obstacle(arch: Architecture, tp: int) -> str | None:
    """Why the model cannot run at this degree, or None."""
    if arch.heads % tp:
        return f"{arch.heads} attention heads do not divide by {tp}"
    if arch.kv_heads % tp and tp % arch.kv_heads:
        return f"{arch.kv_heads} key-value heads neither divide by {tp} nor repeat evenly"
    inner = {arch.intermediate}
    if arch.experts is not None:
        inner = {arch.experts.intermediate, arch.experts.shared}
        if len(arch.experts.layers) < arch.layers:
            inner.add(arch.intermediate)
    for size in sorted(inner):
        if size % tp:
            return f"intermediate size {size} does not divide by {tp}"
    if padded_vocabulary(arch) % tp:
        return f"{padded_vocabulary(arch)} padded vocabulary rows do not divide by {tp}"
    return None


def _share(item: Tensors, arch: Architecture, tp: int) -> int:
    match item.split:
        case Split.EVEN:
            return -(-item.elements // tp)
        case Split.KV:
            return item.elements // arch.kv_heads * kv_heads_per_rank(arch, tp)
        case Split.VOCABULARY:
            return item.elements // arch.vocab * (padded_vocabulary(arch) // tp)
        case Split.WHOLE:
            return item.elements


def _embeddings(arch: Architecture) -> Iterator[Tensors]:
    width = arch.projection or arch.hidden
    yield Tensors("embedding", arch.vocab * width, Split.VOCABULARY)
    if not arch.tied:
        yield Tensors("output head", arch.vocab * width, Split.VOCABULARY)
    if arch.projection is not None:
        yield Tensors("embedding projections", 2 * width * arch.hidden, Split.WHOLE)
    if arch.family.learned_positions is not None:
        rows = arch.max_context + arch.family.learned_positions
        yield Tensors("positions", rows * arch.hidden, Split.WHOLE)


def _attention(arch: Architecture) -> Iterator[Tensors]:
    qkv_bias, out_bias, _ = arch.biases
    q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    yield Tensors("queries", arch.layers * q * (arch.hidden + qkv_bias), Split.EVEN)
    yield Tensors("keys and values", arch.layers * 2 * kv * (arch.hidden + qkv_bias), Split.KV)
    yield Tensors("attention output", arch.layers * q * arch.hidden, Split.EVEN)
    if out_bias:  # added once, after the ranks' sums
        yield Tensors("attention output bias", arch.layers * arch.hidden, Split.WHOLE)
    if arch.family.qk_norm:
        yield Tensors("query and key norms", arch.layers * 2 * arch.head_dim, Split.WHOLE)


def _mlp(arch: Architecture) -> Iterator[Tensors]:
    matrices = 3 if arch.family.gated_mlp else 2
    experts = arch.experts
    dense = arch.layers - (len(experts.layers) if experts else 0)
    if dense:
        yield Tensors("mlp", dense * matrices * arch.hidden * arch.intermediate, Split.EVEN)
        if arch.biases[2]:
            inward = (matrices - 1) * arch.intermediate
            yield Tensors("mlp bias inward", dense * inward, Split.EVEN)
            yield Tensors("mlp bias outward", dense * arch.hidden, Split.WHOLE)
    if experts:
        sparse = len(experts.layers)
        one = matrices * arch.hidden * experts.intermediate
        yield Tensors(
            "experts",
            sparse * experts.count * one,
            Split.EVEN,
            active=sparse * experts.used * one,
        )
        yield Tensors("routers", sparse * arch.hidden * experts.count, Split.WHOLE)
        if experts.shared:
            shared = matrices * arch.hidden * experts.shared
            yield Tensors("shared experts", sparse * shared, Split.EVEN)
            yield Tensors("shared expert gates", sparse * arch.hidden, Split.WHOLE)
