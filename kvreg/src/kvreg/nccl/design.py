"""What a communication measurement consists of: frozen data with a digest.

>>> Design().observations
5000
>>> [human_size(size) for size in Design().payloads][:3]
['1 KiB', '4 KiB', '16 KiB']
"""

import random
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from kvreg.errors import UsageError
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes

SCHEMA = 1

BACKENDS = ("nccl", "gloo")

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

DEFAULT_PAYLOADS = tuple(1024 * 4**step for step in range(10))
"""Ten payloads, 1 KiB to 256 MiB, each four times the one before."""

CAPTURED_SMALL, CAPTURED_LARGE, LARGE = 16, 4, 8 * 2**20
"""All-reduces in one captured graph below `LARGE` bytes and from there on: enough of them that
starting the graph (a few microseconds) does not show, few enough that large ones end soon."""

TIMERS = {
    "host": "one call at a time by the host's clock, device synchronised after each: includes"
    " launch and synchronisation, which hide everything else in small payloads",
    "event": "device events between calls that are queued back to back: what a stream of calls"
    " costs; for small payloads the rate at which the host launches them",
    "graph": "device events around replays of a captured graph of back-to-back all-reduces, divided"
    " by their number: no launches between them, as in an engine that runs captured graphs",
}
"""Every way of timing, by name, and what it measures."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)?", re.IGNORECASE)
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Design:
    """One measurement. `payloads` are bytes per rank; `repetitions` are fresh sets of processes;
    `collectives` are timed in each repetition for every payload and timer, `warmup` before them.

    The defaults are ten payloads × 5 repetitions × 100 collectives = 5,000 observations a timer.
    Raises `UsageError` for what cannot be measured.
    """

    backend: str = "nccl"
    ranks: int = 2
    payloads: tuple[int, ...] = DEFAULT_PAYLOADS
    repetitions: int = 5
    collectives: int = 100
    warmup: int = 10
    dtype: str = "float32"
    peer: bool = True
    seed: int = 0
    operation: str = field(default="all_reduce", init=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise UsageError("unknown backend", expected=" or ".join(BACKENDS), found=self.backend)
        if self.dtype not in ELEMENT_BYTES:
            expected = " or ".join(ELEMENT_BYTES)
            raise UsageError("unknown element type", expected=expected, found=self.dtype)
        limits = {"ranks": 2, "repetitions": 1, "collectives": 1, "warmup": 1}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UsageError(
                    f"too few {name}", expected=f"{least} or more", found=str(getattr(self, name))
                )
        size = ELEMENT_BYTES[self.dtype]
        wrong = [payload for payload in self.payloads if payload < size or payload % size]
        if wrong or not self.payloads or len(set(self.payloads)) != len(self.payloads):
            raise UsageError(
                "these payloads cannot be measured",
                expected=f"different multiples of {size} bytes ({self.dtype})",
                found=", ".join(map(str, wrong or self.payloads)) or "none",
            )

    @property
    def observations(self) -> int:
        """How many observations each timer gives."""
        return len(self.payloads) * self.repetitions * self.collectives

    @property
    def digest(self) -> str:
        """``sha256:`` over the canonical JSON of `to_dict`."""
        return sha256_bytes(canonical_json(self.to_dict()))

    def order(self, repetition: int) -> list[int]:
        """The payloads in the order of one repetition: shuffled, so that drift hits all sizes."""
        payloads = list(self.payloads)
        random.Random(f"{self.seed}/{repetition}").shuffle(payloads)
        return payloads

    def to_dict(self) -> dict[str, Any]:
        """The design as JSON-ready data."""
        return {**asdict(self), "payloads": list(self.payloads)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Design":
        """The design that `to_dict` wrote."""
        fields = {key: value for key, value in data.items() if key != "operation"}
        return cls(**{**fields, "payloads": tuple(data["payloads"])})


def captured(payload: int) -> int:
    """How many all-reduces of this payload one captured graph holds."""
    return CAPTURED_SMALL if payload < LARGE else CAPTURED_LARGE


def parse_payloads(text: str) -> tuple[int, ...]:
    """Sizes separated by commas, such as ``1KiB,64KiB,16MiB`` or plain bytes.

    >>> parse_payloads("512,4KiB,1.5MiB")
    (512, 4096, 1572864)

    Raises `UsageError` for anything else.
    """
    sizes = []
    for word in text.split(","):
        match = _SIZE.fullmatch(word.strip())
        size = float(match[1]) * _UNITS[(match[2] or "B").lower()] if match else 0.0
        if size < 1 or size != int(size):
            raise UsageError(
                "not a payload size", expected="such as 1KiB, 64MiB or 4096", found=repr(word)
            )
        sizes.append(int(size))
    return tuple(sizes)


def human_size(size: int) -> str:
    """A payload for people: whole units where they divide it.

    >>> human_size(65536), human_size(1000)
    ('64 KiB', '1000 B')
    """
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size % bytes_ == 0:
            return f"{size // bytes_} {unit}"
    return f"{size} B"
