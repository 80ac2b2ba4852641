"""Sizes of the timed copies, and what their times mean."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from kvreg_probe.report import Transfer, TransferKind

MIB = 1 << 20
DEVICE_BYTES = 256 * MIB
LINK_BYTES = 64 * MIB
DEVICE_REPETITIONS = 20
LINK_REPETITIONS = 10

# Smaller copies fit in the caches or measure the launch.
LEAST_BYTES = 16 * MIB


def copy_bytes(wanted: int, free: int) -> int | None:
    """The size to copy with `free` bytes on the device, in whole MiB; None when that is too little.

    Two buffers of this size take at most half of what is free: others may be using the device.

    >>> copy_bytes(256 * MIB, 15_000 * MIB) // MIB, copy_bytes(256 * MIB, 100 * MIB) // MIB
    (256, 25)
    >>> copy_bytes(256 * MIB, 20 * MIB) is None
    True
    """
    size = min(wanted, free // 4) // MIB * MIB
    return size if size >= LEAST_BYTES else None


def measured(kind: TransferKind, bytes_: int, answer: Mapping[str, Any]) -> Transfer:
    """Make a transfer of the native module's times (milliseconds) for copies of `bytes_`."""
    times = answer["milliseconds"]
    counted = bytes_ * (2 if kind == "device" else 1)
    return Transfer(
        kind=kind,
        status="corrupt" if answer["differing_words"] else "measured",
        bytes=bytes_,
        repetitions=len(times),
        median_gb_per_s=_gb_per_s(counted, median(times)),
        best_gb_per_s=_gb_per_s(counted, min(times)),
        differing_words=answer["differing_words"],
    )


def skipped(kind: TransferKind, reason: str) -> Transfer:
    """A copy that was not made, and why."""
    return Transfer(kind=kind, status="skipped", reason=reason)


def _gb_per_s(bytes_: int, milliseconds: float) -> float | None:
    # An event pair's resolution is half a microsecond; a clock that did not move measures nothing.
    return round(bytes_ / milliseconds / 1e6, 2) if milliseconds > 0 else None
