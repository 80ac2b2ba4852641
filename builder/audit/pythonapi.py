"""Do the modules keep to the part of CPython's interface that the wheel's tags promise?

What belongs to the stable interface, and since which version, is abi3info's data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from abi3info import DATAS, FUNCTIONS
from abi3info.models import PyVersion, Symbol
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.audit.contents import Contents, MemberFacts
from builder.audit.identity import python_version
from builder.audit.report import Check
from kvreg.model.profile import Profile

_PYTHON = re.compile(r"_?Py[A-Z_]\w*")
_CPYTHON = re.compile(r"cp\d\d+")
_TAGGED = re.compile(r"\.cpython-(\d)(\d+)\w*-")


def is_python_symbol(name: str) -> bool:
    """Whether a name belongs to CPython.

    >>> is_python_symbol("PyList_New"), is_python_symbol("_Py_NoneStruct"), is_python_symbol("Pyx")
    (True, True, False)
    """
    return _PYTHON.fullmatch(name) is not None


def stable_since(name: str) -> PyVersion | None:
    """The version of CPython that added a symbol to the stable interface; None if none did."""
    entry = FUNCTIONS.get(Symbol(name)) or DATAS.get(Symbol(name))
    return entry.added if entry else None


def check_python_api(contents: Contents, profile: Profile) -> Check:
    """``*.abi3.so`` uses the stable interface alone, as it was in the profile's Python."""
    tag = profile.host.python_tag.validated
    target = PyVersion(*python_version(tag))
    promised = _promised(contents.filename)
    required = f"*.abi3.so: the stable interface of CPython {target} alone; others: built for {tag}"
    failures: list[str] = []
    notes: list[str] = []
    used = [member for member in contents.modules if member.elf and _python_symbols(member)]
    for member in used:
        if member.path.endswith(".abi3.so") or promised is not None:
            failures += _beyond(member, target)
            if promised is not None and promised < target:
                notes += _newer(member, promised, target)
        else:
            failures += _other_python(member, target)
            notes += [f"{member.path}: binds to {tag}: {text}" for text in _unstable(member)]
    if failures:
        return Check(
            "python api",
            "fail",
            required,
            f"{len(failures)} uses of another interface",
            where=tuple(failures),
            remedy=f"define Py_LIMITED_API={target.major:#04x}{target.minor:02x}0000 and use what "
            "it leaves, or do not name the module .abi3.so",
        )
    found = f"{len(used)} modules use CPython, all within it" if used else "no module uses CPython"
    status = "note" if notes else "pass"
    return Check("python api", status, required, found, where=tuple(notes))


def _promised(filename: str) -> PyVersion | None:
    """The oldest CPython that an abi3 tag of the file name promises."""
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return None
    interpreters = [tag.interpreter for tag in tags if tag.abi == "abi3"]
    versions = [
        PyVersion(*python_version(text)) for text in interpreters if _CPYTHON.fullmatch(text)
    ]
    return min(versions, default=None)


def _python_symbols(member: MemberFacts) -> list[str]:
    undefined = member.elf.undefined if member.elf else ()
    return [symbol.name for symbol in undefined if is_python_symbol(symbol.name)]


def _unstable(member: MemberFacts) -> list[str]:
    return [name for name in _python_symbols(member) if stable_since(name) is None]


def _beyond(member: MemberFacts, target: PyVersion) -> Iterator[str]:
    for name in _python_symbols(member):
        since = stable_since(name)
        if since is None:
            yield f"{member.path}: {name} is not in the stable interface"
        elif since > target:
            yield f"{member.path}: {name} is in it from {since} on only"


def _newer(member: MemberFacts, promised: PyVersion, target: PyVersion) -> Iterator[str]:
    for name in _python_symbols(member):
        since = stable_since(name)
        if since is not None and promised < since <= target:
            yield f"{member.path}: {name} is stable from {since} on, the tag promises {promised}"


def _other_python(member: MemberFacts, target: PyVersion) -> Iterator[str]:
    match = _TAGGED.search(PurePosixPath(member.path).name)
    if match and PyVersion(int(match[1]), int(match[2])) != target:
        yield f"{member.path}: named for CPython {match[1]}.{match[2]}"
