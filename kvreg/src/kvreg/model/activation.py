"""What a profile says of running its runtime: settings, those that are denied, and the overlay.

In ``profile.toml``::

    [runtime.environment]                    # variables, set unless the user has them
    set = { VLLM_WORKER_MULTIPROC_METHOD = "spawn" }
    [[runtime.environment.deny]]
    name = "VLLM_NCCL_SO_PATH"
    values = ["*"]                           # any value
    reason = "would load another NCCL than torch's"

    [runtime.engine]                         # engine options, set unless the user gives them
    set = { dtype = "float16" }

    [overlay]
    extras = ["bench"]                       # of the runtime's wheel
    exclude_newer = "2026-05-23"             # resolve as of that day, 00:00 UTC
    exclude_newer_package = { xgrammar = "2026-09-10" }  # but these as of theirs
    [[overlay.omission]]
    name = "flashinfer-python"
    reason = "no kernels for this architecture"
    [[overlay.omission]]
    name = "apache-tvm-ffi"
    direct = true                            # only the wheel's own requirement of it
    reason = "the pin is FlashInfer's"
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kvreg.model.schema import TableReader

ANY = "*"
_VARIABLE = r"[A-Za-z_]\w*"
_OPTION = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_PACKAGE = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"


@dataclass(frozen=True)
class Denied:
    """Values of one setting that the runtime cannot run with; ``*`` is any value."""

    name: str
    values: tuple[str, ...]
    reason: str

    def matches(self, value: str) -> bool:
        """Whether this value is denied, in whatever case it is written."""
        return ANY in self.values or value.strip().upper() in map(str.upper, self.values)


@dataclass(frozen=True)
class Settings:
    """Settings of one kind: what is set where the user has none, and what is denied."""

    set: Mapping[str, str] = field(default_factory=dict, hash=False)
    deny: tuple[Denied, ...] = ()

    def denied(self, values: Mapping[str, str]) -> list[tuple[Denied, str]]:
        """The denials that `values` run into, each with the value."""
        return [
            (rule, values[rule.name])
            for rule in self.deny
            if rule.name in values and rule.matches(values[rule.name])
        ]

    def to_dict(self) -> dict[str, Any]:
        """The table of the profile, empty parts left out."""
        deny = [{**asdict(rule), "values": list(rule.values)} for rule in self.deny]
        return {**({"set": dict(self.set)} if self.set else {}), **({"deny": deny} if deny else {})}


@dataclass(frozen=True)
class Omitted:
    """A requirement of the runtime that its overlay leaves out on purpose.

    The package is left out, whoever needs it; if `direct`, only the wheel's own requirement is.
    """

    name: str
    reason: str
    direct: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The table of the profile, `direct` only where it is true."""
        tree: dict[str, Any] = {"name": self.name, "reason": self.reason}
        return tree | ({"direct": True} if self.direct else {})


@dataclass(frozen=True)
class OverlayPolicy:
    """What the overlay is resolved from.

    `exclude_newer` is a date in UTC, or ``""``; `exclude_newer_package` the dates of packages that
    have one of their own.
    """

    extras: tuple[str, ...] = ()
    exclude_newer: str = ""
    omissions: tuple[Omitted, ...] = ()
    exclude_newer_package: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The table of the profile."""
        return {
            "extras": list(self.extras),
            "exclude_newer": self.exclude_newer,
            "omission": [item.to_dict() for item in self.omissions],
            **(
                {"exclude_newer_package": dict(self.exclude_newer_package)}
                if self.exclude_newer_package
                else {}
            ),
        }


def read_environment(table: TableReader) -> Settings:
    """Read ``[runtime.environment]``, absent or not."""
    return _settings(table, _VARIABLE, "an environment variable's name")


def read_engine(table: TableReader) -> Settings:
    """Read ``[runtime.engine]``, absent or not."""
    return _settings(table, _OPTION, "an option without its dashes, such as attention-backend")


def read_overlay(table: TableReader) -> OverlayPolicy | None:
    """Read ``[overlay]``; None when the profile has none."""
    if not table.names():
        return None
    policy = OverlayPolicy(
        extras=table.texts("extras", _PACKAGE, "an extra of the wheel", minimum=0),
        exclude_newer=table.text("exclude_newer", rf"(?:{_DATE})?", "a date yyyy-mm-dd, or ''"),
        omissions=tuple(_omitted(item) for item in table.tables("omission")),
        exclude_newer_package=_dates(table),
    )
    table.finish()
    return policy


def _settings(table: TableReader, pattern: str, meaning: str) -> Settings:
    values = table.mapping("set", pattern, meaning)
    settings = Settings(
        set=values,
        deny=tuple(_denied(item, pattern, meaning) for item in table.tables("deny")),
    )
    # A profile must not set what it denies.
    for rule, value in settings.denied(values):
        table.report("set", f"{rule.name} is set to a value that is denied", found=value)
    table.finish()
    return settings


def _denied(table: TableReader, pattern: str, meaning: str) -> Denied:
    rule = Denied(
        name=table.text("name", pattern, meaning),
        values=table.texts("values", r".+", "a value, or '*'"),
        reason=table.text("reason"),
    )
    table.finish()
    return rule


def _omitted(table: TableReader) -> Omitted:
    omitted = Omitted(
        name=table.text("name", _PACKAGE, "a canonical distribution name"),
        reason=table.text("reason"),
        direct="direct" in table.names() and table.flag("direct"),
    )
    table.finish()
    return omitted


def _dates(table: TableReader) -> dict[str, str]:
    dates = table.mapping("exclude_newer_package", _PACKAGE, "a canonical distribution name")
    for name, value in dates.items():
        if re.fullmatch(_DATE, value) is None:
            table.report(f"exclude_newer_package.{name}", "no date", expected="yyyy-mm-dd")
    return dates
