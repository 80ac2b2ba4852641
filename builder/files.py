"""Writing files that matter: temporary file, fsync, rename."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people and programs: indented, UTF-8, a closing newline."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())
