"""Compile and kernel caches, shared by (engine, model, TP, settings) and warmed before measuring.

A cache directory is for one key; ``warmed.json`` in it says that a server with exactly this key
has started and answered once. A cell's record names the key and whether the cache was warm, so
that a difference between the arms would be seen.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.sweep.ledger import now, sync_directory

_WARMED = "warmed.json"


@dataclass(frozen=True)
class CompileCache:
    """The cache of one key below `root`."""

    root: Path
    key: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.root / self.key

    @property
    def warm(self) -> bool:
        """Whether a server has filled it."""
        return (self.folder / _WARMED).is_file()

    def variables(self) -> dict[str, str]:
        """What points vLLM, Inductor, Triton and the driver at it."""
        names = {
            "VLLM_CACHE_ROOT": "vllm",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "TRITON_CACHE_DIR": "triton",
            "CUDA_CACHE_PATH": "cuda",
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        return {name: str(self.folder / part) for name, part in names.items()}

    def mark_warm(self) -> None:
        """Say that it is filled."""
        path = self.folder / _WARMED
        temporary = path.with_name(f"{_WARMED}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"schema": 1, "key": self.key, "time": now()}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(self.folder)

    def to_dict(self) -> dict[str, Any]:
        """For a cell's record."""
        return {"key": self.key, "warm": self.warm}
