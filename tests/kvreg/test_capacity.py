"""``kvreg capacity``: parameter counts as published, the KV equation, degrees, evidence."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from kvreg.analysis.table import cells_csv
from kvreg.capacity.architecture import Architecture, architecture_of, read_architecture
from kvreg.capacity.memory import MIB, Terms, capacity, kv_bytes
from kvreg.capacity.parameters import (
    active,
    kv_heads_per_rank,
    obstacle,
    padded_vocabulary,
    per_rank,
    total,
)
from kvreg.cli import main
from kvreg.errors import ContractError, NotFoundError
from kvreg.sweep.presets import read_preset
from tests.support.studies import cell, m4_rows, results_of, write_sweep

MODELS = Path(__file__).parents[1] / "data" / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.json"))


def published(name: str) -> tuple[int, dict]:
    tree = json.loads((MODELS / f"{name}.json").read_text())
    return tree["parameters"], tree["config"]


def arch(name: str, **changes: object) -> Architecture:
    return architecture_of({**published(name)[1], **changes})


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count_is_the_published_one(name: str) -> None:
    parameters, config = published(name)
    assert total(architecture_of(config)) == parameters


def test_many_models_of_many_families_are_checked() -> None:
    assert len(NAMES) >= 20
    assert len({arch(name).model_type for name in NAMES}) >= 12


def test_a_token_passes_the_chosen_experts_alone() -> None:
    assert active(arch("Qwen3-30B-A3B")) == 3_353_032_704
    experts = 32 * 3 * 4096 * 14336
    assert active(arch("Mixtral-8x7B-v0.1")) == 46_702_792_704 - 6 * experts
    dense = arch("Llama-3.1-8B")
    assert active(dense) == total(dense)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_ranks_hold_everything_and_only_what_must_be_twice(name: str, tp: int) -> None:
    model = arch(name)
    if obstacle(model, tp):
        assert tp > 1
        return
    mine = per_rank(model, tp)
    assert mine * tp >= total(model)
    if tp == 1:
        padding = padded_vocabulary(model) - model.vocab
        rows = (model.projection or model.hidden) * (1 if model.tied else 2)
        assert mine == total(model) + padding * rows
    else:
        assert mine < per_rank(model, tp // 2)


def test_key_value_heads_are_divided_and_then_repeated() -> None:
    qwen = arch("Qwen2.5-3B-Instruct")  # 2 key-value heads
    assert [kv_heads_per_rank(qwen, tp) for tp in (1, 2, 4, 8)] == [2, 1, 1, 1]
    kv = 36 * 2 * 128 * (2048 + 1)  # one head's keys and values, with biases
    even = (total(qwen) - 2 * kv - (36 * 2 + 1) * 2048) // 4
    assert per_rank(qwen, 4) == even + kv + (36 * 2 + 1) * 2048
    assert per_rank(qwen, 2) * 2 == total(qwen) + (36 * 2 + 1) * 2048


def test_what_does_not_divide_is_an_obstacle() -> None:
    assert obstacle(arch("Qwen2.5-3B-Instruct"), 3) == "16 attention heads do not divide by 3"
    assert "28 attention heads do not divide by 8" in str(obstacle(arch("Qwen2.5-7B-Instruct"), 8))
    assert "6 key-value heads" in str(
        obstacle(arch("Llama-3.1-8B", num_key_value_heads=6, num_attention_heads=36), 4)
    )
    assert "intermediate size 1410" in str(
        obstacle(arch("Qwen1.5-MoE-A2.7B", moe_intermediate_size=1410), 4)
    )
    assert obstacle(arch("Qwen2.5-3B-Instruct"), 2) is None


def test_vocabulary_is_padded_before_it_is_divided() -> None:
    small = arch("Llama-3.2-3B-Instruct", vocab_size=128001)
    assert padded_vocabulary(small) == 128064
    whole = arch("Llama-3.2-3B-Instruct", vocab_size=128064)
    assert per_rank(small, 2) == per_rank(whole, 2)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("Qwen2.5-3B-Instruct", 2 * 36 * 2 * 128 * 2),
        ("Llama-3.1-8B", 2 * 32 * 8 * 128 * 2),
        ("Llama-2-7b-hf", 2 * 32 * 32 * 128 * 2),
        ("opt-125m", 2 * 12 * 12 * 64 * 2),
        ("gemma-7b", 2 * 28 * 16 * 256 * 2),
    ],
)
def test_the_equation(name: str, per_token: int) -> None:
    model = arch(name)
    assert kv_bytes(model, 1, "float16") == per_token
    assert kv_bytes(model, 2048, "float16") == 2048 * per_token
    assert kv_bytes(model, 2048, "fp8") == 1024 * per_token


@given(st.integers(1, 20_000), st.sampled_from([1, 16, 32]))
def test_blocks_are_whole_and_hold_the_sequence(tokens: int, block: int) -> None:
    model = arch("Llama-3.1-8B")
    exact, whole = (
        kv_bytes(model, tokens, "float16"),
        kv_bytes(model, tokens, "float16", block=block),
    )
    one = kv_bytes(model, 1, "float16")
    assert whole % (one * block) == 0
    assert exact <= whole < exact + one * block


def windowed(name: str, **changes: object) -> int:
    return sum(window is not None for window in arch(name, **changes).windows)


def test_sliding_windows_are_those_of_the_family() -> None:
    assert windowed("Mistral-7B-v0.1") == 32
    assert windowed("gemma-2-2b") == 13
    assert windowed("gemma-3-4b-it") == 29  # every sixth of 34 attends to all
    assert windowed("gemma-3-1b-it") == 22
    # a window that the configuration names and does not use
    assert windowed("Qwen2.5-3B-Instruct") == 0
    assert windowed("Qwen2.5-7B-Instruct", use_sliding_window=True, max_window_layers=20) == 8
    kinds = ["full_attention", *["sliding_attention"] * 31]
    assert windowed("Mistral-7B-v0.1", layer_types=kinds) == 31
    assert windowed("Mistral-7B-v0.1", sliding_window=None) == 0


def test_a_window_bounds_the_cache() -> None:
    model = arch("gemma-2-2b")
    layer = 2 * 4 * 256 * 2
    assert kv_bytes(model, 4096, "float16") == 26 * layer * 4096
    assert kv_bytes(model, 8192, "float16") == 13 * layer * (4096 + 8192)


def test_what_fits_is_the_budget_over_a_sequence() -> None:
    model = arch("Llama-3.2-3B-Instruct")
    terms = Terms("float16", "float16", 14848, 1000)
    found = capacity(model, terms, (1, 2), (2176,))
    for degree in found.degrees:
        (sequence,) = degree.sequences
        weights = per_rank(model, degree.tp) * 2
        assert degree.weights == weights and sequence.concurrency is not None
        used = weights + sequence.concurrency * sequence.bytes_per_rank
        limit = (14848 - 1000) * MIB
        assert used <= limit < used + sequence.bytes_per_rank
    one, two = (degree.sequences[0].concurrency for degree in found.degrees)
    assert one is not None and two is not None and two > 2 * one


def test_weights_that_do_not_fit_leave_no_sequence() -> None:
    found = capacity(arch("Llama-3.1-8B"), Terms("bfloat16", "bfloat16", 14848, 0), (1,), (128,))
    (degree,) = found.degrees
    assert degree.budget is not None and degree.budget < 0
    assert degree.sequences[0].concurrency == 0
    assert degree.to_dict()["weights_fit"] is False


def test_unknown_families_and_missing_sizes_are_refused() -> None:
    with pytest.raises(ContractError, match="not modelled") as caught:
        architecture_of({"model_type": "deepseek_v3"})
    assert "qwen3_moe" in str(caught.value)
    with pytest.raises(ContractError, match="does not give every size") as caught:
        architecture_of({"model_type": "llama", "hidden_size": 0, "num_hidden_layers": "32"})
    assert {problem.where for problem in caught.value.problems} >= {
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
    }


def test_quantized_weights_are_refused_unless_a_dtype_is_wished() -> None:
    model = arch("Llama-3.1-8B", quantization_config={"quant_method": "awq", "bits": 4})
    terms = Terms("bfloat16", "bfloat16", None, 0)
    with pytest.raises(ContractError, match="awq are not modelled"):
        capacity(model, terms, (1,), (128,))
    found = capacity(model, terms, (1,), (128,), unquantized=True)
    assert found.to_dict()["model"]["quantization"] == "awq"


def test_configurations_are_files_or_folders(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ContractError, match="not a model configuration"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ContractError, match="not JSON"):
        read_architecture(tmp_path / "config.json")


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["capacity", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    folder = tmp_path / "Qwen2.5-3B-Instruct"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published("Qwen2.5-3B-Instruct")[1]))
    return folder


def test_command_as_text_and_json(qwen: Path) -> None:
    words = [qwen, "--boundary", 14848, "--context", "768,2176", "--tp", "1,2,4,3"]
    text = run(*words).stdout
    assert "3,085,938,688 parameters" in text and "36,864 bytes a token" in text
    assert "KV heads repeated" in text and "16 attention heads do not divide by 3" in text
    data = json.loads(run(*words, "--dtype", "float16", "--json").stdout)
    assert data["kv_bytes_per_token"] == 36864
    by_tp = {degree["tp"]: degree for degree in data["degrees"]}
    assert by_tp[1]["weight_bytes_per_gpu"] == 2 * 3_085_938_688
    assert [s["concurrency"] for s in by_tp[1]["sequences"]] == [331, 117]
    assert by_tp[3]["obstacle"] and by_tp[3]["sequences"] == []
    run(qwen, "--tp", "two", code=2)
    run(qwen, "--model", "m", code=2)
    run(qwen / "none", code=3)


def test_predicted_against_observed(qwen: Path, tmp_path: Path) -> None:
    gpu = {"index": 0, "name": "Tesla T4", "memory_mib": 15360, "visible": True}
    directory = write_sweep(
        tmp_path / "m4", read_preset("m4"), results_of(m4_rows()), facts={"gpus": [gpu, gpu]}
    )
    words = [qwen, "--evidence", directory, "--dtype", "float16"]
    run(*words, code=2)  # four models
    run(*words, "--model", "other", code=3)
    words += ["--model", "Qwen2.5-3B-Instruct"]
    data = json.loads(run(*words, "--json").stdout)
    assert data["terms"]["boundary_mib"] == 14848
    assert len(data["observed"]) == 36
    (gated,) = [item for item in data["observed"] if item["gated"]]
    assert (gated["workload"], gated["concurrency"], gated["tp"]) == ("prefill_heavy", 64, 2)
    assert gated["outcome"] == "gated beyond the prediction"
    assert gated["reserved_mib"] == pytest.approx(0.9 * 15360)
    assert gated["beyond_mib"] == pytest.approx(14895 - 13824)
    assert data["beyond"]["2"]["max_mib"] == pytest.approx(1071)
    assert data["evidence"]["plan"].startswith("sha256:")
    # with the engine's own memory known, the gate is predicted
    with_own = json.loads(run(*words, "--overhead", 1071, "--json").stdout)
    outcomes = {item["outcome"] for item in with_own["observed"] if item["gated"]}
    assert outcomes == {"as predicted"}
    assert "for --overhead" in run(*words).stdout


def test_evidence_of_another_model_is_found_out(qwen: Path, tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    rows = [cell(tp=tp, repetition=n, memory=1000.0) for tp in (1, 2) for n in (1, 2)]
    path.write_text(cells_csv([dataclasses.replace(row, model="x") for row in rows]))
    data = json.loads(run(qwen, "--evidence", path, "--boundary", 14848, "--json").stdout)
    assert {item["outcome"] for item in data["observed"]} == {"below the weights"}
