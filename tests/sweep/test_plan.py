"""Sweep plans: presets, validation, digest, order of cells."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import ContractError, NotFoundError
from kvreg.sweep.cells import servers_of, shards_of
from kvreg.sweep.plan import load_plan, parse_plan
from kvreg.sweep.presets import NAMES, read_preset


def preset(name):
    return parse_plan(read_preset(name))


def test_m4_is_the_principal_experiment():
    plan = preset("m4")
    models = [model.name for model in plan.models if model.role == "performance"]
    assert models == [
        "Qwen2.5-3B-Instruct",
        "Llama-3.2-3B-Instruct",
        "Phi-4-mini-instruct",
        "Ministral-3-3B-Instruct",
    ]
    assert {w.name: (w.input_tokens, w.output_tokens) for w in plan.workloads} == {
        "short": (128, 64),
        "balanced": (512, 256),
        "prefill_heavy": (2048, 128),
    }
    assert plan.design.concurrency == (1, 4, 8, 16, 32, 64)
    assert plan.design.tensor_parallel == (1, 2)
    assert plan.limits.memory_boundary_mib == 14848
    cells = plan.cells()
    assert len(cells) == len({cell.id for cell in cells}) == 720
    assert len({cell.server for cell in cells}) == 720
    assert [len(shard) for _, shard in plan.shards()] == [12] * 60
    assert plan.label is None
    # The model that did not pass the gate is on record and in no cell.
    assert [model.name for model in plan.models if model.role == "gate"] == ["gemma-3-4b-it"]


@pytest.mark.parametrize(("name", "cells", "shards"), [("m1", 20, 10), ("m2", 12, 1)])
def test_the_earlier_stages(name, cells, shards):
    plan = preset(name)
    assert (len(plan.cells()), len(plan.shards())) == (cells, shards)


def test_the_modes_of_m1_differ_in_one_option():
    plan = preset("m1")
    graph, eager = (plan.settings("opt-125m", name) for name in ("graph", "eager"))
    assert {**graph, "enforce-eager": True} == eager


def test_the_case_study_runs_inside_one_server_and_says_so():
    plan = preset("case")
    assert plan.label == "within-server, descriptive"
    runs = list(servers_of(plan.cells()))
    assert [run[0].server.rpartition(".")[2] for run in runs] == ["tp1", "tp2"]
    languages = [prompt.language for load in plan.workloads for prompt in load.prompts]
    assert set(languages) == {"ar", "en"}
    ladder = [load.input_tokens for load in plan.workloads if load.input_tokens]
    assert ladder == sorted(ladder) and len(ladder) >= 4


def test_prompts_come_from_a_file(tmp_path):
    text = 'line one\n"two" \\ ünïcode \x7f\t'
    path = tmp_path / "prompts.toml"
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    quoted = quoted.replace("\x7f", "\\u007f")
    path.write_text(
        f'output_tokens = 9\n[[prompts]]\nlanguage = "de"\ntext = "{quoted}"\n', encoding="utf-8"
    )
    plan = parse_plan(read_preset("case", path))
    (load,) = [load for load in plan.workloads if load.prompts]
    assert (load.name, load.output_tokens, load.prompts[0].text) == ("text-de", 9, text)
    path.write_text('output_tokens = 0\n[[prompts]]\nlanguage = "de"\n')
    with pytest.raises(ContractError) as caught:
        read_preset("case", path)
    assert len(caught.value.problems) == 2


def test_arms_stand_side_by_side_in_an_order_that_the_seed_decides():
    plan = preset("m4")
    first = []
    for _, cells in plan.shards():
        pairs = [cells[index : index + 2] for index in range(0, len(cells), 2)]
        for one, other in pairs:
            assert one.concurrency == other.concurrency
            assert {one.tp, other.tp} == {1, 2}
        assert sorted(pair[0].concurrency for pair in pairs) == [1, 4, 8, 16, 32, 64]
        first += [pair[0].tp for pair in pairs]
    # 360 fair coins: outside these limits once in ten thousand seeds.
    assert 143 <= first.count(1) <= 217
    other = parse_plan(read_preset("m4").replace(b"seed = 20260104", b"seed = 1"))
    assert [cell.id for cell in other.cells()] != [cell.id for cell in plan.cells()]
    assert {cell.id for cell in other.cells()} == {cell.id for cell in plan.cells()}


def test_models_and_repetitions_come_one_after_the_other():
    shards = [shard for shard, _ in preset("m4").shards()]
    assert shards == sorted(shards, key=lambda name: (shards.index(name), name)) and shards[:4] == [
        "Qwen2.5-3B-Instruct.short.r1",
        "Qwen2.5-3B-Instruct.balanced.r1",
        "Qwen2.5-3B-Instruct.prefill_heavy.r1",
        "Qwen2.5-3B-Instruct.short.r2",
    ]


def test_any_list_of_degrees():
    raw = read_preset("m2").replace(b"tensor_parallel = [1, 2]", b"tensor_parallel = [1, 2, 4, 8]")
    plan = parse_plan(raw)
    assert len(plan.cells()) == 24
    assert {cell.tp for cell in plan.cells()} == {1, 2, 4, 8}


def test_the_digest_is_of_the_data_and_not_of_the_text():
    raw = read_preset("smoke")
    plan = parse_plan(raw)
    assert parse_plan(b"# a remark\n" + raw).digest == plan.digest
    assert parse_plan(raw.replace(b"max_seconds = 20", b"max_seconds = 20.0")).digest == plan.digest
    assert parse_plan(raw.replace(b"seed = 20260100", b"seed = 20260101")).digest != plan.digest


def test_every_problem_is_reported_at_once():
    raw = (
        read_preset("smoke")
        .replace(b"tensor_parallel = [1, 2]", b"tensor_parallel = [2, 1]")
        .replace(b"repetitions = 3", b"repetitions = 0")
        .replace(b"revision = ", b"revison = ")
        .replace(b"precision = 0.05", b"precision = 2")
        .replace(b"max-model-len = 1024", b"max-model-len = 100\nport = 1")
        .replace(b'name = "long"', b'name = "short"')
        .replace(b"max_requests = 64", b"max_requests = 4")
    )
    with pytest.raises(ContractError) as caught:
        parse_plan(raw)
    where = " ".join(problem.where for problem in caught.value.problems)
    for key in (
        "design.tensor_parallel",
        "design.repetitions",
        "models[0].revision",
        "models[0].revison",
        "requests.precision",
        "engine.options.port",
        "requests.max_requests",
        "workloads short",
        "plan.toml: workloads",
    ):
        assert key in where, key


def test_a_model_needs_a_commit_and_a_text_no_paired_comparison():
    with pytest.raises(ContractError, match="1 problem"):
        raw = read_preset("smoke")
        start = raw.index(b'revision = "')
        parse_plan(raw[:start] + b'revision = "local"' + raw[start + 52 + 1 :])
    raw = read_preset("case").replace(b'"within-server"', b'"fresh-server"')
    with pytest.raises(ContractError) as caught:
        parse_plan(raw)
    assert "no exact token count" in str(caught.value)


def test_a_missing_plan_and_preset(tmp_path):
    with pytest.raises(NotFoundError):
        load_plan(tmp_path / "plan.toml")
    with pytest.raises(NotFoundError):
        read_preset("m5")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_rubbish_is_refused_in_words(raw):
    with pytest.raises(ContractError):
        parse_plan(raw)


@given(st.integers(0, 2**32), st.sampled_from(NAMES))
def test_a_damaged_preset_is_valid_or_refused(seed, name):
    """Lines taken out or doubled: never anything but a plan or a `ContractError`."""
    chance = random.Random(seed)
    lines = read_preset(name).splitlines(keepends=True)
    for _ in range(chance.randint(1, 3)):
        index = chance.randrange(len(lines))
        if chance.random() < 0.5:
            del lines[index]
        else:
            lines.insert(chance.randrange(len(lines)), lines[index])
    try:
        plan = parse_plan(b"".join(lines))
    except ContractError:
        return
    cells = plan.cells()
    assert len({cell.id for cell in cells}) == len(cells)
    assert sum(len(shard) for _, shard in shards_of(cells)) == len(cells)
