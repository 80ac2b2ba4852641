"""Model families as data: which parameters an architecture has, by ``model_type``.

From the model classes of transformers and the parallel layers of vLLM. `defaults` are those of the
configuration class, which ``config.json`` files leave out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """What distinguishes one family.

    `norms` is the number of normalisations per layer, with a bias each if `norm_bias`; `window`
    says which layers attend to a sliding window: ``none``, ``all``, ``upper`` (from
    ``max_window_layers``, only with ``use_sliding_window``), ``even``, ``five-of-six``.
    `learned_positions` is the number of extra rows of the position table, None without one.
    """

    qkv_bias: bool | None = False
    out_bias: bool | None = False
    mlp_bias: bool | None = False
    gated_mlp: bool = True
    norms: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    window: str = "none"
    learned_positions: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)


_QWEN_MOE = {"decoder_sparse_step": 1, "mlp_only_layers": []}

FAMILIES = {
    # None: config.json says (attention_bias, mlp_bias), absent means no
    "llama": Family(qkv_bias=None, out_bias=None, mlp_bias=None),
    "mistral": Family(window="all"),
    "ministral3": Family(),
    "mixtral": Family(window="all", defaults={"num_experts_per_tok": 2}),
    "qwen2": Family(qkv_bias=True, window="upper"),
    "qwen2_moe": Family(
        qkv_bias=True, window="upper", defaults={"num_experts_per_tok": 4, **_QWEN_MOE}
    ),
    "qwen3": Family(qkv_bias=None, out_bias=None, qk_norm=True, window="upper"),
    "qwen3_moe": Family(
        qkv_bias=None,
        out_bias=None,
        qk_norm=True,
        window="upper",
        defaults={"num_experts_per_tok": 8, **_QWEN_MOE},
    ),
    "phi3": Family(window="all"),
    "gemma": Family(qkv_bias=None, out_bias=None, tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(
        qkv_bias=None,
        out_bias=None,
        norms=4,
        tied=True,
        window="even",
        defaults={
            "head_dim": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
        },
    ),
    "gemma3_text": Family(
        qkv_bias=None,
        out_bias=None,
        norms=4,
        qk_norm=True,
        tied=True,
        window="five-of-six",
        defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
    ),
    "opt": Family(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        norm_bias=True,
        tied=True,
        learned_positions=2,
    ),
}

TOWERS = {
    "gemma3": ("gemma3_text", "siglip"),
    "mistral3": ("ministral3", "pixtral"),
}
"""Models that see: the family of their text part, where ``text_config`` does not say it, and their
vision tower."""
