"""Scripts of a runtime, started with the interpreter that activates it.

Staging wrote the interpreter that ran ``kvreg pull`` into them. Where another one activates the
runtime (a kernel of its own virtual environment, an image whose Python moved), they get wrappers
in the home, which come first on ``PATH``; the runtime itself stays as it was verified.
"""

import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from kvreg.home import Home
from kvreg.runtime import Runtime
from kvreg.wheel.scripts import interpreter_for, shebang

_MAX_LINE = 512


def program_folders(runtime: Runtime, home: Home) -> list[str]:
    """The directories that lead ``PATH``: those of the runtime, before them one of wrappers."""
    folders = [f"{place}/bin" for place in runtime.places]
    interpreter = interpreter_for(runtime.profile().host.python_tag.validated)
    foreign = list(_foreign(runtime, interpreter))
    if not foreign:
        return folders
    key = hashlib.sha256(f"{runtime.folder}\0{interpreter}".encode()).hexdigest()[:16]
    folder = home.root / "startup" / f"bin-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    for script in foreign:
        _write(folder / script.name, _wrapper(interpreter, script))
    return [str(folder), *folders]


def _foreign(runtime: Runtime, interpreter: str) -> Iterator[Path]:
    """Python scripts of the runtime that would start with another interpreter."""
    wanted = shebang(interpreter)
    seen: set[str] = set()
    for place in runtime.places:
        for script in sorted((place / "bin").glob("*")):
            if script.name in seen or not script.is_file():
                continue
            seen.add(script.name)
            with script.open("rb") as file:
                start = file.read(_MAX_LINE)
            first = b"".join(start.splitlines(keepends=True)[:2])
            if start.startswith(b"#!") and b"python" in first and not start.startswith(wanted):
                yield script


def _wrapper(interpreter: str, script: Path) -> str:
    start = shlex.quote(interpreter) if "/" in interpreter else f"/usr/bin/env {interpreter}"
    return f'#!/bin/sh\nexec {start} {shlex.quote(str(script))} "$@"\n'


def _write(path: Path, text: str) -> None:
    if path.is_file() and path.read_text("utf-8") == text:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.chmod(0o755)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
