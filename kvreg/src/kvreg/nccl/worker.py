"""One rank of a communication measurement: a program of its own that needs torch alone.

It is copied into the folder of a repetition and started there as ``python worker.py job.json``, so
that it runs in any interpreter that has torch and imports nothing of this package. Its standard
input is a pipe that the parent holds: when that closes, the parent is gone and the rank ends.
"""

import json
import os
import platform
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path


def main(path):
    """Do the job in the file at `path`; the result appears under the name that the job gives."""
    job = json.loads(Path(path).read_text())
    threading.Thread(target=end_with_parent, daemon=True).start()
    result = survey() if job["task"] == "survey" else measure(job)
    partial = Path(job["result"] + ".part")
    partial.write_text(json.dumps(result))
    partial.rename(job["result"])
    if job["task"] == "measure":
        import torch.distributed as dist

        dist.destroy_process_group()


def end_with_parent():
    """Leave at once when the pipe on standard input closes."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def survey():
    """What is here to measure with: versions, devices and which of them reach each other."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if count else None,
        "devices": [
            {
                "name": device.name,
                "capability": f"{device.major}.{device.minor}",
                "memory_mib": device.total_memory // 2**20,
            }
            for device in properties
        ],
        "peer_access": [
            [
                one == other or torch.cuda.can_device_access_peer(one, other)
                for other in range(count)
            ]
            for one in range(count)
        ],
    }


def measure(job):
    """Time every payload of the job with every timer that this backend has."""
    import torch
    import torch.distributed as dist

    rank, ranks = job["rank"], job["ranks"]
    limit = timedelta(seconds=job["timeout_s"])
    store = dist.FileStore(job["store"], ranks)
    store.set_timeout(limit)
    on_gpu = job["backend"] == "nccl"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(job["backend"], store=store, rank=rank, world_size=ranks, timeout=limit)

    samples, unavailable = [], {}
    if not on_gpu:
        reason = f"{job['backend']} moves host memory: no device events, no captured graphs"
        unavailable = {"event": reason, "graph": reason}
    # Graphs last: what a failed capture leaves behind can spoil no other timer.
    for timers in (("host", "event"), ("graph",)):
        for payload in job["payloads"]:
            wanted = [timer for timer in timers if timer not in unavailable]
            if not wanted:
                continue
            reduce = reducer(checked_buffer(payload, job, device))
            for timer in wanted:
                calls = job["captured"][str(payload)] if timer == "graph" else 1
                try:
                    if timer == "host":
                        times = time_host(reduce, job, on_gpu)
                    elif timer == "event":
                        times = time_events(reduce, job)
                    else:
                        agreement = Agreement(store, rank, ranks, payload)
                        times = time_graph(reduce, job, calls, agreement)
                except Unavailable as error:
                    unavailable[timer] = f"at {payload} bytes: {error}"
                    continue
                samples.append({"bytes": payload, "timer": timer, "calls": calls, "us": times})
    return {"samples": samples, "unavailable": unavailable}


def checked_buffer(payload, job, device):
    """A buffer of `payload` bytes over which the ranks' sum was proved right."""
    import torch
    import torch.distributed as dist

    dtype = getattr(torch, job["dtype"])
    rank, ranks = job["rank"], job["ranks"]
    buffer = torch.full((payload // dtype.itemsize,), rank + 1, dtype=dtype, device=device)
    dist.all_reduce(buffer)
    if not bool((buffer == ranks * (ranks + 1) // 2).all()):
        raise SystemExit(f"all-reduce of {payload} bytes gave a wrong sum on rank {rank}")
    # Timed on zeros: a buffer that is summed into itself again and again would overflow.
    return buffer.zero_()


def reducer(buffer):
    """One all-reduce of `buffer`, in place."""
    import torch.distributed as dist

    return lambda: dist.all_reduce(buffer)


def time_host(reduce, job, on_gpu):
    """Microseconds of each call by the host's clock; the call before it aligns the ranks."""
    import torch

    finish = torch.cuda.synchronize if on_gpu else lambda: None
    for _ in range(job["warmup"]):
        reduce()
        finish()
    times = []
    for _ in range(job["collectives"]):
        started = time.perf_counter_ns()
        reduce()
        finish()
        times.append((time.perf_counter_ns() - started) / 1000)
    return times


def time_events(run, job, calls=1):
    """Microseconds of each run (of `calls` all-reduces) between device events, back to back."""
    import torch

    count = job["collectives"]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    for _ in range(job["warmup"]):  # not waited for: the queue is full when timing begins
        run()
    events[0].record()
    for index in range(count):
        run()
        events[index + 1].record()
    torch.cuda.synchronize()
    return [events[i].elapsed_time(events[i + 1]) * 1000 / calls for i in range(count)]


def time_graph(reduce, job, calls, agreement):
    """Microseconds of an all-reduce in replays of a captured graph of `calls` of them.

    Raises `Unavailable` on every rank when any rank could not capture.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # communicators and channels exist before the capture
        for _ in range(3):
            reduce()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    graph, reason = torch.cuda.CUDAGraph(), ""
    try:
        # Thread-local: the process group's watchdog may query its events meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                reduce()
    except RuntimeError as error:
        reason = f"rank {job['rank']}: {str(error).splitlines()[0]}"
    reasons = agreement.exchange(reason)
    if reasons:
        raise Unavailable("; ".join(reasons))
    times = time_events(graph.replay, job, calls)
    # A communicator cannot be destroyed while a graph holds on to it.
    graph.reset()
    torch.cuda.synchronize()
    return times


class Unavailable(Exception):
    """A timer that cannot be had here, with the reason."""


class Agreement:
    """How ranks tell each other that they captured: one that replays alone would wait for ever."""

    def __init__(self, store, rank, ranks, payload):
        self.store, self.rank, self.ranks, self.payload = store, rank, ranks, payload

    def exchange(self, reason):
        """Say why this rank cannot (or ""); returns all ranks' reasons, empty when all can."""
        self.store.set(f"captured/{self.payload}/{self.rank}", reason or "yes")
        keys = [f"captured/{self.payload}/{other}" for other in range(self.ranks)]
        answers = [self.store.get(key).decode() for key in keys]
        return [answer for answer in answers if answer != "yes"]


if __name__ == "__main__":
    main(sys.argv[1])
