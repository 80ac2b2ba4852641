"""Scripts in ``bin/``: those that a wheel carries and those that its entry points ask for."""

import configparser
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import Problem

_GROUPS = ("console_scripts", "gui_scripts")
_SCRIPT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TARGET = re.compile(rf"({_DOTTED})\s*:\s*({_DOTTED})\s*(?:\[[^\]]*\])?")
# Longer ones are cut by the kernel (127 bytes of path before Linux 5.1).
_MAX_SHEBANG = 127

_TEMPLATE = """\
import sys
from {module} import {root}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({attribute}())
"""


@dataclass(frozen=True)
class EntryPoint:
    """A script that an entry point asks for: call `attribute` of `module`."""

    name: str
    module: str
    attribute: str

    def source(self, interpreter: str) -> bytes:
        """The script's text, as pip writes it."""
        root = self.attribute.partition(".")[0]
        body = _TEMPLATE.format(module=self.module, root=root, attribute=self.attribute)
        return shebang(interpreter) + body.encode("utf-8")


def read_entry_points(raw: bytes, where: str) -> tuple[list[EntryPoint], list[Problem]]:
    """The scripts of an ``entry_points.txt`` (untrusted), and what is wrong with it."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(raw.decode("utf-8"))
    except (configparser.Error, UnicodeDecodeError) as error:
        return [], [Problem(where, f"cannot be read: {' '.join(str(error).split())}")]
    scripts: list[EntryPoint] = []
    problems: list[Problem] = []
    for name, value in _scripts(parser):
        match = _TARGET.fullmatch(value.strip())
        if _SCRIPT_NAME.fullmatch(name) is None or match is None:
            problems.append(
                Problem(where, "not a script", "NAME = MODULE:FUNCTION", f"{name} = {value}")
            )
        else:
            scripts.append(EntryPoint(name, match[1], match[2]))
    return scripts, problems


def rewritten(content: bytes, interpreter: str) -> bytes:
    """A wheel's own script with its placeholder ``#!python`` line replaced, others unchanged."""
    first, newline, rest = content.partition(b"\n")
    return shebang(interpreter) + rest if first.startswith(b"#!python") else first + newline + rest


def shebang(interpreter: str) -> bytes:
    """The first line (or lines) that start a script with `interpreter`, a path or a bare name."""
    if "/" not in interpreter:
        return f"#!/usr/bin/env {interpreter}\n".encode()
    if len(interpreter) + 3 <= _MAX_SHEBANG and not re.search(r"\s", interpreter):
        return f"#!{interpreter}\n".encode()
    # Read by the shell as a command and by Python as a string.
    return f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\"\n' '''\n".encode()


def interpreter_for(python_tag: str) -> str:
    """The interpreter of scripts: this one where it fits the tag, else the one on PATH."""
    major, minor = sys.version_info[:2]
    if python_tag == f"cp{major}{minor}" and sys.executable and Path(sys.executable).is_absolute():
        return sys.executable
    match = re.fullmatch(r"cp(\d)(\d+)", python_tag)
    return f"python{match[1]}.{match[2]}" if match else "python3"


def _scripts(parser: configparser.ConfigParser) -> Iterator[tuple[str, str]]:
    for group in _GROUPS:
        if parser.has_section(group):
            yield from parser.items(group)
