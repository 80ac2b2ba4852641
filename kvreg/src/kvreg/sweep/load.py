"""The load generator: a process that starts once and stays, fed with jobs over a pipe.

Each line of standard input is a `Job`, each line of standard output its answer. It ends with its
standard input, so it never outlives its owner. All `concurrency` workers keep one connection each
and take the next request when theirs is answered, which is what ``vllm bench serve`` does with
``--max-concurrency`` and an infinite request rate. A request that fails, or whose token counts are
not the planned ones, ends the run: such a cell is worth nothing.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from kvreg.sweep.job import Job
from kvreg.sweep.metrics import Observation, summarize

_READ = 1 << 18


class LoadError(Exception):
    """A run that broke off. `kind` is one of those of `kvreg.sweep.job.Answer`."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Messages:
    """Server-sent events out of bytes, as they become complete.

    >>> stream = Messages()
    >>> list(stream.feed(b'data: {"a"')), list(stream.feed(b': 1}\\n\\ndata: [DO'))
    ([], [b'{"a": 1}'])
    >>> list(stream.feed(b"NE]\\r\\n\\r\\n: ping\\n\\n"))
    [b'[DONE]']
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of the events that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            # A server sends an event's data in one line, so a line is as good as an event, and
            # it is there before the empty line behind it.
            if line.startswith(b"data:"):
                yield line[5:].strip()


class Connection:
    """One HTTP/1.1 connection that is kept for the worker's next request."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, AsyncIterator[bytes]]:
        """Send a request; the status and the body as it comes."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        while True:
            kept = self._reader is not None and not self._reader.at_eof()
            if not kept:
                self.close()
                self._reader, self._writer = await asyncio.open_connection(
                    self._host, self._port, limit=_READ
                )
            assert self._reader is not None and self._writer is not None
            try:
                self._writer.write(head + body)
                status, headers = await self._head(self._reader)
                return status, self._body(self._reader, headers)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                # A server may close a connection between two requests; that one was not read.
                if not kept or getattr(error, "partial", b""):
                    raise
                self.close()

    def close(self) -> None:
        """Close the connection at once."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        parts = lines[0].split(None, 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise LoadError("refused", f"the server does not speak HTTP: {lines[0][:80]!r}")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(parts[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def _body(
        self, reader: asyncio.StreamReader, headers: dict[str, str]
    ) -> AsyncIterator[bytes]:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield (await reader.readexactly(size + 2))[:-2]
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left and (data := await reader.read(min(left, _READ))):
                left -= len(data)
                yield data
            if left:
                raise asyncio.IncompleteReadError(b"", left)
        else:
            while data := await reader.read(_READ):
                yield data
        if headers.get("connection", "").lower() == "close":
            self.close()


class Run:
    """One job under way."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.observations: list[Observation] = []
        self._beat = 0.0

    async def measure(self) -> float:
        """Send everything; seconds from the first request to the end of the last."""
        bodies = iter(self.job.bodies())
        began = self._beat = time.perf_counter()
        workers = [
            asyncio.create_task(self._worker(bodies))
            for _ in range(min(self.job.concurrency, self.job.requests))
        ]
        guard = asyncio.create_task(self._guard(began))
        try:
            all_done = asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            waiting = asyncio.create_task(all_done)
            await asyncio.wait([waiting, guard], return_when=asyncio.FIRST_COMPLETED)
            duration = time.perf_counter() - began
            waiting.cancel()
            # The guard ends only by an error; of the workers, the first error counts.
            for task in (guard, *workers):
                if task.done():
                    task.result()
            return duration
        finally:
            tasks = [*workers, guard]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, began: float) -> None:
        job = self.job
        pause = min(1.0, job.stall_s / 4, job.limit_s / 4)
        while True:
            await asyncio.sleep(pause)
            now = time.perf_counter()
            if now - self._beat > job.stall_s:
                raise LoadError("stalled", f"no token of any request for {job.stall_s:g} s")
            if now - began > job.limit_s:
                raise LoadError("too-long", f"the requests took more than {job.limit_s:g} s")

    async def _worker(self, bodies: Iterator[bytes]) -> None:
        connection = Connection(self.job.host, self.job.port)
        try:
            for body in bodies:
                observation = Observation()
                self.observations.append(observation)
                try:
                    await self._request(connection, body, observation)
                    self._check(observation)
                except LoadError as error:
                    observation.error = str(error)
                    raise
                except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                    observation.error = f"{type(error).__name__}: {error}"
                    raise LoadError("lost", f"a request broke off: {observation.error}") from None
        finally:
            connection.close()

    async def _request(self, connection: Connection, body: bytes, seen: Observation) -> None:
        clock = time.perf_counter
        seen.start = latest = clock()
        status, stream = await connection.post("/v1/completions", body)
        messages = Messages()
        refusal = b""
        async for data in stream:
            if status != 200:
                refusal += data
                continue
            for message in messages.feed(data):
                if message == b"[DONE]":
                    continue
                event = json.loads(message)
                if event.get("choices"):
                    now = self._beat = clock()
                    if latest == seen.start:
                        seen.ttft = now - seen.start
                    else:
                        seen.itl.append(now - latest)
                    latest = now
                elif "error" in event:
                    raise LoadError("refused", f"the server answered: {message[:300]!r}")
                # Upstream takes usage from the chunk without choices alone.
                elif usage := event.get("usage"):
                    seen.input_tokens = usage.get("prompt_tokens")
                    seen.output_tokens = usage.get("completion_tokens")
        seen.latency = latest - seen.start
        if status != 200:
            text = refusal[:300].decode("utf-8", "replace")
            raise LoadError("refused", f"the server answered {status}: {text}")

    def _check(self, seen: Observation) -> None:
        wanted = (self.job.input_tokens, self.job.output_tokens)
        found = (seen.input_tokens, seen.output_tokens)
        exact = wanted[0] is None or wanted[0] == found[0]
        if not exact or wanted[1] != found[1] or not seen.ttft:
            raise LoadError(
                "counts",
                f"the server reports {found[0]} prompt tokens and {found[1]} output tokens "
                f"where {wanted[0]} and {wanted[1]} were planned",
            )


def run_job(job: Job) -> dict[str, Any]:
    """Run a job to its end; the answer as JSON-ready data."""
    run = Run(job)
    error: dict[str, str] | None = None
    duration = 0.0
    try:
        duration = asyncio.run(run.measure())
    except LoadError as failure:
        error = {"kind": failure.kind, "what": str(failure)}
    metrics = summarize(run.observations, duration) if error is None else {}
    if job.output is not None:
        _write(Path(job.output), job, run.observations, metrics, error)
    latencies = [item.latency for item in run.observations if item.error is None]
    return {"metrics": metrics, "latencies": latencies, "error": error}


def _write(
    path: Path,
    job: Job,
    observations: list[Observation],
    metrics: dict[str, Any],
    error: dict[str, str] | None,
) -> None:
    """Every observation, intervals in whole microseconds, so that metrics can be had again."""
    began = min((item.start for item in observations), default=0.0)
    rows = [
        {
            "start_us": round((item.start - began) * 1e6),
            "ttft_us": round(item.ttft * 1e6),
            "e2e_us": round(item.latency * 1e6),
            "itl_us": [round(interval * 1e6) for interval in item.itl],
            "input_tokens": item.input_tokens,
            "output_tokens": item.output_tokens,
            "error": item.error,
        }
        for item in observations
    ]
    tree = {
        "schema": 1,
        "job": {key: value for key, value in job.to_dict().items() if key != "output"},
        "metrics": metrics,
        "error": error,
        "requests": rows,
    }
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(tree, file, ensure_ascii=False, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def main() -> None:
    """Answer jobs until standard input ends."""
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        try:
            answer = run_job(Job.from_dict(json.loads(line)))
        except Exception as error:  # the owner decides; the generator stays
            what = f"{type(error).__name__}: {error}"
            answer = {
                "metrics": {},
                "latencies": [],
                "error": {"kind": "generator", "what": what},
            }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
