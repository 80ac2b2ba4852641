"""Reads CMake files far enough to know what they would build, without CMake, compiler or GPU.

Commands run in order over variables that are known. A condition that depends on what is not known
is neither true nor false; its branches are then both gone through, as what may happen. Functions
and macros are passed over: what they would do is given from outside (`architectures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

_TOKEN = re.compile(
    r"""(?P<comment>\#\[(?P<c>=*)\[.*?\](?P=c)\]|\#[^\n]*)
      | (?P<bracket>\[(?P<b>=*)\[(?P<raw>.*?)\](?P=b)\])
      | "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<open>\() | (?P<close>\))
      | (?P<word>(?:[^\s()"\#\\]|\\.)+)
      | (?P<space>\s+)""",
    re.X | re.S,
)
_VARIABLE = re.compile(r"\$(ENV)?\{([^${}]*)\}")
_FALSE = {"", "0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND"}
_TRUE = {"1", "ON", "YES", "TRUE", "Y"}
_SKIPPED = {"function": "endfunction", "macro": "endmacro"}


@dataclass(frozen=True)
class Argument:
    """One argument as it is written."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Command:
    """``name(arguments)`` in `file` at `line`, counted from 1; the name in lower case."""

    name: str
    arguments: tuple[Argument, ...]
    file: str
    line: int

    @property
    def place(self) -> str:
        """``file:line``, for people."""
        return f"{self.file}:{self.line}"


def commands(text: str, file: str) -> Iterator[Command]:
    """The commands of a CMake file, in order; what cannot be read is passed over.

    >>> [c.name for c in commands('set(A "x;y") # note\\nif(A)\\nendif()', "f")]
    ['set', 'if', 'endif']
    """
    name: tuple[str, int] | None = None
    depth, arguments = 0, list[Argument]()
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            position += 1
            continue
        position, here = match.end(), line
        line += match[0].count("\n")
        if match["comment"] or match["space"]:
            continue
        if depth == 0:
            if match["open"] and name is not None:
                depth, arguments = 1, []
            else:
                name = (match["word"].lower(), here) if match["word"] else None
        elif match["close"]:
            depth -= 1
            if depth == 0 and name is not None:
                yield Command(name[0], tuple(arguments), file, name[1])
                name = None
            else:
                arguments.append(Argument(")"))
        elif match["open"]:
            depth += 1
            arguments.append(Argument("("))
        elif match["bracket"]:
            arguments.append(Argument(match["raw"], quoted=True))
        elif match["quoted"] is not None:
            arguments.append(Argument(match["quoted"].replace("\\\n", ""), quoted=True))
        else:
            arguments.append(Argument(match["word"]))


@dataclass
class Run:
    """What came of running a file: variables with the place that set each, and calls by name.

    Values are CMake's texts (lists parted by ``;``). `calls` holds the expanded arguments of every
    command that may run and is neither control flow nor `set`.
    """

    variables: dict[str, str]
    places: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[Command, tuple[str, ...]]] = field(default_factory=list)

    def named(self, *names: str) -> Iterator[tuple[Command, tuple[str, ...]]]:
        """The calls of the commands of these names (lower case)."""
        return (call for call in self.calls if call[0].name in names)


def run(files: Mapping[str, str], entry: str, variables: Mapping[str, str]) -> Run:
    """Run `entry` and what it includes of `files` (path -> text), from known variables.

    A variable of the empty text counts as known and false; of the environment nothing is set.
    """
    machine = _Machine(files, Run(dict(variables)))
    machine.run_file(entry)
    return machine.result


@dataclass
class _Machine:
    files: Mapping[str, str]
    result: Run
    running: list[str] = field(default_factory=list)
    maybe: int = 0
    """How many branches deep that are only gone through because nobody knows."""

    def __post_init__(self) -> None:
        self._given = frozenset(self.result.variables)

    def run_file(self, file: str) -> None:
        if file in self.running or file not in self.files:
            return
        self.running.append(file)
        self._block(list(commands(self.files[file], file)))
        self.running.pop()

    def _block(self, block: list[Command]) -> bool:
        """False when a return() was reached for certain."""
        index = 0
        while index < len(block):
            command = block[index]
            if command.name == "if":
                end = _matching(block, index, "if", "endif")
                if not self._branches(block[index:end]):
                    return False
                index = end + 1
            elif command.name in _SKIPPED:
                index = _matching(block, index, command.name, _SKIPPED[command.name]) + 1
            elif command.name == "return":
                return False
            else:
                self._command(command)
                index += 1
        return True

    def _branches(self, block: list[Command]) -> bool:
        parts: list[tuple[Command, list[Command]]] = []
        depth = 0
        for command in block:
            if depth == 0 and (not parts or command.name in ("elseif", "else")):
                parts.append((command, []))
                continue
            if command.name == "if":
                depth += 1
            elif command.name == "endif":
                depth -= 1
            parts[-1][1].append(command)
        certain = True
        for head, body in parts:
            held = True if head.name == "else" else self.condition(head.arguments)
            if held is False:
                continue
            certain = certain and bool(held)
            self.maybe += not certain
            went_on = self._block(body)
            self.maybe -= not certain
            if certain and not went_on:
                return False
            if held:
                break
        return True

    def _command(self, command: Command) -> None:
        arguments = self._expanded(command.arguments)
        if command.name == "set" and arguments:
            name, values = arguments[0], list(arguments[1:])
            for keyword in ("CACHE", "PARENT_SCOPE"):
                if keyword in values:
                    values = values[: values.index(keyword)]
            self._set(name, ";".join(values), command)
        elif command.name == "unset" and arguments:
            self.result.variables.pop(arguments[0], None)
        elif command.name == "list" and len(arguments) > 2 and arguments[0] == "APPEND":
            old = self.result.variables.get(arguments[1], "")
            self._set(arguments[1], ";".join(filter(None, [old, *arguments[2:]])), command)
        elif command.name == "include" and arguments:
            self.run_file(arguments[0])
        elif command.name == "cuda_archs_loose_intersection" and len(arguments) == 3:
            found = intersection(arguments[1].split(";"), arguments[2].split(";"))
            self._set(arguments[0], ";".join(found), command)
        self.result.calls.append((command, arguments))

    def _set(self, name: str, value: str, command: Command) -> None:
        if self.maybe and name in self._given:
            return  # what is known is not given up for what may be
        self.result.variables[name] = value
        self.result.places[name] = command.place

    def _expanded(self, arguments: tuple[Argument, ...]) -> tuple[str, ...]:
        found: list[str] = []
        for argument in arguments:
            text = self._substituted(argument.text)
            found += [text] if argument.quoted else [part for part in text.split(";") if part]
        return tuple(found)

    def _substituted(self, text: str) -> str:
        for _ in range(8):  # variables within variables, but no loops
            changed = _VARIABLE.sub(
                lambda m: "" if m[1] else self.result.variables.get(m[2], ""), text
            )
            if changed == text:
                break
            text = changed
        return text

    def condition(self, arguments: tuple[Argument, ...]) -> bool | None:
        """Whether it holds; None when that depends on what is not known."""
        tokens = list(arguments)
        value = self._either(tokens)
        return None if tokens else value

    def _either(self, tokens: list[Argument]) -> bool | None:
        value = self._both(tokens)
        while tokens and tokens[0].text == "OR":
            tokens.pop(0)
            other = self._both(tokens)
            value = True if True in (value, other) else None if None in (value, other) else False
        return value

    def _both(self, tokens: list[Argument]) -> bool | None:
        value = self._not(tokens)
        while tokens and tokens[0].text == "AND":
            tokens.pop(0)
            other = self._not(tokens)
            value = False if False in (value, other) else None if None in (value, other) else True
        return value

    def _not(self, tokens: list[Argument]) -> bool | None:
        if tokens and tokens[0].text == "NOT":
            tokens.pop(0)
            value = self._not(tokens)
            return None if value is None else not value
        return self._atom(tokens)

    def _atom(self, tokens: list[Argument]) -> bool | None:
        if not tokens:
            return None
        first = tokens.pop(0)
        if first.text == "(" and not first.quoted:
            value = self._either(tokens)
            if tokens:
                tokens.pop(0)
            return value
        if first.text == "DEFINED" and tokens:
            name = tokens.pop(0).text
            if name.startswith("ENV{"):
                return False
            return True if name in self.result.variables else None
        if first.text in ("EXISTS", "IS_DIRECTORY", "COMMAND", "TARGET", "POLICY") and tokens:
            tokens.pop(0)
            return None
        if tokens and (compare := _COMPARISONS.get(tokens[0].text)):
            tokens.pop(0)
            if not tokens:
                return None
            left, right = self._value(first), self._value(tokens.pop(0))
            return None if left is None or right is None else compare(left, right)
        if tokens and tokens[0].text in ("MATCHES", "IN_LIST", "IS_NEWER_THAN", "PATH_EQUAL"):
            del tokens[:2]
            return None
        value = self._value(first)
        return None if value is None else self._truth(value)

    def _truth(self, value: str) -> bool:
        upper = value.upper()
        return not (upper in _FALSE or upper.endswith("-NOTFOUND"))

    def _value(self, argument: Argument) -> str | None:
        text = argument.text
        names = [m[2] for m in _VARIABLE.finditer(text) if not m[1]]
        if any(name not in self.result.variables for name in names):
            return None
        if names or argument.quoted:
            return self._substituted(text)
        if text in self.result.variables:
            return self.result.variables[text]
        if text.upper() in _TRUE | _FALSE or text[:1].isdigit():
            return text
        return None


def _matching(block: list[Command], index: int, begin: str, end: str) -> int:
    depth = 0
    for place in range(index, len(block)):
        depth += (block[place].name == begin) - (block[place].name == end)
        if depth == 0:
            return place
    return len(block)


def _versions(left: str, right: str) -> tuple[Version, Version] | None:
    try:
        return Version(left), Version(right)
    except InvalidVersion:
        return None


def _ordered(verdict: tuple[int, ...]):  # type: ignore[no-untyped-def]
    def compare(left: str, right: str) -> bool | None:
        pair = _versions(left, right)
        return None if pair is None else (pair[0] > pair[1]) - (pair[0] < pair[1]) in verdict

    return compare


_COMPARISONS = {
    "STREQUAL": lambda left, right: left == right,
    "VERSION_LESS": _ordered((-1,)),
    "VERSION_LESS_EQUAL": _ordered((-1, 0)),
    "VERSION_EQUAL": _ordered((0,)),
    "VERSION_GREATER_EQUAL": _ordered((0, 1)),
    "VERSION_GREATER": _ordered((1,)),
}


def intersection(sources: list[str], targets: list[str]) -> list[str]:
    """The targets that kernels for `sources` are compiled for, as vLLM's CMake chooses them.

    A source with ``a`` serves exactly its target, one with ``f`` every target of its family;
    any other serves the targets of its major version from its minor version on, and with ``+PTX``
    all later ones.

    >>> intersection(["7.5", "8.0+PTX"], ["7.5"]), intersection(["8.0"], ["8.9"])
    (['7.5'], ['8.9'])
    >>> intersection(["9.0a", "10.0f"], ["7.5"])
    []
    """
    return [target for target in targets if any(_serves(s, target) for s in sources if s)]


def _serves(source: str, target: str) -> bool:
    plain = source.removesuffix("+PTX")
    have, want = _number(plain), _number(target)
    if have is None or want is None:
        return False
    if plain.endswith("a"):
        return have == want
    if source.endswith("+PTX"):
        return want >= have
    return have[0] == want[0] and have[1] <= want[1]


def _number(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)[af]?\Z", text)
    return (int(match[1]), int(match[2])) if match else None
