"""An OpenAI-compatible server process with a stated latency model, for sweeps without a GPU.

It takes the arguments of ``vllm serve`` and speaks ``GET /health``, ``GET /v1/models`` and
streaming ``POST /v1/completions`` over HTTP/1.1, like vLLM: token ids or a text as prompt, one
chunk a token, usage in a chunk of its own at the end.

Latency model: continuous batching. An engine runs steps one after the other; a step takes in every
waiting request and gives each running request one token. With n requests running, p prompt tokens
taken in and tensor-parallel degree t, a step takes

    a(t) + b(t) n + c(t) p        milliseconds

    t      a     b     c
    1    3.0   1.2   0.10
    2    8.0   0.4   0.03         every doubling: a grows, b and c shrink by about 3

so that one request is faster on one GPU and many are faster on two. Steps follow an absolute clock:
late wake-ups do not add up. For 16 output tokens the two curves cross between concurrency 4 and 16
with 32 prompt tokens, and between 1 and 4 with 256.

Memory model, per GPU: 400 MiB + 9000/t MiB of weights + 0.5/t MiB for every token of the running
requests. It is written to ``$KVREG_SIMULATED_GPUS/<pid>``, where ``simulated_gpus.py`` reads it.

Scripted faults come from the JSON file ``$KVREG_SIMULATED_FAULTS``, by cell id (``$KVREG_CELL``; a
cell without a name is the gate's): ``{"kind": KIND, "after": N}``, where N requests are answered
before it happens. Kinds: ``crash`` (SIGKILL), ``hang`` (no token any more), ``oom`` (says so and
exits), ``memory`` (``mib`` more on every GPU), ``start-crash``, ``start-oom``, ``start-hang``,
``unsupported`` (refuses the model as vLLM does), ``counts`` (one token too few).
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

COEFFICIENTS = {1: (3.0, 1.2, 0.10), 2: (8.0, 0.4, 0.03), 4: (12.0, 0.15, 0.01)}


def step_ms(tp: int, running: int, prompt_tokens: int) -> float:
    """The latency model."""
    a, b, c = COEFFICIENTS[tp]
    return a + b * running + c * prompt_tokens


def closed_loop_tokens_per_s(
    tp: int, concurrency: int, input_tokens: int, output_tokens: int
) -> float:
    """Throughput of whole waves: all requests of a wave start and end together."""
    wave = step_ms(tp, concurrency, concurrency * input_tokens)
    wave += (output_tokens - 1) * step_ms(tp, concurrency, 0)
    return 1000 * concurrency * output_tokens / wave


def memory_mib(tp: int, tokens: int) -> float:
    """The memory model."""
    return 400 + 9000 / tp + 0.5 / tp * tokens


@dataclass
class Request:
    """One completion under way."""

    prompt_tokens: int
    left: int
    given: int = 0
    tokens: asyncio.Queue = field(default_factory=asyncio.Queue)


class Engine:
    """Runs the steps."""

    def __init__(self, tp: int, fault: dict, devices: Path | None) -> None:
        self.tp = tp
        self.fault = fault
        self.devices = devices / str(os.getpid()) if devices else None
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.answered = 0
        self.wake = asyncio.Event()

    def due(self, kind: str) -> bool:
        """Whether a scripted fault happens now."""
        return self.fault.get("kind") == kind and self.answered >= self.fault.get("after", 0)

    def show_memory(self) -> None:
        """Write the memory that is in use now."""
        tokens = sum(item.prompt_tokens + item.given for item in self.running)
        mib = memory_mib(self.tp, tokens)
        if self.due("memory"):
            mib += self.fault["mib"]
        self.take(mib)

    def take(self, mib: float) -> None:
        """Say that so many MiB are in use on each GPU."""
        if self.devices is None:
            return
        temporary = self.devices.with_suffix(".new")
        temporary.write_text(json.dumps([mib] * self.tp))
        temporary.replace(self.devices)

    async def run(self) -> None:
        """Step after step, as long as there are requests."""
        clock = asyncio.get_running_loop().time
        while True:
            if not self.waiting and not self.running:
                self.wake.clear()
                await self.wake.wait()
                now = clock()
            if self.due("crash"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.due("oom"):
                print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.")
                sys.stdout.flush()
                os._exit(1)
            if self.due("hang"):
                await asyncio.Event().wait()
            prompts = sum(item.prompt_tokens for item in self.waiting)
            self.running += self.waiting
            self.waiting = []
            self.show_memory()
            now = max(now + step_ms(self.tp, len(self.running), prompts) / 1000, clock() - 0.005)
            await asyncio.sleep(now - clock())
            for item in list(self.running):
                item.left -= 1
                item.given += 1
                item.tokens.put_nowait(item.left)
                if item.left == 0:
                    self.running.remove(item)
            # The clients' next requests belong to the next step.
            await asyncio.sleep(0)


class Server:
    """HTTP in front of an engine."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.engine = engine
        self.model = model

    async def serve(self, host: str, port: int) -> None:
        """Serve until killed."""
        server = await asyncio.start_server(self.client, host, port, backlog=1024, limit=1 << 24)
        print(f"INFO: simulated server on {host}:{port}, {self.model}, TP {self.engine.tp}")
        sys.stdout.flush()
        async with server:
            await asyncio.gather(server.serve_forever(), self.engine.run())

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b"\r\n")[0].split(b" ")
                length = [
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ]
                body = await reader.readexactly(length[0]) if length else b""
                await self.answer(method + b" " + path, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, what: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        """One request."""
        if what == b"GET /health":
            plain(writer, 200, b"")
        elif what == b"GET /v1/models":
            plain(writer, 200, json.dumps({"data": [{"id": self.model}]}).encode())
        elif what == b"POST /v1/completions":
            await self.complete(json.loads(body), writer)
        else:
            plain(writer, 404, b"{}")
        await writer.drain()

    async def complete(self, asked: dict, writer: asyncio.StreamWriter) -> None:
        """A streamed completion, one chunk a token."""
        if asked["model"] != self.model or not asked.get("stream"):
            plain(writer, 404, json.dumps({"error": f"no model {asked['model']}"}).encode())
            return
        prompt = asked["prompt"]
        count = len(prompt) if isinstance(prompt, list) else max(1, len(prompt.encode()) // 4)
        wanted = asked["max_tokens"] - self.engine.due("counts")
        request = Request(count, wanted)
        self.engine.waiting.append(request)
        self.engine.wake.set()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        left = wanted
        while left:
            left = await request.tokens.get()
            event = {"model": self.model, "choices": [{"index": 0, "text": " t"}], "usage": None}
            chunk(writer, event)
        self.engine.answered += 1
        if asked.get("stream_options", {}).get("include_usage"):
            usage = {
                "prompt_tokens": count,
                "completion_tokens": wanted,
                "total_tokens": count + wanted,
            }
            chunk(writer, {"model": self.model, "choices": [], "usage": usage})
        raw(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def plain(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    """An answer that is not streamed."""
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def chunk(writer: asyncio.StreamWriter, event: dict) -> None:
    """One server-sent event."""
    raw(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def raw(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One HTTP chunk."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def scripted_fault() -> dict:
    """The fault of this cell."""
    path = os.environ.get("KVREG_SIMULATED_FAULTS")
    faults = json.loads(Path(path).read_text()) if path else {}
    return faults.get(os.environ.get("KVREG_CELL", "gate"), {})


def main(arguments: Iterable[str], kind: type[Engine] = Engine) -> None:
    """Serve as the command line says; options that only a real engine has are ignored."""
    arguments = list(arguments)
    if "--version" in arguments:
        print("simulated 1.0")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    options, _ = parser.parse_known_args(arguments)
    fault = scripted_fault()
    devices = os.environ.get("KVREG_SIMULATED_GPUS")
    engine = kind(options.tensor_parallel_size, fault, Path(devices) if devices else None)
    engine.show_memory()
    match fault.get("kind"):
        case "start-crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "start-oom":
            print("ValueError: No available memory for the cache blocks. Try increasing …")
            sys.exit(1)
        case "start-hang":
            signal.pause()
        case "unsupported":
            print(f"ValueError: Model architectures ['{options.model}'] are not supported for now.")
            sys.exit(1)
    # Interrupts end it at once; there is nothing to save.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(
        Server(engine, options.served_model_name or options.model).serve(options.host, options.port)
    )


if __name__ == "__main__":
    main(sys.argv[1:])
