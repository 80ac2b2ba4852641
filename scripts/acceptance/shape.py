"""A model of a stated shape made of nothing: configuration and tokenizer, no weights, no download.

`config.json` says the shape of a 3B decoder (that of Qwen2.5-3B: 36 layers, hidden size 2048, 16
query and 2 key-value heads of 128, vocabulary 151,936); the engine fills it with dummy weights. The
tokenizer has one word for every id. It lies in a folder of its own, because transformers 5 replaces
one that lies beside `config.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 151_936
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 32768,
    "max_window_layers": 36,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}


def write_model(folder: Path, dtype: str) -> tuple[Path, Path]:
    """Write both; returns the folder of the configuration and that of the tokenizer."""
    model, tokenizer = folder / "shape-3b", folder / "tokenizer"
    model.mkdir(parents=True, exist_ok=True)
    tokenizer.mkdir(parents=True, exist_ok=True)
    _write(model / "config.json", {**CONFIG, "torch_dtype": dtype})
    words = {**SPECIAL, **{f"t{i}": i for i in range(len(SPECIAL), VOCABULARY)}}
    _write(
        tokenizer / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_special(word, number) for word, number in SPECIAL.items()],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
        },
    )
    _write(
        tokenizer / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )
    return model, tokenizer


def _special(word: str, number: int) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": word, **plain, "special": True}


def _write(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=1 if len(str(tree)) < 10_000 else None), "utf-8")


PLAN = """\
# Small, at exact token counts, on dummy weights: what is shown is that everything works on this
# host, and what it costs; speeds are those of the shape, not of a trained model's answers.
schema = 1
name = "acceptance"
summary = "Acceptance: 3B shape with dummy weights, one token shape, three concurrencies"

[design]
tensor_parallel = {tp}
concurrency = {concurrency}
repetitions = {repetitions}
seed = 20261130
order = "interleaved"
replication = "fresh-server"

[[models]]
name = "shape-3b"
repository = "{model}"
revision = "local"

[[workloads]]
name = "short"
input_tokens = 128
output_tokens = 128

[engine.options]
tokenizer = "{tokenizer}"
load-format = "dummy"
max-model-len = 1024
max-num-seqs = 32
gpu-memory-utilization = {utilization}
no-enable-prefix-caching = true
{options}
[requests]
precision = 0.05
warmup_waves = 1
pilot_waves = 1
min_waves = 2
max_requests = 256
max_seconds = {measure_s}
token_ids = [1000, 30000]

[limits]
memory_boundary_mib = {boundary}
idle_tolerance_mib = 512
start_s = {start_s}
stall_s = 60
measure_s = 120
stop_s = 30
idle_s = 60
attempts = 1

[expected]
start_s = 60
warm_s = 110
measure_s = 15
stop_s = 5
other_s = 3
"""


def sweep_plan(
    model: Path,
    tokenizer: Path,
    *,
    tp: list[int],
    concurrency: list[int],
    repetitions: int,
    utilization: float,
    boundary: int,
    measure_s: float = 15,
    start_s: float = 300,
    options: str = "",
) -> str:
    """The text of a plan; memory in MiB per GPU, `utilization` of the GPU's memory."""
    return PLAN.format(
        model=model,
        tokenizer=tokenizer,
        tp=tp,
        concurrency=concurrency,
        repetitions=repetitions,
        utilization=utilization,
        boundary=boundary,
        measure_s=measure_s,
        start_s=start_s,
        options=options,
    )
