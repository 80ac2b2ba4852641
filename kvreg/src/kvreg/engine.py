"""Options of vLLM's engine: what a profile sets by default, and what it denies.

>>> settings = Settings(set={"dtype": "float16"}, deny=())
>>> for_command(settings, ["--max-model-len", "4096"], "demo").words
('--dtype', 'float16', '--max-model-len', '4096')
>>> for_command(settings, ["--dtype=float32"], "demo").words
('--dtype=float32',)
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvreg.errors import ContractError, Problem
from kvreg.model.activation import Settings

_OPTION = re.compile(r"--?([A-Za-z][\w-]*(?:\.[\w.-]+)?)(?:=(.*))?", re.DOTALL)

SAME = {
    "attention-backend": ("attention-config", "attention-config.backend", "ac", "ac.backend"),
}
"""Other ways in which upstream lets the same thing be said: they keep a default from being set."""


@dataclass(frozen=True)
class Chosen:
    """Engine options with the profile's defaults.

    `words` is the command line; `options` the keyword arguments; `defaults` what the profile added
    to them.
    """

    words: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    defaults: Mapping[str, str] = field(default_factory=dict, hash=False)


def for_command(settings: Settings, words: Sequence[str], profile: str) -> Chosen:
    """The command line of the engine; `ContractError` when it asks for what is denied."""
    given = _flat(dict(_pairs(words)))
    _refuse(settings, given, profile)
    defaults = _defaults(settings, given)
    added = [word for name, value in defaults.items() for word in (f"--{name}", value)]
    return Chosen(words=(*added, *words), defaults=defaults)


def for_call(settings: Settings, options: Mapping[str, Any], profile: str) -> Chosen:
    """The keyword arguments of ``vllm.LLM``; `ContractError` when they ask for what is denied."""
    present = {name: value for name, value in options.items() if value is not None}
    given = _flat({name.replace("_", "-"): _text(value) for name, value in present.items()})
    _refuse(settings, given, profile)
    defaults = _defaults(settings, given)
    added = {name.replace("-", "_"): value for name, value in defaults.items()}
    return Chosen(options={**added, **options}, defaults=defaults)


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Options of a command line with their values, names as upstream's parser reads them."""
    found = []
    for position, word in enumerate(words):
        match = _OPTION.fullmatch(word)
        if match is None:
            continue
        value = match[2]
        if value is None:
            following = words[position + 1] if position + 1 < len(words) else ""
            value = following if not following.startswith("-") else ""
        found.append((match[1].replace("_", "-"), value))
    return found


def _flat(given: Mapping[str, str]) -> dict[str, str]:
    """The options, and beside each that is a JSON object its parts as ``name.part``."""
    found = dict(given)
    for name, value in given.items():
        if value.startswith("{"):
            with contextlib.suppress(ValueError):
                parts = json.loads(value).items()
                found |= {f"{name}.{part}": _text(inner) for part, inner in parts}
    return found


def _refuse(settings: Settings, given: Mapping[str, str], profile: str) -> None:
    # The same thing said in another way is denied in that way too.
    same = {other: name for name, others in SAME.items() for other in others}
    named = {same.get(name, name): value for name, value in given.items()} | dict(given)
    denied = settings.denied(named)
    if denied:
        raise ContractError(
            f"the engine cannot run so with {profile}",
            problems=[Problem(f"--{rule.name}", rule.reason, found=v) for rule, v in denied],
            remedy="leave these options out: "
            + ", ".join(f"{name} is {value} then" for name, value in settings.set.items()),
        )


def _defaults(settings: Settings, given: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value
        for name, value in settings.set.items()
        if name not in given and not any(other in given for other in SAME.get(name, ()))
    }


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps({str(key): _text(inner) for key, inner in value.items()})
    # An enumeration's member goes by its name, as on the command line; torch.float16 by its last.
    name = getattr(value, "name", None)
    return str(name if isinstance(name, str) else value).removeprefix("torch.")
