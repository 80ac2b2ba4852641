"""The load generator: server-sent events, HTTP bodies, broken servers, metrics."""

import asyncio
import json
import random
import statistics
import subprocess
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.sweep.failures import Verdict
from kvreg.sweep.generator import Generator
from kvreg.sweep.job import Job
from kvreg.sweep.load import Connection, Messages, run_job
from kvreg.sweep.metrics import Observation, summarize
from kvreg.sweep.server import free_port
from tests.sweep.conftest import SERVER


def job(port, **changes):
    values = {
        "host": "127.0.0.1",
        "port": port,
        "model": "m",
        "requests": 6,
        "concurrency": 3,
        "input_tokens": 8,
        "output_tokens": 4,
        "token_ids": (10, 20),
        "seed": "s",
        "stall_s": 5.0,
        "limit_s": 20.0,
    }
    return Job(**{**values, **changes})


@pytest.fixture(scope="module")
def server():
    port = free_port()
    process = subprocess.Popen(
        [*SERVER, "m", "--port", str(port)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline().startswith(b"INFO: simulated server")
    yield port
    process.kill()
    process.wait()


@contextmanager
def answering(*answers, close=True):
    """A server that gives every connection these bytes, whatever it asks."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    port = free_port()

    async def client(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            for answer in answers:
                writer.write(answer)
                await writer.drain()
                await asyncio.sleep(0.01)
            if close:
                writer.close()
            else:
                await asyncio.sleep(60)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    async def serve():
        await asyncio.start_server(client, "127.0.0.1", port)
        started.set()
        await stop.wait()
        clients = asyncio.all_tasks() - {asyncio.current_task()}
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5)), max_size=6),
    st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    st.integers(0, 2**32),
)
def test_events_come_out_whole_however_the_bytes_are_cut(events, end, seed):
    raw = b": ping" + end
    for event in events:
        raw += b"data: " + json.dumps(event, ensure_ascii=False).encode() + end
    raw += b"data: [DONE]" + end
    chance = random.Random(seed)
    cuts = sorted(chance.randrange(len(raw) + 1) for _ in range(chance.randrange(8)))
    parts = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stream = Messages()
    found = [message for part in parts for message in stream.feed(part)]
    assert found[-1] == b"[DONE]"
    assert [json.loads(message) for message in found[:-1]] == events


def test_a_job_against_a_server(server, tmp_path):
    path = tmp_path / "load.json"
    answer = run_job(job(server, output=str(path)))
    assert answer["error"] is None
    metrics = answer["metrics"]
    assert (metrics["requests"], metrics["input_tokens"], metrics["output_tokens"]) == (6, 48, 24)
    tree = json.loads(path.read_text())
    assert tree["metrics"] == metrics
    for row in tree["requests"]:
        assert len(row["itl_us"]) == 3
        assert row["e2e_us"] == pytest.approx(row["ttft_us"] + sum(row["itl_us"]), abs=5)
    # What is written is enough to have the metrics again.
    again = summarize(
        [
            Observation(
                start=row["start_us"] / 1e6,
                ttft=row["ttft_us"] / 1e6,
                itl=[value / 1e6 for value in row["itl_us"]],
                latency=row["e2e_us"] / 1e6,
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
            )
            for row in tree["requests"]
        ],
        metrics["duration_s"],
    )
    assert again == pytest.approx(metrics, abs=0.01)


def test_texts_are_sent_in_turn_and_counted_by_the_server(server):
    answer = run_job(job(server, input_tokens=None, texts=("12345678", "1234"), requests=4))
    assert answer["error"] is None
    assert answer["metrics"]["input_tokens"] == 2 + 1 + 2 + 1


def test_prompts_are_exact_different_and_the_same_again():
    bodies = job(1, requests=5, input_tokens=100).bodies()
    assert bodies == job(2, requests=5, input_tokens=100).bodies()
    assert bodies != job(1, requests=5, input_tokens=100, seed="other").bodies()
    prompts = [json.loads(body)["prompt"] for body in bodies]
    assert len({tuple(prompt) for prompt in prompts}) == 5
    assert all(len(prompt) == 100 and set(prompt) <= set(range(10, 20)) for prompt in prompts)
    assert job(1, requests=9, input_tokens=100).bodies()[:5] == bodies


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":"x"}]}\n\n'


def http_chunk(data):
    return f"{len(data):X};ext=1\r\n".encode() + data + b"\r\n"


def usage(prompt, completion):
    numbers = {"prompt_tokens": prompt, "completion_tokens": completion}
    return b"data: " + json.dumps({"choices": [], "usage": numbers}).encode() + b"\n\n"


def test_an_answer_in_odd_pieces():
    body = TOKEN * 4 + usage(8, 4) + b"data: [DONE]\n\n"
    wire = HEAD + http_chunk(body[:50]) + http_chunk(body[50:]) + b"0\r\nTrailer: x\r\n\r\n"
    with answering(*(wire[index : index + 7] for index in range(0, len(wire), 7))) as port:
        answer = run_job(job(port, requests=1, concurrency=1))
    assert answer["error"] is None
    assert answer["metrics"]["output_tokens"] == 4


@pytest.mark.parametrize("length", [True, False])
def test_an_answer_that_is_not_chunked(length):
    body = TOKEN * 4 + usage(8, 4)
    size = b"Content-Length: %d\r\n" % len(body) if length else b""
    with answering(b"HTTP/1.1 200 OK\r\n" + size + b"\r\n" + body) as port:
        answer = run_job(job(port, requests=2, concurrency=1))
    assert answer["error"] is None


@pytest.mark.parametrize(
    ("wire", "kind", "what"),
    [
        (b"", "lost", "IncompleteReadError"),
        (HEAD + http_chunk(TOKEN), "lost", "IncompleteReadError"),
        (b"SSH-2.0-x\r\n\r\n", "refused", "does not speak HTTP"),
        (b"HTTP/1.1 400 No\r\nContent-Length: 7\r\n\r\ntoo big", "refused", "400: too big"),
        (HEAD + http_chunk(b'data: {"error":{"message":"no"}}\n\n'), "refused", '"no"'),
        (HEAD + http_chunk(b"data: <html>\n\n"), "lost", "JSONDecodeError"),
        (HEAD + http_chunk(TOKEN * 4 + usage(9, 4)) + b"0\r\n\r\n", "counts", "9 prompt tokens"),
        (HEAD + http_chunk(TOKEN * 4 + usage(8, 3)) + b"0\r\n\r\n", "counts", "3 output tokens"),
        (HEAD + http_chunk(TOKEN * 4) + b"0\r\n\r\n", "counts", "None prompt tokens"),
    ],
)
def test_what_a_broken_server_says_ends_the_run(wire, kind, what):
    with answering(wire) as port:
        answer = run_job(job(port))
    assert answer["error"]["kind"] == kind
    assert what in answer["error"]["what"]
    assert answer["metrics"] == {}


def test_nobody_listens():
    assert run_job(job(free_port()))["error"]["kind"] == "lost"


def test_a_server_that_stalls():
    with answering(HEAD + http_chunk(TOKEN), close=False) as port:
        answer = run_job(job(port, stall_s=0.3))
    assert answer["error"]["kind"] == "stalled"


def test_a_server_that_drips():
    drips = [http_chunk(TOKEN)] * 200
    with answering(HEAD, *drips, close=False) as port:
        answer = run_job(job(port, limit_s=0.5))
    assert answer["error"]["kind"] == "too-long"


def test_the_generator_stays_and_its_watcher_can_end_a_job(server):
    generator = Generator()
    try:
        first = generator.run(job(server), lambda: None)
        process = generator._process
        second = generator.run(job(server), lambda: None)
        assert first.error is None and second.error is None
        assert generator._process is process
        verdict = Verdict("RESOURCE_GATED", "enough")
        with answering(HEAD, close=False) as port:
            assert generator.run(job(port), lambda: verdict) is verdict
        assert generator.run(job(server), lambda: None).error is None
        # A generator that was killed is started again by the next job.
        generator._process.kill()
        lost = generator.run(job(server), lambda: None)
        assert lost.error is None or lost.error["kind"] == "generator"
        assert generator.run(job(server), lambda: None).error is None
    finally:
        generator.close()


def test_the_generator_ends_with_its_owner():
    generator = Generator()
    generator.start()
    generator._process.stdin.close()
    assert generator._process.wait(10) == 0


def test_a_connection_is_kept(server):
    async def twice():
        connection = Connection("127.0.0.1", server)
        ports = []
        for body in job(server, requests=2).bodies():
            _, stream = await connection.post("/v1/completions", body)
            assert [data async for data in stream]
            ports.append(connection._writer.get_extra_info("sockname")[1])
        connection.close()
        return ports

    first, second = asyncio.run(twice())
    assert first == second


@given(
    st.lists(
        st.tuples(
            st.floats(0.001, 1),
            st.lists(st.floats(0, 0.1), max_size=5),
            st.integers(1, 100),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.floats(0.1, 100),
)
def test_metrics_by_the_book(rows, duration):
    seen = [
        Observation(
            ttft=ttft,
            itl=itl,
            latency=ttft + sum(itl),
            input_tokens=7,
            output_tokens=len(itl) + 1,
            error=None if good else "x",
        )
        for ttft, itl, _, good in rows
    ]
    metrics = summarize(seen, duration)
    good = [item for item in seen if item.error is None]
    assert metrics["requests"] == len(good)
    assert metrics["failed_requests"] == len(seen) - len(good)
    assert metrics["requests_per_s"] == len(good) / duration
    outputs = sum(item.output_tokens for item in good)
    assert metrics["output_tokens_per_s"] == outputs / duration
    assert metrics["total_tokens_per_s"] == (outputs + 7 * len(good)) / duration
    tpots = [
        (item.latency - item.ttft) / (item.output_tokens - 1)
        for item in good
        if item.output_tokens > 1
    ]
    for name, values in {
        "ttft_ms": [item.ttft for item in good],
        "e2e_ms": [item.latency for item in good],
        "itl_ms": [value for item in good for value in item.itl],
        "tpot_ms": tpots,
    }.items():
        if not values:
            assert metrics[name] is metrics[f"{name}_p99"] is None
            continue
        assert metrics[name] == pytest.approx(1000 * statistics.fmean(values))
        assert metrics[f"{name}_std"] == pytest.approx(1000 * statistics.pstdev(values), abs=1e-6)
        assert metrics[f"{name}_p50"] == pytest.approx(1000 * statistics.median(values))
        if len(values) > 1:
            cuts = statistics.quantiles(values, n=100, method="inclusive")
            assert metrics[f"{name}_p90"] == pytest.approx(1000 * cuts[89])
            assert metrics[f"{name}_p99"] == pytest.approx(1000 * cuts[98])
