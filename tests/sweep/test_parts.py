"""Schedule, pilot, samplers, verdicts on logs, commands' help."""

import importlib
import itertools
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.cli import main
from kvreg.commands.sweep import COMMANDS
from kvreg.errors import ContractError, KvregError, UsageError
from kvreg.model.activation import Denied, Settings
from kvreg.sweep.budget import Budget
from kvreg.sweep.design import Requests
from kvreg.sweep.engine import Engine
from kvreg.sweep.failures import verdict_on
from kvreg.sweep.ledger import Result
from kvreg.sweep.pilot import choose_requests
from kvreg.sweep.plan import parse_plan
from kvreg.sweep.presets import NAMES, read_preset
from kvreg.sweep.sampling import Sample, open_sampler, parse_sample, peak_memory, sample_table
from kvreg.sweep.schedule import Choice, expected_seconds, sessions, split


@given(st.sampled_from(NAMES), st.integers(1, 70))
@settings(max_examples=30)
def test_parts_are_whole_neighbouring_shards_and_together_the_plan(name, count):
    plan = parse_plan(read_preset(name))
    parts = split(plan, count)
    assert [cell for part in parts for cell in part.cells] == list(plan.cells())
    assert [shard for part in parts for shard in part.shards] == [s for s, _ in plan.shards()]
    assert [part.number for part in parts] == list(range(1, count + 1))


def test_m4_in_sessions_of_kaggle():
    plan = parse_plan(read_preset("m4"))
    parts = sessions(plan, 12)
    assert len(parts) == 2
    assert all(part.seconds <= 12 * 3600 for part in parts)
    assert len(sessions(plan, 6)) > len(parts)
    # By hand it was 27 hours.
    assert expected_seconds(plan, plan.cells()) < 24 * 3600
    with pytest.raises(UsageError, match="does not fit"):
        sessions(plan, 0.1)


@pytest.mark.parametrize("text", ["", "0/1", "2/1", "1/0", "a/b", "1", "1/2/3", "-1/2"])
def test_what_is_no_shard(text):
    with pytest.raises(UsageError):
        Choice.parse(text)


def rules(**changes):
    values = {
        "precision": 0.02,
        "warmup_waves": 1,
        "pilot_waves": 2,
        "min_waves": 3,
        "max_requests": 256,
        "max_seconds": 90.0,
        "token_ids": (1, 9),
    }
    return Requests(**{**values, **changes})


@given(
    st.integers(1, 64),
    st.lists(st.floats(0.01, 10), min_size=1, max_size=30),
    st.floats(0.1, 100),
    st.floats(0.005, 0.5),
)
def test_requests_are_whole_waves_within_the_bounds(concurrency, latencies, duration, precision):
    chosen = choose_requests(rules(precision=precision), concurrency, latencies, duration)
    assert chosen.requests % concurrency == 0
    assert concurrency <= chosen.requests <= max(256, concurrency)
    if chosen.bound == "precision":
        assert chosen.half_width <= precision * 1.000001
        assert chosen.requests > 3 * concurrency
    if chosen.bound == "max_seconds" and chosen.requests > concurrency:
        assert chosen.requests * chosen.pace_s <= 90


def test_a_noisier_server_gets_more_requests():
    calm = choose_requests(rules(), 4, [1.0, 1.01, 0.99, 1.0], 1.0)
    noisy = choose_requests(rules(), 4, [1.0, 1.3, 0.7, 1.0], 1.0)
    assert (calm.requests, calm.bound) == (12, "min_waves")
    assert noisy.requests > calm.requests
    # (1.96 * 0.2121 / 0.1)^2 = 17.3: five waves of four.
    assert choose_requests(rules(precision=0.1), 4, [1.0, 1.3, 0.7, 1.0], 1.0).requests == 20


def test_requests_that_hardly_differ_are_measured_for_a_while_all_the_same():
    """Without it, two requests of 0.4 s would do at concurrency 1."""
    calm = [0.4, 0.4]
    assert choose_requests(rules(), 1, calm, 0.8).bound == "min_waves"
    chosen = choose_requests(rules(min_seconds=15.0), 1, calm, 0.8)
    assert (chosen.requests, chosen.bound) == (38, "min_seconds")
    waves = choose_requests(rules(min_seconds=15.0, max_requests=999), 16, [0.1] * 32, 0.8)
    assert waves.requests % 16 == 0 and 15 <= waves.requests * waves.pace_s < 16
    assert choose_requests(rules(min_seconds=15.0), 16, [0.1] * 32, 0.8).bound == "max_requests"
    short = choose_requests(rules(min_seconds=15.0, max_seconds=15.0), 64, [1.0] * 64, 4.0)
    assert (short.requests, short.bound) == (192, "max_seconds")


def test_the_least_time_of_measurement_needs_a_pilot_and_a_place_below_the_most():
    text = read_preset("h200x2").decode()
    for old, new, said in (
        ("min_seconds = 15 ", "min_seconds = 21 ", "longer than max_seconds"),
        ("pilot_waves = 2", "pilot_waves = 0", "no pilot"),
        ("min_seconds = 15 ", "min_seconds = -1 ", "a number above 0"),
    ):
        with pytest.raises(ContractError) as error:
            parse_plan(text.replace(old, new).encode())
        assert any(said in str(problem.to_dict()) for problem in error.value.problems)


def test_matched_cells_begin_together_or_not_at_all():
    plan = parse_plan(read_preset("h200x2"))
    cells = plan.cells()
    result = Result("", "MEASURED", None, {}, {"start_s": 30.0, "measure_s": 20.0}, 1, "t", "s", {})
    results = {cell.id: replace(result, cell=cell.id) for cell in cells[:2]}

    def allows(seconds, done, known, ready=lambda cell: True):
        return Budget(plan, cells, time.monotonic() + seconds).allows(done, known, ready)

    one = plan.expected.cell_s
    assert not allows(2 * one - 1, [], {}) and allows(2 * one + 1, [], {})
    cold = 2 * plan.expected.warm_s
    assert not allows(2 * one + cold - 1, [], {}, lambda cell: False)
    assert allows(2 * one + cold + 1, [], {}, lambda cell: False)
    # Half of a pair is done: the other half alone must fit.
    assert allows(51, [cells[0].id], results) and not allows(49, [cells[0].id], results)
    done = [cell.id for cell in cells[:2]]
    assert allows(101, done, results) and not allows(99, done, results)
    # What is slower now counts from now on; what has ended is asked no more.
    slow = replace(result, cell=cells[2].id, timing={"start_s": 90.0}, time="u")
    assert not allows(139, done, {**results, cells[2].id: slow})
    assert allows(141, done, {**results, cells[2].id: slow})
    assert allows(1, [cell.id for cell in cells], results)


@pytest.mark.parametrize("name", ["h200x2", "h200x2-no-peer"])
def test_no_arm_goes_first_much_more_often(name):
    plan = parse_plan(read_preset(name))
    first: dict[tuple[str, int, int], int] = {}
    for cell in plan.cells():
        first.setdefault((cell.workload, cell.concurrency, cell.repetition), cell.tp)
    counts = Counter((load, level) for (load, level, _), tp in first.items() if tp == 2)
    levels = {(load, level) for load, level, _ in first}
    assert all(2 <= counts[level] <= 3 for level in levels)


def test_the_two_h200_sweeps_differ_in_peer_access_and_size_alone():
    with_peer, without = (
        parse_plan(read_preset(name)).tree for name in ("h200x2", "h200x2-no-peer")
    )
    for table in ("models", "requests", "limits"):
        assert with_peer[table] == without[table]
    extra = without["engine"]["options"].items() - with_peer["engine"]["options"].items()
    assert extra == {("disable-custom-all-reduce", True)}
    extra = without["engine"]["environment"].items() - with_peer["engine"]["environment"].items()
    assert extra == {("NCCL_P2P_DISABLE", "1")}


def test_a_plan_may_not_set_a_variable_that_the_profile_denies():
    plan = parse_plan(read_preset("h200x2"))
    rule = Denied("VLLM_WORKER_MULTIPROC_METHOD", ("fork",), "cannot use CUDA")
    engine = Engine(("vllm", "serve"), {}, None, None, None)
    engine.check(plan)
    with pytest.raises(ContractError) as error:
        replace(engine, variables=Settings({}, (rule,))).check(plan)
    assert error.value.problems[0].where == "VLLM_WORKER_MULTIPROC_METHOD"


def test_the_promised_precision_is_kept():
    """Throughput of simulated cells varies as little as the pilot said."""
    import random
    import statistics

    chance = random.Random(1)
    concurrency = 4
    pilot = [chance.gauss(1, 0.2) for _ in range(400)]
    chosen = choose_requests(rules(precision=0.05), concurrency, pilot, 100.0)
    assert chosen.bound == "precision"

    def throughput():
        free = [0.0] * concurrency
        for _ in range(chosen.requests):
            worker = free.index(min(free))
            free[worker] += chance.gauss(1, 0.2)
        return chosen.requests / max(free)

    seen = [throughput() for _ in range(400)]
    half = 1.96 * statistics.stdev(seen) / statistics.fmean(seen)
    assert half == pytest.approx(chosen.half_width, rel=0.3)


# Lines as vLLM 0.18.1 and the driver write them.
LOGS = [
    ("(Worker pid=7) ERROR 03-04 12:00:00 torch.OutOfMemoryError: CUDA out of memory.", "GATED"),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 64", "GATED"),
    ("ValueError: No available memory for the cache blocks. Try increasing", "GATED"),
    ("1.75 GiB KV cache is needed, which is larger than the available KV cache memory", "GATED"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "INC"),
    ("ValueError: Model architectures ['X'] are not supported for now.", "INC"),
    ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least", "INC"),
    ("ValueError: No valid attention backend found for cuda with", "INC"),
    ("ValueError: Total number of attention heads (10) must be divisible by tensor parallel size "
     "(4).", "INC"),
    ("Segmentation fault (core dumped)", "FAILED"),
    ("INFO 03-04 12:00:00 FA2 is only supported on devices with compute capability >= 8", "FAILED"),
    ("", "FAILED"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "state"), LOGS)
def test_verdicts_on_logs(line, state):
    log = f"INFO 03-04 11:59:00 starting\n{line}\nDone.\n"
    verdict = verdict_on(log, "it ended", starting=True)
    assert {"GATED": "RESOURCE_GATED", "INC": "INCOMPATIBLE"}.get(state, state) == verdict.state
    assert (line[:40] if state != "FAILED" else "it ended") in verdict.reason
    # A server that was healthy has shown that it is compatible.
    assert (verdict_on(log, "", starting=False).state == "RESOURCE_GATED") == (state == "GATED")


@given(st.text(max_size=60))
def test_any_line_of_a_sampler_is_a_sample_or_nothing(line):
    sample = parse_sample(line, 1.0)
    assert sample is None or sample.time == 1.0


def test_a_sampler_that_says_nothing_is_refused(monkeypatch):
    monkeypatch.setattr("kvreg.sweep.sampling._FIRST_S", 0.3)
    with pytest.raises(UsageError, match="gives no samples"):
        open_sampler(f"command:{sys.executable} -c pass")
    with pytest.raises(UsageError, match="no such sampler"):
        open_sampler("magic")
    with pytest.raises(KvregError):
        open_sampler("command:/nowhere/at/all")


def test_a_sampler_that_stops_is_noticed(monkeypatch):
    monkeypatch.setattr("kvreg.sweep.sampling._LATE_S", 0.2)
    sampler = open_sampler(f"command:{sys.executable} -c \"print('0, 5, 1, 1, 1, 1')\"")
    try:
        import time

        time.sleep(0.4)
        with pytest.raises(UsageError, match="has stopped"):
            sampler.latest()
    finally:
        sampler.close()


def test_the_table_of_samples():
    samples = [
        Sample(10.0, 0, 14895.0, 98.0, 68.5, 1590.0, 5000.0),
        Sample(10.1, 1, 3.25, None, None, None, None),
    ]
    assert sample_table(samples, 10.0).splitlines() == [
        "time_s,gpu,memory_mib,utilization_percent,power_w,sm_clock_mhz,memory_clock_mhz",
        "0.000,0,14895,98,68.5,1590,5000",
        "0.100,1,3.25,,,,",
    ]
    assert peak_memory(samples) == 14895.0
    assert peak_memory([]) is None


def test_the_profile_adds_to_a_plans_options_and_refuses_what_it_denies():
    plan = parse_plan(read_preset("m4"))
    name = plan.models[0].name
    rules = Settings(
        set={"dtype": "float32", "attention-backend": "TRITON_ATTN"},
        deny=(Denied("kv-cache-dtype", ("fp8",), "needs another device"),),
    )
    engine = Engine(("vllm", "serve"), {}, None, None, None, rules)
    words = engine.arguments(plan, name, 2, plan.settings(name, "short"), 8000)
    assert words[:3] == ["vllm", "serve", plan.models[0].repository]
    assert words[words.index("--attention-backend") + 1] == "TRITON_ATTN"
    assert words[words.index("--dtype") + 1] == "float16"  # the plan's own wins
    assert "--no-enable-prefix-caching" in words
    engine.check(plan)
    raw = read_preset("m4").replace(b'dtype = "float16"', b'kv-cache-dtype = "fp8"')
    with pytest.raises(ContractError) as caught:
        engine.check(parse_plan(raw))
    assert caught.value.problems[0].where == "--kv-cache-dtype"


def test_help_of_every_command_has_examples():
    for name, entry in COMMANDS.items():
        command = importlib.import_module(entry.module).command
        assert command.get_short_help_str(200) == entry.help.rstrip(".") or entry.help.startswith(
            command.get_short_help_str(200).rstrip(".")
        ), name
        assert "Examples:" in command.help


def test_plan_commands(tmp_path):
    runner = CliRunner()
    path = tmp_path / "plan.toml"
    result = runner.invoke(main, ["sweep", "plan", "--preset", "m4", "-o", str(path)])
    assert result.exit_code == 0 and "720 in 60 shards" in result.output
    assert path.read_bytes() == read_preset("m4")
    again = runner.invoke(main, ["sweep", "plan", "--preset", "m4", "-o", str(path)])
    assert again.exit_code == 2
    shown = runner.invoke(main, ["sweep", "plan", "--preset", "m4"])
    assert shown.output.encode() == read_preset("m4")
    for arguments in ([], [str(path), "--preset", "m4"], [str(path), "-o", "x"]):
        assert runner.invoke(main, ["sweep", "plan", *arguments]).exit_code == 2
    path.write_text(path.read_text().replace("repetitions = 5", "repetitions = -5"))
    bad = runner.invoke(main, ["sweep", "plan", str(path), "--json"])
    assert bad.exit_code == 1 and "design.repetitions" in bad.output


def test_expected_time_counts_servers_caches_and_cells():
    plan = parse_plan(read_preset("case"))
    times = plan.expected
    per_server = times.start_s + times.stop_s + times.other_s
    expected = 2 * (per_server + times.warm_s) + 110 * times.measure_s
    assert expected_seconds(plan, plan.cells()) == pytest.approx(expected)
    for before, after in itertools.pairwise(split(plan, 2)):
        assert before.seconds == pytest.approx(after.seconds)
