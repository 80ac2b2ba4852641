"""Upstream's own ``vllm bench serve`` and the resident load generator on the same server.

vLLM's Python part is taken out of upstream's wheel without its native modules; the server is the
simulated one, whose answers take the same time whoever asks. Slow: needs the packages of vLLM,
which stay in KVREG_TEST_ENVIRONMENTS.
"""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from kvreg.sweep.job import Job
from kvreg.sweep.load import run_job
from kvreg.sweep.metrics import Observation, summarize
from kvreg.sweep.server import free_port
from tests.e2e.test_vllm_runtime import (
    RELEASED,
    environments,
    make_environment,
    serving_python,
    torch_python,
    upstream_wheel,
)
from tests.support import openai_server

__all__ = ["environments", "serving_python", "torch_python", "upstream_wheel"]

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(3600)]

OUTPUT_TOKENS = 16
# Beside what serving needs, `vllm bench` needs pandas, which needs these.
BENCH = ("pandas==2.3.3", "python-dateutil", "six", "pytz", "tzdata")

TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {"[UNK]": 0, **{f"w{number:02d}": number + 1 for number in range(100)}}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[UNK]", bos_token="[UNK]"
).save_pretrained(sys.argv[1])
"""

# Upstream's own function on observations that are given, as JSON on standard input.
CALCULATE = """
import json, sys
from vllm.benchmarks.datasets import SampleRequest
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
results = []
for duration, rows in json.load(sys.stdin):
    requests = [SampleRequest(prompt="", prompt_len=row["input_tokens"], expected_output_len=1)
                for row in rows]
    outputs = [RequestFuncOutput(success=row["good"], latency=row["latency"], ttft=row["ttft"],
                                 itl=row["itl"], output_tokens=row["output_tokens"])
               for row in rows]
    metrics, _ = calculate_metrics(requests, outputs, duration, None, [50, 90, 95, 99], {})
    results.append({key: value if not isinstance(value, list) else [float(v) for _, v in value]
                    for key, value in vars(metrics).items()})
print("RESULT " + json.dumps(results, default=float))
"""


@pytest.fixture(scope="session")
def bench_python(environments: Path, serving_python: Path) -> Path:
    """The serving environment and pandas."""
    folder = environments / "bench"
    made = (folder / "ready").exists()
    python = make_environment(folder, "--no-deps", "--exclude-newer", RELEASED, *BENCH)
    if not made:
        site = next((folder / "lib").glob("python3*/site-packages"))
        other = next((serving_python.parent.parent / "lib").glob("python3*/site-packages"))
        # addsitedir, so that the other's own .pth files count as well.
        line = f"import site; site.addsitedir({str(other)!r})\n"
        (site / "zz_serving.pth").write_text(line)
    return python


@pytest.fixture(scope="session")
def vllm(bench_python: Path, upstream_wheel: Path, tmp_path_factory):
    """`vllm(argument, …)`: run Python with vLLM's own modules, those in C++ left out."""
    site = tmp_path_factory.mktemp("vllm")
    with zipfile.ZipFile(upstream_wheel) as archive:
        archive.extractall(site, [n for n in archive.namelist() if not n.endswith(".so")])

    def run(*argv: object, **options) -> str:
        result = subprocess.run(
            [bench_python, "-W", "ignore", *map(str, argv)],
            env={**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout

    return run


@pytest.fixture(scope="module")
def server():
    port = free_port()
    program = [sys.executable, openai_server.__file__, "m", "--port", str(port)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline()
    yield port
    process.kill()
    process.wait()


def test_the_definitions_are_upstreams(vllm):
    import random

    chance = random.Random(5)
    cases = []
    for _ in range(50):
        rows = []
        for _ in range(chance.randint(1, 40)):
            itl = [chance.expovariate(50) for _ in range(chance.randint(0, 30))]
            ttft = chance.expovariate(5)
            rows.append(
                {
                    "good": chance.random() < 0.9,
                    "ttft": ttft,
                    "itl": itl,
                    "latency": ttft + sum(itl),
                    "input_tokens": chance.randint(1, 2000),
                    # More tokens than chunks happens: several in one.
                    "output_tokens": len(itl) + 1 + chance.randint(0, 2),
                }
            )
        cases.append((chance.uniform(1, 100), rows))
    answer = vllm("-c", CALCULATE, input=json.dumps(cases)).rpartition("RESULT ")[2]
    for (duration, rows), theirs in zip(cases, json.loads(answer), strict=True):
        ours = summarize(
            [
                Observation(
                    ttft=row["ttft"],
                    itl=row["itl"],
                    latency=row["latency"],
                    input_tokens=row["input_tokens"],
                    output_tokens=row["output_tokens"],
                    error=None if row["good"] else "failed",
                )
                for row in rows
            ],
            duration,
        )
        assert ours["requests"] == theirs["completed"]
        assert ours["failed_requests"] == theirs["failed"]
        pairs = {
            "requests_per_s": "request_throughput",
            "output_tokens_per_s": "output_throughput",
            "total_tokens_per_s": "total_token_throughput",
            **{f"{name}_ms": f"mean_{other}_ms" for name, other in NAMES.items()},
            **{f"{name}_ms_std": f"std_{other}_ms" for name, other in NAMES.items()},
            **{f"{name}_ms_p50": f"median_{other}_ms" for name, other in NAMES.items()},
        }
        for mine, other in pairs.items():
            # Upstream has 0 where there is no observation; we have none.
            assert (ours[mine] or 0) == pytest.approx(theirs[other], abs=1e-9)
        for name, other in NAMES.items():
            values = [ours[f"{name}_ms_p{percent}"] or 0 for percent in (50, 90, 95, 99)]
            assert values == pytest.approx(theirs[f"percentiles_{other}_ms"], abs=1e-9)


NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_both_measure_the_same_on_the_same_server(vllm, server, tmp_path, concurrency):
    """Texts of 32 tokens by the server's count, 16 tokens out, and both generators in turn."""
    requests = 12 * concurrency if concurrency > 1 else 24
    texts = [" ".join(f"w{(n * 7 + k) % 100:02d}" for k in range(32)) + " " for n in range(64)]
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    vllm("-c", TOKENIZER, tmp_path / "tokenizer")
    theirs = json.loads(_upstream(vllm, server, tmp_path, dataset, requests, concurrency))
    job = Job(
        host="127.0.0.1",
        port=server,
        model="m",
        requests=requests,
        concurrency=concurrency,
        input_tokens=None,
        output_tokens=OUTPUT_TOKENS,
        token_ids=(1, 9),
        seed="",
        texts=tuple(texts),
    )
    time.sleep(0.2)
    ours = run_job(job)
    assert ours["error"] is None
    metrics = ours["metrics"]
    assert metrics["requests"] == theirs["completed"] == requests
    assert metrics["output_tokens"] == theirs["total_output_tokens"] == requests * OUTPUT_TOKENS
    found = {
        "requests_per_s": theirs["request_throughput"],
        "output_tokens_per_s": theirs["output_throughput"],
        **{f"{name}_ms": theirs[f"mean_{other}_ms"] for name, other in NAMES.items()},
    }
    lines = [
        f"{key}: {metrics[key]:.3f} ours, {value:.3f} upstream" for key, value in found.items()
    ]
    print(f"concurrency {concurrency}\n  " + "\n  ".join(lines))
    for key, value in found.items():
        assert metrics[key] == pytest.approx(value, rel=0.1, abs=2 if key.endswith("ms") else 0)


def _upstream(vllm, port, folder, dataset, requests, concurrency) -> str:
    vllm(
        *("-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"),
        *("--base-url", f"http://127.0.0.1:{port}", "--model", "m"),
        *("--tokenizer", folder / "tokenizer", "--dataset-name", "custom"),
        *("--dataset-path", dataset, "--skip-chat-template", "--disable-shuffle"),
        *("--custom-output-len", OUTPUT_TOKENS, "--num-prompts", requests),
        *("--max-concurrency", concurrency, "--ignore-eos", "--temperature", 0),
        *("--num-warmups", concurrency, "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--metric-percentiles", "50,90,95,99", "--save-result", "--result-dir", folder),
        *("--result-filename", "upstream.json", "--disable-tqdm"),
    )
    return (folder / "upstream.json").read_text()
