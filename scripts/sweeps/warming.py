"""Files that servers will read, read once before: the first start waits for the disk no longer.

Nothing is measured yet, and every server after the first one has it so. Where the host's packages
have no compiled files, they are compiled: each of some hundred processes would do it again.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "torch",
    "triton",
    "nvidia",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "numpy",
    "scipy",
    "sympy",
    "mpmath",
    "networkx",
    "aiohttp",
    "httpx",
    "PIL",
    "cv2",
    "regex",
    "safetensors",
    "requests",
    "jinja2",
    "rich",
    "grpc",
    "google",
    "uvloop",
    "pygments",
)
_CHUNK = 8 << 20


class Warming:
    """Reads in the background from the moment that it is made."""

    def __init__(self, packages: tuple[str, ...] = PACKAGES) -> None:
        self._began = time.monotonic()
        self._stop = False
        self._bytes = 0
        self._folders = [folder for name in packages for folder in _folders(name)]
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="warming")
        files = [
            Path(root) / name for f in self._folders for root, _, ns in os.walk(f) for name in ns
        ]
        self._files = len(files)
        self._sources = sum(path.suffix == ".py" for path in files)
        self._compiled = sum(path.suffix == ".pyc" for path in files)
        self._jobs = [self._pool.submit(self._read, path) for path in files]

    def wait(self, seconds: float) -> dict[str, float | int]:
        """Wait for the end, at most so long; what was read."""
        compiled = 0.0
        if self._compiled < self._sources // 2:
            began = time.monotonic()
            self._compile(seconds)
            compiled = time.monotonic() - began
        wait(self._jobs, timeout=max(0.0, seconds - (time.monotonic() - self._began)))
        self._stop = True
        self._pool.shutdown(cancel_futures=True)
        return {
            "files": self._files,
            "sources": self._sources,
            "compiled_files": self._compiled,
            "compiling_s": round(compiled, 1),
            "bytes": self._bytes,
            "seconds": round(time.monotonic() - self._began, 1),
        }

    def _read(self, path: Path) -> None:
        if self._stop:
            return
        try:
            with path.open("rb", buffering=0) as file:
                while not self._stop and (data := file.read(_CHUNK)):
                    self._bytes += len(data)
        except OSError:
            return

    def _compile(self, seconds: float) -> None:
        command = [sys.executable, "-m", compileall.__name__, "-q", "-j", "0"]
        try:
            subprocess.run(
                [*command, *map(str, self._folders)],
                check=False,
                timeout=seconds,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return


def _folders(name: str) -> list[str]:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []
