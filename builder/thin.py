"""A thin wheel of upstream's: the recipe ``thin``, and what ``builder thin`` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from builder.audit.wheel import Wheel
from builder.build import Built, locked_inputs, locked_wheel
from builder.cache import InputCache
from builder.thin_plan import Wanted, WheelPlan, plan_wheel
from builder.thin_wheel import Thinned, write_thin
from kvreg.model.profile import Profile

Progress = Callable[[int], object]


def thin_wheel(
    path: Path,
    profile: Profile,
    wanted: Wanted,
    out: Path,
    *,
    filename: str | None = None,
    progress: Progress | None = None,
) -> Thinned:
    """Thin one wheel into the folder `out`. `filename` replaces the file's own name.

    Raises ContractError when a module would lose code that the GPUs use, VerificationError for a
    damaged wheel; nothing is left in `out` then.
    """
    with Wheel(path, filename) as wheel:
        plan: WheelPlan = plan_wheel(wheel, wanted, progress)
        return write_thin(wheel, plan, profile, out, progress)


def unpacked_size(path: Path) -> int:
    """The bytes that `thin_wheel` reports progress of: every member is read twice."""
    with Wheel(path) as wheel:
        return 2 * sum(info.file_size for info in wheel.members)


def build_thin(
    profile: Profile,
    folder: Path,
    *,
    cache: InputCache,
    out: Path,
    progress: Progress | None = None,
) -> Built:
    """Thin the one locked wheel of a profile. Raises NotFoundError when the cache lacks it."""
    started, clock = datetime.now(UTC), time.monotonic()
    item = locked_wheel(profile, folder, cache)
    thinned = thin_wheel(
        cache.path(item.sha256),
        profile,
        Wanted.of(profile),
        out,
        filename=item.filename,
        progress=progress,
    )
    built = Built(
        wheel=thinned.wheel,
        inputs=tuple(i for role in locked_inputs(profile, folder).values() for i in role),
        toolchain=None,
        jobs=None,
        started=started,
        wall_seconds=round(time.monotonic() - clock, 1),
    )
    return replace(built, thinning=thinned.facts)
