"""The wheel once more: from the published profile and its locks, in a workspace of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.bill import embed_bill
from builder.build import Built, adopt, locked_inputs
from builder.cache import InputCache, storage_errors
from builder.comparison import Comparison, compare_wheels
from builder.compile_cache import DEFAULT_LIMIT
from builder.fetch import bytes_missing
from builder.files import write_json
from builder.jobs import Jobs
from builder.layout import Checkout
from builder.product import RECORD, Plan, compile_plan, thin_plan
from builder.rebuild.changes import (
    Change,
    checkout_changes,
    image_changes,
    lay_out_locks,
    refuse,
)
from builder.rebuild.published import Published
from builder.record import make_record, wheel_facts
from kvreg.console import progress
from registry.store import Store

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.toolchain import ToolchainImage

Say = Callable[[str], None]


@dataclass(frozen=True)
class How:
    """How to rebuild. jobs: compiler processes at once. despite: go on although parts differ."""

    jobs: Jobs
    compile_cache: bool = False
    despite: bool = False
    offline: bool = False


@dataclass(frozen=True)
class Rebuilt:
    """What came out. changes: the parts that were not the published ones."""

    published: Published
    wheel: Path
    record: dict[str, Any]
    comparison: Comparison
    changes: tuple[Change, ...]
    how: How
    started: datetime
    finished: datetime

    @property
    def identical(self) -> bool:
        return self.comparison.verdict == "identical"


def rebuild(
    published: Published,
    store: Store,
    checkout: Checkout,
    cache: InputCache,
    out: Path,
    how: How,
    *,
    say: Say,
    engine: Engine | None = None,
) -> Rebuilt:
    """Build again what was published, and compare the two wheels.

    The rebuilt wheel and the build's log land in `out`, the published wheel in its subfolder
    ``published``. Raises ContractError when this checkout is not the one that it was built from
    (before anything is fetched or compiled), BuildError, and what the steps raise.
    """
    started = datetime.now(UTC)
    changes: list[Change] = []

    def settle(found: tuple[Change, ...]) -> None:
        if not how.despite:
            refuse(published, found)
        for change in found:
            say(f"despite: {change.what}: published {change.published}, here {change.here}")
        changes.extend(found)

    settle(checkout_changes(published, checkout))
    for what in published.unnamed:
        say(f"its provenance names no {what}: this checkout's is taken")
    theirs = out / "published" / str(published.wheel.title)
    with storage_errors("write", theirs):
        theirs.parent.mkdir(parents=True, exist_ok=True)
        store.fetch_blob(published.wheel, theirs)
    with tempfile.TemporaryDirectory(prefix="kvreg-locks-") as name:
        folder = Path(name)
        lay_out_locks(published, checkout, folder)
        plan = _plan(published, checkout, folder, cache, how.jobs)
        if plan.to_fetch_bytes and not how.offline:
            from builder.commands.fetch import fetch_profile

            say("fetching inputs")
            fetch_profile(plan.profile, folder, cache)
        built = _make(plan, out, how, say, engine, lambda i: settle(image_changes(published, i)))
        record = make_record(plan.profile, built)
        embed_bill(built.wheel, plan.profile, folder, record)
    # Without an audit and a key: it can be read, and not be published.
    record["wheel"] = wheel_facts(built.wheel)
    write_json(out / RECORD, record)
    with progress(None, "comparing") as bar:
        comparison = compare_wheels(theirs, built.wheel, bar.update)
    finished = datetime.now(UTC)
    return Rebuilt(
        published, built.wheel, record, comparison, tuple(changes), how, started, finished
    )


def _plan(
    published: Published, checkout: Checkout, folder: Path, cache: InputCache, jobs: Jobs
) -> Plan:
    inputs = tuple(i for role in locked_inputs(published.profile, folder).values() for i in role)
    return Plan(
        checkout,
        published.profile,
        folder,
        inputs,
        bytes_missing(inputs, cache),
        published.provenance.toolchain,
        jobs,
        cache,
    )


def _make(
    plan: Plan,
    out: Path,
    how: How,
    say: Say,
    engine: Engine | None,
    check_image: Callable[[ToolchainImage], object],
) -> Built:
    if plan.toolchain is not None:
        return compile_plan(
            plan,
            out,
            how.compile_cache,
            DEFAULT_LIMIT,
            say,
            engine=engine,
            check_image=check_image,
        )
    if plan.profile.build.recipe == "thin":
        return thin_plan(plan, out, say)
    return adopt(plan.profile, plan.folder, cache=plan.cache, out=out)
