"""From a profile to everything that is published for it: wheel, audit, SBOM and record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.console import human_bytes
from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.model.profile import Profile, load_profile

from builder.build import Built, adopt, build, judge_cuda, locked_inputs
from builder.cache import InputCache
from builder.console import BuildMonitor
from builder.fetch import bytes_missing
from builder.inputs import Input
from builder.jobs import Jobs, choose_jobs
from builder.layout import Checkout, find_checkout
from builder.record import make_record, shared_objects, write_record

Say = Callable[[str], None]

RECORD, SBOM, AUDIT, PAGE = "record.json", "sbom.cdx.json", "audit.json", "record.md"


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "digest": self.profile.digest,
            "recipe": self.profile.build.recipe,
            "runtime": f"{self.profile.runtime.package} {self.profile.runtime.version}",
            "inputs": len(self.inputs),
            "to_fetch_bytes": self.to_fetch_bytes,
            "toolchain": self.toolchain,
            "jobs": {"count": self.jobs.count, "reason": self.jobs.reason},
        }

    def text(self) -> str:
        how = (
            f"{self.toolchain}, {self.jobs.count} jobs: {self.jobs.reason}"
            if self.toolchain
            else "taken from the package index as it is"
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
    inputs = tuple(i for role in locked_inputs(profile, folder).values() for i in role)
    chosen = None
    if profile.build.recipe != "adopt":
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


def make_product(plan: Plan, *, offline: bool, use_compile_cache: bool, say: Say) -> Product:
    """Run a plan: fetch, toolchain, compile, audit, SBOM, record.

    Raises ContractError when the audit fails (the wheel and the audit stay for inspection, the
    record is not written, so that nothing can be published), and what the steps raise.
    """
    from builder.commands.fetch import fetch_profile

    profile, out = plan.profile, plan.checkout.build_folder(plan.profile.name)
    if plan.to_fetch_bytes and not offline:
        say("fetching inputs")
        fetch_profile(profile, plan.folder, plan.cache)
    for stale in (RECORD, SBOM, AUDIT, PAGE):
        (out / stale).unlink(missing_ok=True)
    for stale_wheel in out.glob("*.whl"):
        stale_wheel.unlink()
    if plan.toolchain is None:
        built = adopt(profile, plan.folder, cache=plan.cache, out=out)
    else:
        built = _compile(plan, out, use_compile_cache, say)
    return describe(plan, built, out, say)


def _compile(plan: Plan, out: Path, use_compile_cache: bool, say: Say) -> Built:
    from builder.engine import connect
    from builder.toolchain import ensure_image, load_toolchain

    engine = connect()
    chosen = load_toolchain(plan.checkout.dockerfiles / plan.toolchain)
    say(f"toolchain {chosen.name}")
    image = ensure_image(engine, chosen, plan.cache)
    judge_cuda(plan.profile, image)
    say(f"compiling in {image.image_digest[:19]} (nvcc {image.cuda_version}), no network")
    compile_cache = None
    if use_compile_cache:
        compile_cache = plan.cache.root / "ccache" / image.image_digest.removeprefix("sha256:")[:16]
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
            on_line=monitor,
        )
    finally:
        monitor.close()


def describe(plan: Plan, built: Built, out: Path, say: Say) -> Product:
    """Audit a built wheel and write audit, SBOM and record beside it."""
    from builder.audit import audit_wheel
    from builder.sbom import WheelFacts, build_sbom

    say("auditing")
    torch = next((i for i in built.inputs if (i.name, i.kind) == ("torch", "wheel")), None)
    torch_wheel = plan.cache.path(torch.sha256) if torch else None
    report = audit_wheel(built.wheel, plan.profile, torch_wheel)
    (out / AUDIT).write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    if not report.ok:
        raise ContractError(
            f"the wheel of {plan.profile.name} fails its audit; it cannot be published",
            found=report.text(),
            remedy=f"the wheel and audit.json are in {out}",
        )
    record = make_record(plan.profile, built, report.to_dict())
    facts = record["wheel"]
    sbom = build_sbom(
        profile=plan.profile,
        wheel=WheelFacts(
            facts["filename"],
            facts["sha256"],
            facts["size"],
            tuple((m["path"], m["sha256"]) for m in shared_objects(built.wheel)),
        ),
        inputs=built.inputs,
        toolchain=built.toolchain,
        torch=torch,
        omissions=plan.profile.build.omissions,
    )
    (out / SBOM).write_bytes(sbom)
    write_record(out / RECORD, record)
    return Product(plan.profile, out, built.wheel, record)


def read_product(checkout: Checkout, profile_name: str) -> Product:
    """The finished build of a profile.

    Raises NotFoundError when there is none, ContractError when it is of another digest.
    """
    folder = checkout.profile(profile_name)
    profile = load_profile(folder)
    out = checkout.build_folder(profile.name)
    if not (out / RECORD).is_file():
        raise NotFoundError(
            f"there is no finished build of {profile.name}",
            expected=f"{RECORD} in {out}",
            remedy=f"run: builder build --profile {profile.name}",
        )
    record = json.loads((out / RECORD).read_text("utf-8"))
    if record["profile"]["digest"] != profile.digest:
        raise ContractError(
            f"the finished build of {profile.name} is of another profile digest",
            expected=profile.digest,
            found=record["profile"]["digest"],
            remedy=f"the profile changed since; run: builder build --profile {profile.name}",
        )
    return Product(profile, out, out / record["wheel"]["filename"], record)
