"""An architecture, as its ``config.json`` tells it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.capacity.families import FAMILIES, TOWERS, Family
from kvreg.errors import ContractError, NotFoundError, Problem

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element of weights."""

KV_DTYPES = {**DTYPES, "fp8": 1}
"""Bytes of one element of the KV cache."""


@dataclass(frozen=True)
class Experts:
    """Routed experts of the sparse layers, and the shared one (intermediate size 0: none)."""

    count: int
    used: int
    intermediate: int
    shared: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Vision:
    """A vision tower and its projector, as counts of parameters that TP divides and does not."""

    kind: str
    divided: int
    whole: int


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder. `windows` has the sliding window of every layer, None for full attention.

    `projection` is the width of the embedding where it differs from `hidden`; `final_norm` is
    whether a normalisation follows the last layer.
    """

    model_type: str
    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    biases: tuple[bool, bool, bool]
    max_context: int
    dtype: str
    windows: tuple[int | None, ...]
    experts: Experts | None
    vision: Vision | None
    projection: int | None
    final_norm: bool
    quantization: str | None


def read_architecture(path: Path) -> Architecture:
    """Read a ``config.json``, or that of a model directory.

    Raises `NotFoundError` without the file, `ContractError` for a family that is not modelled and
    for sizes that are missing, all named at once.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no model configuration at {path}",
            remedy="name the config.json of a model, or the directory that holds it",
        ) from None
    except ValueError as error:
        raise ContractError(f"{path} is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ContractError(f"{path} is not a model configuration", expected="a JSON object")
    return architecture_of(tree, str(path))


def architecture_of(tree: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """The architecture of a parsed configuration; raises as `read_architecture`."""
    outer = str(tree.get("model_type", ""))
    text: Mapping[str, Any] = tree
    tower = None
    if outer in TOWERS:
        model_type, tower = TOWERS[outer]
        text = tree.get("text_config") or {}
        model_type = str(text.get("model_type", model_type))
    else:
        model_type = outer
    if model_type not in FAMILIES:
        raise ContractError(
            f"{where}: this architecture is not modelled",
            expected=f"model_type among {', '.join([*FAMILIES, *TOWERS])}",
            found=model_type or "no model_type",
            remedy="its KV cache or its layers may follow another formula: measure it",
        )
    family = FAMILIES[model_type]
    sizes = _Sizes({**family.defaults, **text}, where)
    layers = sizes.take("num_hidden_layers")
    hidden = sizes.take("hidden_size")
    heads = sizes.take("num_attention_heads")
    inner = sizes.take("ffn_dim" if model_type == "opt" else "intermediate_size")
    vocab = sizes.take("vocab_size")
    longest = sizes.take("max_position_embeddings")
    experts = _experts(sizes, model_type, layers, inner)
    vision = _vision(tree.get("vision_config") or {}, tower, hidden, where)
    sizes.finish()
    config = sizes.tree
    width = config.get("word_embed_proj_dim", hidden)
    return Architecture(
        model_type=model_type,
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=inner,
        vocab=vocab,
        tied=bool(text.get("tie_word_embeddings", tree.get("tie_word_embeddings", family.tied))),
        biases=(
            _flag(family.qkv_bias, config, "attention_bias"),
            _flag(family.out_bias, config, "attention_bias"),
            _flag(family.mlp_bias, config, "mlp_bias"),
        ),
        max_context=longest,
        dtype=_dtype(text, tree),
        windows=tuple(_windows(family, config, layers)),
        experts=experts,
        vision=vision,
        projection=None if width == hidden else width,
        final_norm=bool(config.get("do_layer_norm_before", True)),
        quantization=_quantization(tree),
    )


class _Sizes:
    """Whole numbers of a configuration; what is missing is collected and named at the end."""

    def __init__(self, tree: Mapping[str, Any], where: str) -> None:
        self.tree = tree
        self.where = where
        self.problems: list[Problem] = []

    def take(self, name: str, *, least: int = 1) -> int:
        value = self.tree.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        found = "nothing" if value is None else repr(value)
        self.problems.append(Problem(name, "is missing or no size", f"at least {least}", found))
        return least or 1

    def finish(self) -> None:
        if self.problems:
            raise ContractError(
                f"{self.where} does not give every size", problems=tuple(self.problems)
            )


def _flag(fixed: bool | None, config: Mapping[str, Any], name: str) -> bool:
    return bool(config.get(name, False)) if fixed is None else fixed


def _dtype(text: Mapping[str, Any], tree: Mapping[str, Any]) -> str:
    for source in (text, tree):
        for name in ("dtype", "torch_dtype"):
            value = source.get(name)
            if isinstance(value, str) and value.removeprefix("torch.") in DTYPES:
                return value.removeprefix("torch.")
    return "float32"


def _quantization(tree: Mapping[str, Any]) -> str | None:
    found = tree.get("quantization_config")
    return str(found.get("quant_method", "unknown")) if isinstance(found, Mapping) else None


def _windows(family: Family, config: Mapping[str, Any], layers: int) -> list[int | None]:
    window = config.get("sliding_window")
    if family.window == "upper" and not config.get("use_sliding_window", False):
        window = None
    if window is None or family.window == "none":
        return [None] * layers
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        sliding = [kind == "sliding_attention" for kind in kinds]
    elif family.window == "upper":
        first = int(config.get("max_window_layers", layers))
        sliding = [index >= first for index in range(layers)]
    elif family.window == "even":
        sliding = [index % 2 == 0 for index in range(layers)]
    elif family.window == "five-of-six":
        every = int(config.get("sliding_window_pattern") or 6)
        sliding = [(index + 1) % every != 0 for index in range(layers)]
    else:
        sliding = [True] * layers
    return [int(window) if slides else None for slides in sliding]


def _experts(sizes: _Sizes, model_type: str, layers: int, inner: int) -> Experts | None:
    config = sizes.tree
    if model_type == "mixtral":
        count, used = sizes.take("num_local_experts"), sizes.take("num_experts_per_tok")
        return Experts(count, used, inner, 0, tuple(range(layers)))
    if not model_type.endswith("_moe"):
        return None
    step = sizes.take("decoder_sparse_step")
    dense = set(config["mlp_only_layers"])
    return Experts(
        count=sizes.take("num_experts"),
        used=sizes.take("num_experts_per_tok"),
        intermediate=sizes.take("moe_intermediate_size"),
        shared=int(config.get("shared_expert_intermediate_size") or 0),
        layers=tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0),
    )


def _vision(config: Mapping[str, Any], tower: str | None, hidden: int, where: str) -> Vision | None:
    if tower is None or not config:
        return None
    sizes = _Sizes(config, f"{where}: vision_config")
    width = sizes.take("hidden_size")
    layers = sizes.take("num_hidden_layers")
    inner = sizes.take("intermediate_size")
    patch = sizes.take("patch_size")
    pixels = 3 * patch * patch * width
    if tower == "siglip":
        places = (sizes.take("image_size") // patch) ** 2
        sizes.finish()
        divided = layers * (4 * width * width + 3 * width + 2 * width * inner + inner)
        whole = layers * (6 * width) + pixels + width + places * width + 2 * width
        whole += width * hidden + width  # projector
    else:
        sizes.finish()
        divided = layers * (4 * width * width + 3 * width * inner)
        whole = layers * 2 * width + pixels + width
        merge = int(config.get("spatial_merge_size", 2)) ** 2
        whole += width + merge * width * width + width * hidden + hidden * hidden  # projector
    return Vision(tower, divided, whole)
