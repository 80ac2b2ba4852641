"""From a profile to everything that is published for it: wheel, audit, SBOM and record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.bill import bill_of_materials, embed_bill, locked_torch
from builder.build import Built, adopt, build, judge_cuda, locked_inputs
from builder.cache import InputCache, file_sha256
from builder.compile_cache import DEFAULT_LIMIT, cache_of
from builder.console import BuildMonitor
from builder.fetch import bytes_missing
from builder.files import write_bytes, write_json
from builder.inputs import Input
from builder.jobs import Jobs, choose_jobs
from builder.key import BuildKey, build_key
from builder.layout import Checkout, find_checkout
from builder.recipes.model import recipe
from builder.record import (
    is_build_of,
    make_record,
    page,
    profile_facts,
    read_record,
    wheel_facts,
)
from kvreg.console import human_bytes, progress
from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.model.profile import Profile, load_profile

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.toolchain import ToolchainImage

Say = Callable[[str], None]

UNFINISHED = "unfinished"
"""Folder in a profile's build folder for what is being made."""

RECORD, SBOM, AUDIT, PAGE = "record.json", "sbom.cdx.json", "audit.json", "record.md"
PROVENANCE = "provenance.json"
DESCRIPTIONS = (RECORD, SBOM, AUDIT, PAGE, PROVENANCE)
"""What is written beside a wheel."""


_HOW = {
    "adopt": "taken from the package index as it is",
    "thin": "upstream's wheel with device code for the profile's GPUs alone",
}


@dataclass(frozen=True)
class Plan:
    """What a build would do, decided before anything starts."""

    checkout: Checkout
    profile: Profile
    folder: Path
    inputs: tuple[Input, ...]
    to_fetch_bytes: int
    toolchain: str | None
    jobs: Jobs
    cache: InputCache

    @property
    def key(self) -> BuildKey | None:
        """What decides the compile's bytes; None where nothing is compiled."""
        if self.toolchain is None:
            return None
        return build_key(self.profile, self.toolchain, self.checkout.dockerfiles)

    def to_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "digest": self.profile.digest,
            "recipe": self.profile.build.recipe,
            "runtime": f"{self.profile.runtime.package} {self.profile.runtime.version}",
            "inputs": len(self.inputs),
            "to_fetch_bytes": self.to_fetch_bytes,
            "toolchain": self.toolchain,
            "key": self.key.digest if self.key else None,
            "jobs": {"count": self.jobs.count, "reason": self.jobs.reason},
        }

    def text(self) -> str:
        how = (
            f"{self.toolchain}, {self.jobs.count} jobs: {self.jobs.reason}"
            if self.toolchain
            else _HOW[self.profile.build.recipe]
        )
        return (
            f"{self.profile.name}: {self.profile.runtime.package} {self.profile.runtime.version}, "
            f"recipe {self.profile.build.recipe}\n"
            f"  profile digest {self.profile.digest}\n"
            f"  {len(self.inputs)} locked inputs, {human_bytes(self.to_fetch_bytes)} to fetch\n"
            f"  {how}"
        )


@dataclass(frozen=True)
class Product:
    """A finished build in its folder."""

    profile: Profile
    folder: Path
    wheel: Path
    record: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "digest": self.profile.digest,
            "folder": str(self.folder),
            "wheel": str(self.wheel),
            "size": self.record["wheel"]["size"],
            "sha256": self.record["wheel"]["sha256"],
            "wall_seconds": self.record["cost"]["wall_seconds"],
            "audit": self.record["audit"]["ok"],
        }


def plan_product(
    profile_name: str, toolchain: str | None, jobs: int | None, cache: InputCache
) -> Plan:
    """Decide inputs, toolchain and jobs. Raises NotFoundError, ContractError, UsageError."""
    checkout = find_checkout()
    folder = checkout.profile(profile_name)
    profile = load_profile(folder)
    locks = locked_inputs(profile, folder)
    inputs = tuple(i for role in locks.values() for i in role)
    made = recipe(profile.build.recipe)
    made.parameters(profile, locks.get("source", ()))  # what it refuses, before anything is fetched
    chosen = None
    if made.script is not None:
        chosen = toolchain or profile.build.toolchains[0]
        if chosen not in profile.build.toolchains:
            raise UsageError(
                f"profile {profile.name} does not name toolchain {chosen}",
                expected=" or ".join(profile.build.toolchains),
                found=chosen,
            )
    return Plan(
        checkout,
        profile,
        folder,
        inputs,
        bytes_missing(inputs, cache),
        chosen,
        choose_jobs(jobs),
        cache,
    )


def replace_finished(fresh: Path, out: Path) -> None:
    """Let what was made take the place of the finished build."""
    for stale in (*out.glob("*.whl"), *(out / name for name in DESCRIPTIONS)):
        stale.unlink(missing_ok=True)
    for file in fresh.iterdir():
        file.replace(out / file.name)
    fresh.rmdir()


def make_product(
    plan: Plan,
    *,
    offline: bool,
    use_compile_cache: bool,
    say: Say,
    compile_cache_limit: str = DEFAULT_LIMIT,
) -> Product:
    """Run a plan: fetch, toolchain, compile, audit, SBOM, record.

    Raises ContractError when the audit fails (wheel, record and audit stay for inspection, but
    cannot be published), and what the steps raise.
    """
    from builder.commands.fetch import fetch_profile

    profile, out = plan.profile, plan.checkout.build_folder(plan.profile.name)
    if plan.to_fetch_bytes and not offline:
        say("fetching inputs")
        fetch_profile(profile, plan.folder, plan.cache)
    # An earlier finished build stays as it is until this one has its wheel.
    fresh = out / UNFINISHED
    shutil.rmtree(fresh, ignore_errors=True)
    if profile.build.recipe == "thin":
        built = thin_plan(plan, fresh, say)
    elif plan.toolchain is None:
        built = adopt(profile, plan.folder, cache=plan.cache, out=fresh)
    else:
        built = compile_plan(plan, fresh, use_compile_cache, compile_cache_limit, say)
    replace_finished(fresh, out)
    return describe(plan, replace(built, wheel=out / built.wheel.name), out, say)


def thin_plan(plan: Plan, out: Path, say: Say) -> Built:
    """Thin the wheel of a plan."""
    from builder.thin import build_thin

    say("thinning upstream's wheel, and comparing every module with its own")
    with progress(None, "thinning") as bar:
        return build_thin(plan.profile, plan.folder, cache=plan.cache, out=out, progress=bar.update)


def compile_plan(
    plan: Plan,
    out: Path,
    use_compile_cache: bool,
    compile_cache_limit: str,
    say: Say,
    *,
    engine: Engine | None = None,
    check_image: Callable[[ToolchainImage], object] = lambda image: None,
) -> Built:
    """Compile the wheel of a plan; `check_image` sees the toolchain first and may refuse it."""
    from builder.engine import connect
    from builder.toolchain import ensure_image, load_toolchain

    engine = engine or connect()
    chosen = load_toolchain(plan.toolchain, plan.checkout.dockerfiles)
    say(f"toolchain {chosen.name}")
    image = ensure_image(engine, chosen, plan.cache, say=say)
    judge_cuda(plan.profile, image)
    check_image(image)
    say(f"compiling in {image.image_digest[:19]} (nvcc {image.cuda_version}), no network")
    compile_cache = cache_of(plan.cache, image) if use_compile_cache else None
    monitor = BuildMonitor(say)
    try:
        return build(
            plan.profile,
            plan.folder,
            cache=plan.cache,
            engine=engine,
            toolchain=image,
            jobs=plan.jobs,
            out=out,
            compile_cache=compile_cache,
            compile_cache_limit=compile_cache_limit,
            on_line=monitor,
        )
    finally:
        monitor.close()


def describe(plan: Plan, built: Built, out: Path, say: Say) -> Product:
    """Write the record of a built wheel, then audit it and write SBOM and audit beside it.

    The record is on disk before the audit starts: an hour of compiling is not lost to a check.
    """
    record = make_record(plan.profile, built)
    if plan.key is not None:
        record["key"] = plan.key.to_dict()
    write_json(out / RECORD, record)
    return examine(plan.checkout, plan.profile, plan.folder, plan.cache, say)


def examine(
    checkout: Checkout, profile: Profile, folder: Path, cache: InputCache, say: Say
) -> Product:
    """Audit the finished build of a profile and describe it: ``audit.json``, SBOM, record, page.

    Raises ContractError when the audit fails; wheel, record and audit stay for inspection, and
    nothing can be published.
    """
    from builder.audit import audit_wheel

    product = _embedded(_recorded(checkout, profile), folder, say)
    # The same wheel may have been built before the profile's overlay or settings changed.
    record, out = {**product.record, "profile": profile_facts(profile)}, product.folder
    inputs = tuple(item for role in locked_inputs(profile, folder).values() for item in role)
    torch = locked_torch(inputs)
    say("auditing")
    with progress(None, "auditing") as bar:
        report = audit_wheel(
            product.wheel,
            profile,
            cache.path(torch.sha256) if torch else None,
            torch_filename=torch.filename if torch else None,
            cache=cache,
            progress=bar.update,
        )
    record = {**record, "audit": report.to_dict()}
    write_json(out / AUDIT, record["audit"])
    write_json(out / RECORD, record)
    if not report.ok:
        raise ContractError(
            f"the wheel of {profile.name} fails its audit; it cannot be published",
            found=report.text(),
            remedy=f"wheel and audit are in {out}; after a change of policy: "
            f"builder build --profile {profile.name} --examine",
        )
    write_bytes(out / SBOM, bill_of_materials(profile, folder, record, embedded=False))
    write_bytes(out / PAGE, page(record).encode())
    return Product(profile, out, product.wheel, record)


def _embedded(product: Product, folder: Path, say: Say) -> Product:
    """The product with an SBOM inside its wheel (PEP 770), if it was compiled or thinned here.

    A wheel that others built keeps its bytes, by which it is known.
    """
    profile, record = product.profile, product.record
    path = embed_bill(product.wheel, profile, folder, record)
    if path is None:
        return product
    say(f"{path} is in the wheel")
    # What was audited is no longer what is there.
    changed = {**record, "wheel": wheel_facts(product.wheel), "audit": None}
    write_json(product.folder / RECORD, changed)
    return replace(product, record=changed)


def read_product(checkout: Checkout, profile_name: str) -> Product:
    """The finished, audited build of a profile.

    Raises NotFoundError when there is none, ContractError when it is of another digest, its wheel
    changed since, its audit failed, or it was ended before it was described.
    """
    product = _recorded(checkout, load_profile(checkout.profile(profile_name)))
    if product.record["profile"]["digest"] != product.profile.digest:
        raise ContractError(
            f"the finished build of {product.profile.name} is described for another profile digest",
            expected=product.profile.digest,
            found=product.record["profile"]["digest"],
            remedy="its wheel is still the right one; nothing is compiled by: "
            f"builder build --profile {product.profile.name} --examine",
        )
    audit = product.record.get("audit") or {}
    if not (audit.get("ok") and audit.get("complete")):
        raise ContractError(
            f"the finished build of {product.profile.name} has not passed its whole audit",
            remedy=f"see {product.folder / AUDIT}, then: "
            f"builder build --profile {product.profile.name} --examine",
        )
    absent = [name for name in (SBOM, AUDIT, PAGE) if not (product.folder / name).is_file()]
    if absent:
        raise ContractError(
            f"the finished build of {product.profile.name} was ended before it was described",
            found="without " + ", ".join(absent),
            remedy="nothing is compiled by: "
            f"builder build --profile {product.profile.name} --examine",
        )
    return product


def _recorded(checkout: Checkout, profile: Profile) -> Product:
    out = checkout.build_folder(profile.name)
    again = f"run: builder build --profile {profile.name}"
    if not (out / RECORD).is_file():
        raise NotFoundError(
            f"there is no finished build of {profile.name}",
            expected=f"{RECORD} in {out}",
            remedy=again,
        )
    record = read_record(out / RECORD)
    if not is_build_of(record, profile):
        raise ContractError(
            f"the finished build of {profile.name} is of another profile digest",
            expected=f"{profile.digest} (of the build alone: {profile.build_digest})",
            found=record["profile"]["digest"],
            remedy=f"what is built changed since; {again}",
        )
    wheel = out / record["wheel"]["filename"]
    found = file_sha256(wheel) if wheel.is_file() else "no such file"
    if found != record["wheel"]["sha256"]:
        raise ContractError(
            f"{wheel.name} is not the wheel that its record describes",
            expected=record["wheel"]["sha256"],
            found=found,
            remedy=again,
        )
    return Product(profile, out, wheel, record)
