"""The simulated server with real GPU memory: what its memory model says is allocated with CUDA.

For a machine with GPUs: `openai_server.py`'s latencies and faults, but memory that NVML sees and
that goes with the process. ``KVREG_CUDA_SCALE`` (default 1) multiplies the MiB.
"""

import ctypes
import os
import sys

from openai_server import Engine, main

_CHUNK_MIB = 64


class DeviceMemory:
    """Chunks of memory on the first `count` visible GPUs."""

    def __init__(self, count: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self._check(self.cuda.cuInit(0))
        self.contexts = [self._context(index) for index in range(count)]
        self.chunks: list[list[ctypes.c_uint64]] = [[] for _ in range(count)]

    def hold(self, mib: float) -> None:
        """Hold about so many MiB on each GPU, the context included in nothing."""
        wanted = max(0, round(mib / _CHUNK_MIB))
        for context, chunks in zip(self.contexts, self.chunks, strict=True):
            self._check(self.cuda.cuCtxSetCurrent(context))
            while len(chunks) < wanted:
                pointer = ctypes.c_uint64()
                size = ctypes.c_size_t(_CHUNK_MIB << 20)
                self._check(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), size))
                chunks.append(pointer)
            while len(chunks) > wanted:
                self._check(self.cuda.cuMemFree_v2(chunks.pop()))

    def _context(self, index: int) -> ctypes.c_void_p:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self.cuda.cuDeviceGet(ctypes.byref(device), index))
        self._check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        return context

    def _check(self, code: int) -> None:
        if code == 2:
            print("torch.OutOfMemoryError: CUDA out of memory.")
            sys.stdout.flush()
            os._exit(1)
        if code != 0:
            raise RuntimeError(f"CUDA error {code}")


class CudaEngine(Engine):
    """The engine whose memory is real."""

    memory: DeviceMemory | None = None

    def take(self, mib: float) -> None:
        """Hold what the model says."""
        if self.memory is None:
            self.memory = DeviceMemory(self.tp)
        self.memory.hold(mib * float(os.environ.get("KVREG_CUDA_SCALE", "1")))


if __name__ == "__main__":
    main(sys.argv[1:], CudaEngine)
