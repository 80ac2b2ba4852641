"""What a release means for a profile, as a verdict with reasons that a person can check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.requirements import marker_environment
from builder.upstream.buildfiles import BuildFacts, same_version
from builder.upstream.policy import Policy, variant_of
from builder.upstream.release import ReleaseFiles, exact_pin
from kvreg.model.profile import Profile

Status = Literal["same", "changed", "recipe", "profile", "unsupported", "unknown"]
Verdict = Literal["current", "rebuild", "new-profile", "unsupported"]

VERDICTS: dict[Verdict, str] = {
    "current": "what the profile is made of",
    "rebuild": "fits the same host: a profile with new locks",
    "new-profile": "needs another host contract, so a new profile",
    "unsupported": "cannot run on this profile's hardware",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    status: ``same`` or ``changed`` fit the profile; ``recipe`` fits once the recipe has learnt
    it; ``profile`` needs another host contract; ``unsupported`` ends it; ``unknown`` could not be
    found out. `evidence` names file and line, or the package, where a person can look.
    """

    check: str
    status: Status
    what: str
    expected: str | None = None
    found: str | None = None
    evidence: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data, absent fields left out."""
        return {key: value for key, value in vars(self).items() if value is not None}

    def __str__(self) -> str:
        pair = f": {self.expected} -> {self.found}" if self.expected and self.found else ""
        where = f"  [{self.evidence}]" if self.evidence else ""
        return f"{self.check}: {self.what}{pair}{where}"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one release for one profile."""

    profile: str
    package: str
    version: str
    verdict: Verdict
    findings: tuple[Finding, ...]

    @property
    def tag(self) -> str:
        """The release's git tag."""
        return f"v{self.version}"

    @property
    def recipe_work(self) -> bool:
        """Whether the recipe must learn something before this release can be built."""
        return any(item.status == "recipe" for item in self.findings)

    def reasons(self) -> tuple[Finding, ...]:
        """The findings that are not ``same``, the deciding ones first."""
        order = ("unsupported", "profile", "recipe", "unknown", "changed")
        told = [item for item in self.findings if item.status != "same"]
        return tuple(sorted(told, key=lambda item: order.index(item.status)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "profile": self.profile,
            "package": self.package,
            "version": self.version,
            "tag": self.tag,
            "verdict": self.verdict,
            "recipe_work": self.recipe_work,
            "findings": [item.to_dict() for item in self.findings],
        }


@dataclass(frozen=True)
class Candidate:
    """Everything that is judged: a release, and the release that the profile is made of.

    builds, baseline_builds: what the build files come to, one for each nvcc of the profile's
    toolchains. index_cuda: CUDA of the index's own torch at the release's pin, None when the
    index has no such torch for the profile's Python. compiles: whether the recipe compiles; else
    upstream's own wheel is taken.
    """

    release: ReleaseFiles
    baseline: ReleaseFiles
    builds: tuple[BuildFacts, ...]
    baseline_builds: tuple[BuildFacts, ...]
    torch_pin: str | None
    index_cuda: str | None
    overlay: Finding
    compiles: bool = True


def judge(
    profile: Profile, candidate: Candidate, policy: Policy, externals: Iterable[str]
) -> Judgement:
    """Judge a release for a profile; `externals` are the variables that the recipe answers."""
    release = candidate.release.release
    findings = [
        *_yanked(candidate),
        _python(profile, candidate),
        *_torch(profile, candidate, policy),
        *_capabilities(profile, candidate),
        *(_externals(candidate, tuple(externals)) if candidate.compiles else ()),
        *_requirements(profile, candidate),
        candidate.overlay,
    ]
    statuses = {item.status for item in findings}
    verdict: Verdict = "rebuild"
    if "unsupported" in statuses:
        verdict = "unsupported"
    elif "profile" in statuses:
        verdict = "new-profile"
    elif release.version == candidate.baseline.release.version:
        verdict = "current"
    return Judgement(profile.name, release.package, release.version, verdict, tuple(findings))


def torch_pin(files: ReleaseFiles) -> str | None:
    """The torch version that a release pins."""
    for item in files.requirements:
        if canonicalize_name(item.name) == "torch" and (pin := exact_pin(item)):
            return pin
    return None


def _yanked(candidate: Candidate) -> list[Finding]:
    release = candidate.release.release
    if release.yanked is None:
        return []
    return [Finding("release", "unsupported", f"withdrawn from the index: {release.yanked}")]


def _python(profile: Profile, candidate: Candidate) -> Finding:
    host = profile.host.python.validated
    wanted: SpecifierSet = candidate.release.requires_python
    source = candidate.release.metadata_source
    if host not in wanted:
        return Finding(
            "python", "profile", "the host's Python is outside its range", str(wanted), host, source
        )
    minor = ".".join(host.split(".")[:2])
    stated = candidate.builds[0].pythons
    if stated is not None and minor not in stated.value.split(";"):
        return Finding(
            *("python", "profile", "its build does not take the host's Python", stated.value),
            *(minor, stated.place),
        )
    return Finding("python", "same", f"CPython {minor} is within {wanted}", evidence=source)


def _torch(profile: Profile, candidate: Candidate, policy: Policy) -> list[Finding]:
    host = profile.host.torch.validated
    public = Version(host).public
    pin, source = candidate.torch_pin, candidate.release.metadata_source
    if pin is None:
        return [Finding("torch", "unknown", "it pins no torch", evidence=source)]
    stated = candidate.builds[0].torch
    places = f"{source}; {stated.place}" if stated else source
    found = []
    if stated is not None and not same_version(stated.value, pin):
        found.append(
            Finding(
                *("torch", "unknown", "METADATA and build files name different versions", pin),
                *(stated.value, places),
            )
        )
    if same_version(pin, public):
        return [
            *found,
            Finding("torch", "same", f"pins {pin}, which the host has", None, None, places),
        ]
    found.append(Finding("torch", "profile", "another torch than the host's", public, pin, places))
    return [*found, *_cuda(profile, candidate, policy, pin)]


def _cuda(profile: Profile, candidate: Candidate, policy: Policy, pin: str) -> list[Finding]:
    """Which CUDA a host with the new torch would have, and what that asks of driver and GPU."""
    ours = variant_of(profile.host.torch_cuda.validated)
    index = candidate.index_cuda
    if index is None:
        what = f"the index has no torch {pin} for the host's Python"
        return [Finding("cuda", "unsupported", what, f"a wheel of torch {pin}", "none")]
    theirs = variant_of(index)
    if theirs == ours:
        return [Finding("cuda", "same", f"the index's torch {pin} is for {ours}")]
    limit = policy.last_torch(ours)
    if policy.makes(ours, pin) or limit is None:
        what = f"torch {pin} is made for {ours} too, but the index has it for {theirs} alone"
        found = [Finding("cuda", "profile", what, ours, theirs, f"torch {pin} in the index")]
    else:
        what = f"torch {pin} has no {ours} wheels (the last was {limit.last})"
        where = f"torch {pin} in the index; {limit.source}"
        found = [Finding("cuda", "profile", what, ours, theirs, where)]
    major = policy.cuda_major(index)
    if major is None:
        what = f"nothing is known of CUDA {index}: add it to the policy"
        return [*found, Finding("cuda", "unknown", what)]
    floor = Version(major.oldest_capability)
    for capability in profile.build.compute_capabilities:
        if Version(capability.rstrip("af")) < floor:
            what = f"CUDA {major.major} does not support compute capability {capability}"
            found.append(
                Finding("cuda", "unsupported", what, f">={floor}", capability, major.source)
            )
    driver = profile.host.driver.validated
    what = f"CUDA {major.major} needs driver {major.driver}; the validated host has {driver}"
    enough = Version(driver) >= Version(major.driver)
    found.append(
        Finding("driver", "changed" if enough else "profile", what, None, None, major.source)
    )
    return found


def _capabilities(profile: Profile, candidate: Candidate) -> list[Finding]:
    found = []
    if not candidate.compiles:
        what = "which ones upstream's own wheel has is read from it by the audit"
        return [Finding("architectures", "unknown", what)]
    for build, old in zip(candidate.builds, candidate.baseline_builds, strict=True):
        nvcc = f"nvcc {build.nvcc}"
        if build.supported is None:
            what = f"its build files do not say what {nvcc} builds"
            found.append(Finding("architectures", "unknown", what))
            continue
        place = build.supported.place
        missing = [
            c for c in profile.build.compute_capabilities if not build.supports(c.rstrip("af"))
        ]
        if missing:
            what = f"with {nvcc} it does not build {', '.join(missing)}"
            found.append(
                Finding("architectures", "unsupported", what, None, build.supported.value, place)
            )
            continue
        listed = ", ".join(profile.build.compute_capabilities)
        lost = sorted(set(old.groups) - set(build.groups))
        gained = sorted(set(build.groups) - set(old.groups))
        if lost or gained:
            parts = [f"no longer {', '.join(lost)}"] * bool(lost)
            parts += [f"new {', '.join(gained)}"] * bool(gained)
            what = f"with {nvcc} kernels for {listed} change: {'; '.join(parts)}"
            found.append(Finding("architectures", "changed", what, None, None, place))
            continue
        groups = len(build.groups)
        what = f"with {nvcc} it builds {listed}, the same {groups} kernel groups"
        found.append(Finding("architectures", "same", what, None, None, place))
    return found


def _externals(candidate: Candidate, answered: tuple[str, ...]) -> list[Finding]:
    old = {item.name: item for item in candidate.baseline_builds[0].externals}
    new = {item.name: item for item in candidate.builds[0].externals}
    found = []
    for name, item in sorted(new.items()):
        known = any(variable in answered for variable in item.variables)
        if not known:
            how = f"set {item.variables[0]}" if item.variables else "patch its build file"
            what = f"{name} would be cloned: the recipe must bring it ({how})"
            found.append(Finding("externals", "recipe", what, None, item.revision, item.place))
        elif name not in old:
            found.append(
                Finding("externals", "changed", f"{name} is new", "", item.revision, item.place)
            )
        elif (old[name].revision, old[name].repository) != (item.revision, item.repository):
            moved = old[name].repository != item.repository
            what = f"{name} comes from {item.repository}" if moved else f"{name} moved"
            found.append(
                Finding("externals", "changed", what, old[name].revision, item.revision, item.place)
            )
    for name in sorted(set(old) - set(new)):
        found.append(Finding("externals", "changed", f"{name} is gone"))
    return found or [Finding("externals", "same", f"all {len(new)} at the same revisions")]


def _requirements(profile: Profile, candidate: Candidate) -> list[Finding]:
    old = host_requirements(profile, candidate.baseline)
    new = host_requirements(profile, candidate.release)
    source = candidate.release.metadata_source
    lines = []
    for name in sorted(set(old) | set(new)):
        if old.get(name) == new.get(name):
            continue
        if name not in old:
            lines.append(f"+{name}{new[name]}")
        elif name not in new:
            lines.append(f"-{name}{old[name]}")
        else:
            lines.append(f"{name}{old[name] or ' (any)'} -> {new[name] or '(any)'}")
    if not lines:
        return [Finding("requirements", "same", f"all {len(new)} unchanged", evidence=source)]
    return [Finding("requirements", "changed", "; ".join(lines), evidence=source)]


def host_requirements(profile: Profile, files: ReleaseFiles) -> dict[str, str]:
    """What a release requires on the profile's host with its extras: name -> specifier."""
    environment = marker_environment(profile)
    extras = ["", *(profile.overlay.extras if profile.overlay else ())]
    omitted = {item.name for item in profile.overlay.omissions} if profile.overlay else set()
    found: dict[str, set[str]] = {}
    for item in files.requirements:
        marker = item.marker
        holds = marker is None or any(marker.evaluate({**environment, "extra": e}) for e in extras)
        name = canonicalize_name(item.name)
        if holds and name not in omitted:
            found.setdefault(name, set()).add(str(item.specifier))
    return {name: ",".join(sorted(filter(None, specs))) for name, specs in found.items()}
