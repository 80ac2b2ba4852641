"""The audit's policy as data: read from ``policy.toml`` beside this module."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

_PATH = r"""[^\x00-\x20\x7f-\xff"'`<>=|:;,()\[\]{}\\]"""
"""What a path goes on with: printable ASCII that does not end it in code or prose."""


@dataclass(frozen=True)
class Provider:
    """A library that the driver or a requirement of torch brings, and the names it exports."""

    soname: str
    distribution: str
    symbols: re.Pattern[str]
    cuda: int | None = None
    toolkit_extra: str | None = None
    """The extra of ``cuda-toolkit`` that brings it, where torch requires that."""

    @property
    def is_driver(self) -> bool:
        """Whether it comes with the GPU's driver rather than with a package."""
        return self.distribution == "driver"


@dataclass(frozen=True)
class SecretPattern:
    """A kind of secret: `starts` are literals that are looked for before `pattern` is tried."""

    name: str
    starts: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


@dataclass(frozen=True)
class Policy:
    """Everything that is the same for all profiles."""

    host_libraries: frozenset[str]
    torch_libraries: frozenset[str]
    providers: tuple[Provider, ...]
    forbidden_paths: tuple[str, ...]
    forbidden_path: re.Pattern[bytes]
    allowed_path: re.Pattern[bytes]
    secret_member: re.Pattern[str]
    secret_contents: tuple[SecretPattern, ...]

    def provider(self, soname: str, cuda: int) -> Provider | None:
        """Who brings a library to a host whose torch is built for this major version of CUDA."""
        for provider in self.providers:
            if provider.soname == soname and provider.cuda in (None, cuda):
                return provider
        return None


def parse_policy(text: str) -> Policy:
    """Read a policy. Raises ValueError or KeyError: the file is part of this package."""
    data = tomllib.loads(text)
    forbidden = tuple(data["paths"]["forbidden"])
    if not all(path.startswith("/") for path in forbidden):
        raise ValueError("paths.forbidden: every path must be absolute")
    # One leading literal keeps the search at memory speed, whatever the number of paths.
    tails = "|".join(re.escape(path[1:]) for path in forbidden)
    return Policy(
        host_libraries=frozenset(data["libraries"]["host"]),
        torch_libraries=frozenset(data["libraries"]["torch"]),
        providers=tuple(
            Provider(
                soname=item["soname"],
                distribution=item["distribution"],
                symbols=re.compile(item["symbols"]),
                cuda=item.get("cuda"),
                toolkit_extra=item.get("toolkit_extra"),
            )
            for item in data["provider"]
        ),
        forbidden_paths=forbidden,
        forbidden_path=re.compile(rf"/(?:{tails})[\w.]{_PATH}{{0,240}}".encode()),
        allowed_path=re.compile("|".join(data["paths"]["allowed"]).encode()),
        secret_member=re.compile("|".join(data["secrets"]["members"])),
        secret_contents=tuple(
            SecretPattern(
                name=item["name"],
                starts=tuple(start.encode() for start in item["starts"]),
                pattern=re.compile(item["pattern"].encode()),
            )
            for item in data["secrets"]["content"]
        ),
    )


@cache
def default_policy() -> Policy:
    """The policy that ships with this package."""
    text = resources.files("builder.audit").joinpath("policy.toml").read_text("utf-8")
    return parse_policy(text)
