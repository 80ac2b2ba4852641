"""What a CI runner does for one profile, as one call: it starts empty and leaves all there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import compile_cache_artifact
from builder.answer import find_product
from builder.cache import InputCache
from builder.compile_cache import DEFAULT_LIMIT, CompileCache, cache_of
from builder.product import Plan, Product, make_product, plan_product
from kvreg.errors import KvregError, NotFoundError
from registry.store import Store

if TYPE_CHECKING:
    from kvreg.publickey import PublicKey
    from registry.privatekey import PrivateKey

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a profile. `answered`: nothing was compiled, because it was there.

    cache: of the compile cache, what was restored and saved. seconds: wall time.
    """

    profile: str
    answered: bool
    published: dict[str, Any]
    cache: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return dict(vars(self))


def build_and_publish(
    profile_name: str,
    store: Store,
    cache: InputCache,
    *,
    toolchain: str | None = None,
    jobs: int | None = None,
    limit: str = DEFAULT_LIMIT,
    key: PrivateKey | None = None,
    keys: Sequence[PublicKey] = (),
    builder_id: str | None = None,
    say: Say,
) -> Outcome:
    """Take or build, audit, and publish a profile; the compile cache is restored and saved.

    The cache is saved when the build fails or is stopped, too: the next runner goes on from it.
    What the store has is taken only if one of `keys` signed it, where there are any. Raises what
    the steps raise.
    """
    clock = time.monotonic()
    plan = plan_product(profile_name, toolchain, jobs, cache)
    say(plan.text())
    store.prepare()  # whoever may not write there hears of it before the build
    product = find_product(plan, store, keys=keys, say=say)
    answered = product is not None
    moved: dict[str, Any] = {}
    if product is None:
        product = _build(plan, store, limit, keys, moved, say)
    published = _publish(plan, product, store, cache, key, builder_id)
    return Outcome(
        plan.profile.name, answered, published, moved, round(time.monotonic() - clock, 1)
    )


def _build(
    plan: Plan,
    store: Store,
    limit: str,
    keys: Sequence[PublicKey],
    moved: dict[str, Any],
    say: Say,
) -> Product:
    compiled = _compile_cache(plan, say)
    if compiled is None:
        return make_product(plan, offline=False, use_compile_cache=False, say=say)
    try:
        restored = compile_cache_artifact.pull(compiled, store, keys=keys)
        moved["restored"] = restored.to_dict()
        say(f"compile cache: {restored.moved_entries} entries restored")
    except NotFoundError as error:
        say(f"compile cache: {error.what}")
    try:
        return make_product(
            plan, offline=False, use_compile_cache=True, compile_cache_limit=limit, say=say
        )
    finally:
        # A cache that cannot be saved costs the next build time, and this one nothing.
        with suppress(NotFoundError):
            try:
                moved["saved"] = compile_cache_artifact.push(compiled, store).to_dict()
                say(f"compile cache: {moved['saved']['entries']} entries saved")
            except KvregError as error:
                say(f"compile cache: not saved: {error}")


def _compile_cache(plan: Plan, say: Say) -> CompileCache | None:
    if plan.toolchain is None:
        return None
    from builder.engine import connect
    from builder.toolchain import ensure_image, load_toolchain

    with connect() as engine:
        chosen = load_toolchain(plan.toolchain, plan.checkout.dockerfiles)
        return cache_of(plan.cache, ensure_image(engine, chosen, plan.cache, say=say))


def _publish(
    plan: Plan,
    product: Product,
    store: Store,
    cache: InputCache,
    key: PrivateKey | None,
    builder_id: str | None,
) -> dict[str, Any]:
    from builder.commands.publish import publish_product
    from builder.overlay_lock import overlay_layers

    overlay = overlay_layers(product.profile, plan.folder, cache)
    return publish_product(product, store, overlay=overlay, key=key, builder_id=builder_id)


def github_output(path: Path, values: dict[str, str]) -> None:
    """Append ``name=value`` lines to the file that GitHub names in ``$GITHUB_OUTPUT``."""
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(f"{name}={value}\n" for name, value in values.items())
