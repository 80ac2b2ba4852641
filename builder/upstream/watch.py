"""Check: every new release against every profile that follows its package, in parallel."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.version import Version

from builder.build import locked_inputs
from builder.cache import InputCache
from builder.freeze import FILE as FREEZE_FILE
from builder.freeze import read_freeze
from builder.index import PackageIndex
from builder.layout import Checkout
from builder.recipes.model import recipe
from builder.toolchain_definition import load_toolchain
from builder.upstream.buildfiles import BuildFacts, read_build
from builder.upstream.judgement import VERDICTS, Candidate, Finding, Judgement, judge, torch_pin
from builder.upstream.locked import Locked, changed_files, moved_tags, refuse, remote_tags
from builder.upstream.once import Once
from builder.upstream.policy import Follows, Policy, load_policy
from builder.upstream.release import (
    Release,
    ReleaseFiles,
    find_release,
    parse_tag,
    read_release,
    releases,
    torch_cuda,
)
from builder.upstream.resolution import OverlayQuestions
from kvreg.errors import NotFoundError, UsageError
from kvreg.model.profile import Profile, load_profile

READERS, RESOLVERS = 8, 4
"""Threads: the index's answers are waited for; a resolution takes about a second of computing."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Follower:
    """A profile that follows a package, in its folder."""

    profile: Profile
    folder: Path
    follows: Follows

    @property
    def version(self) -> str:
        """The release that it is made of."""
        runtime = self.profile.runtime
        return Version(runtime.upstream_tag.removeprefix("v") or runtime.version).public

    @property
    def minor(self) -> tuple[int, int]:
        """The host's Python."""
        major, minor = self.profile.host.python.validated.split(".")[:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Report:
    """The judgements, by profile and then by version, oldest first."""

    checked: datetime
    judgements: tuple[Judgement, ...]
    tags_compared: bool
    seconds: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "schema": 1,
            "checked": self.checked.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "tags_compared": self.tags_compared,
            "judgements": [item.to_dict() for item in self.judgements],
        }


def followers(checkout: Checkout, policy: Policy, names: Iterable[str] = ()) -> list[Follower]:
    """The profiles of these names that follow a package; all there are without names.

    Raises NotFoundError, UsageError for a named profile that follows none.
    """
    asked = list(names)
    folders = [checkout.profile(name) for name in asked] or sorted(
        path.parent for path in checkout.profiles.glob("*/profile.toml")
    )
    found = []
    for folder in folders:
        profile = load_profile(folder, allow_missing_locks=True)
        follows = policy.recipes.get(profile.build.recipe)
        if follows is not None and follows.package == profile.runtime.package:
            found.append(Follower(profile, folder, follows))
        elif asked:
            raise UsageError(
                f"profile {profile.name} follows no upstream package",
                expected="recipe " + " or ".join(policy.recipes),
                found=f"recipe {profile.build.recipe} of {profile.runtime.package}",
            )
    return found


def check(
    checkout: Checkout,
    following: list[Follower],
    index: PackageIndex,
    cache: InputCache,
    *,
    since: str | None = None,
    only: str | None = None,
    git: str | None = None,
    say: Say = lambda text: None,
) -> Report:
    """Judge the releases from `since` on (a tag; default: the profile's own), or the one `only`.

    git: a remote whose tags are compared with the locked commits. Raises VerificationError when
    bytes or tags changed since they were locked, NotFoundError, NetworkError, UsageError.
    """
    started = datetime.now(UTC)
    policy = load_policy()
    refuse_changed(following, index, git, say)
    pairs: list[tuple[Follower, Release]] = []
    for follower in following:
        package = follower.follows.package
        if only is not None:
            wanted = (find_release(package, index, only),)
        else:
            wanted = releases(package, index, parse_tag(since or follower.version))
        say(f"{follower.profile.name}: judging {len(wanted)} releases of {package}")
        pairs += [(follower, release) for release in wanted]
    with (
        tempfile.TemporaryDirectory() as scratch,
        # Reading waits for the index and resolving for the processor: neither holds the other up.
        ThreadPoolExecutor(RESOLVERS, "resolve") as resolvers,
        ThreadPoolExecutor(READERS, "read") as readers,
    ):
        questions = OverlayQuestions(index, Path(scratch))
        judging = _Judging(policy, index, cache, questions, checkout)

        def read(follower: Follower, release: Release) -> Callable[[], Judgement]:
            judging.prefetch(follower, release)
            return resolvers.submit(judging.judged, follower, release).result

        jobs = [readers.submit(read, *pair) for pair in pairs]
        judgements = tuple(job.result()() for job in jobs)
    seconds = (datetime.now(UTC) - started).total_seconds()
    return Report(started, judgements, git is not None, seconds)


def refuse_changed(
    following: list[Follower], index: PackageIndex, git: str | None, say: Say
) -> None:
    """Raises VerificationError for locked files, and tags of the remote `git`, that changed."""
    by_package: dict[str, list[Locked]] = defaultdict(list)
    for item in following:
        inputs: tuple[Any, ...] = ()
        if all(lock.sha256 for lock in item.profile.locks.values()):
            roles = locked_inputs(item.profile, item.folder).values()
            inputs = tuple(one for role in roles for one in role)
        by_package[item.follows.package].append(Locked(item.profile, inputs))
    problems = []
    for package, locked in by_package.items():
        problems += changed_files(locked, index, package)
        if git is not None:
            say(f"reading the tags of {package}")
            problems += moved_tags(locked, remote_tags(git))
    refuse(problems)


class _Judging:
    """Reads and goes through each release once, for however many profiles ask, in many threads."""

    def __init__(
        self,
        policy: Policy,
        index: PackageIndex,
        cache: InputCache,
        questions: OverlayQuestions,
        checkout: Checkout,
    ) -> None:
        self._policy, self._index, self._questions = policy, index, questions
        self._checkout = checkout
        self._cache = cache
        self._files: Once[ReleaseFiles] = Once()
        self._cuda: Once[str | None] = Once()
        self._built: Once[BuildFacts] = Once()

    def files(self, release: Release) -> ReleaseFiles:
        """What is read of a release."""
        watched = self._policy.packages[release.package]
        return self._files(
            release, lambda: read_release(release, watched, self._index, self._cache)
        )

    def cuda(self, version: str, python: tuple[int, int]) -> str | None:
        """CUDA of the index's torch."""
        return self._cuda((version, python), lambda: torch_cuda(version, python, self._index))

    def prefetch(self, follower: Follower, release: Release) -> None:
        """Read what `judged` needs from the index."""
        self.files(find_release(release.package, self._index, follower.version))
        if release.sdist is not None and (pin := torch_pin(self.files(release))):
            self.cuda(pin, follower.minor)

    def judged(self, follower: Follower, release: Release) -> Judgement:
        """The judgement of one release for one profile."""
        profile = follower.profile
        if release.sdist is None:
            return self._without_sources(follower, release)
        baseline = self.files(find_release(release.package, self._index, follower.version))
        found = self.files(release)
        pin = torch_pin(found)
        candidate = Candidate(
            release=found,
            baseline=baseline,
            builds=self._builds(follower, found),
            baseline_builds=self._builds(follower, baseline),
            torch_pin=pin,
            index_cuda=self.cuda(pin, follower.minor) if pin else None,
            overlay=self._overlay(follower, found),
            compiles=follower.follows.compiles,
        )
        return judge(profile, candidate, self._policy, recipe(profile.build.recipe).externals)

    def _without_sources(self, follower: Follower, release: Release) -> Judgement:
        finding = Finding("release", "unsupported", "the index has no sdist of it")
        name = follower.profile.name
        return Judgement(name, release.package, release.version, "unsupported", (finding,))

    def _builds(self, follower: Follower, found: ReleaseFiles) -> tuple[BuildFacts, ...]:
        profile = follower.profile
        python = ".".join(map(str, follower.minor))
        nvccs = self.nvccs(profile.build.toolchains) or (profile.build.cuda.validated,)
        capabilities = profile.build.compute_capabilities
        release = found.release
        return tuple(
            self._built(
                (release, nvcc, capabilities, python),
                lambda nvcc=nvcc: read_build(found.files, nvcc, capabilities, python),
            )
            for nvcc in nvccs
        )

    def nvccs(self, toolchains: tuple[str, ...]) -> tuple[str, ...]:
        """The nvcc versions of toolchains, each once."""
        folder = self._checkout.dockerfiles
        return tuple(dict.fromkeys(load_toolchain(name, folder).cuda for name in toolchains))

    def _overlay(self, follower: Follower, found: ReleaseFiles) -> Finding:
        if follower.profile.overlay is None:
            return Finding("overlay", "unknown", "the profile has no overlay to resolve")
        try:
            host = read_freeze(follower.folder / FREEZE_FILE)
        except NotFoundError:
            return Finding("overlay", "unknown", f"there is no {FREEZE_FILE} beside the profile")
        return self._questions.ask(follower.profile, host, found)


def proposals(checkout: Checkout, report: dict[str, Any]) -> list[dict[str, str]]:
    """What is worth a proposal: of each profile the newest release of each kind of verdict.

    Not what a profile of this checkout is made of already: a proposal is made once.
    """
    made = set()
    for path in checkout.profiles.glob("*/profile.toml"):
        runtime = load_profile(path.parent, allow_missing_locks=True).runtime
        made.add((runtime.package, runtime.upstream_tag))
    newest: dict[tuple[str, str], dict[str, str]] = {}
    for item in report["judgements"]:
        if item["verdict"] in ("rebuild", "new-profile"):
            entry = {"profile": item["profile"], "tag": item["tag"], "verdict": item["verdict"]}
            newest[item["profile"], item["verdict"]] = entry
    packages = {item["profile"]: item["package"] for item in report["judgements"]}
    return [e for e in newest.values() if (packages[e["profile"]], e["tag"]) not in made]


def text(report: dict[str, Any], *, details: bool = False) -> str:
    """A report's data as a page for a terminal; with `details` every finding that is no match."""
    lines: list[str] = []
    last = None
    for item in report["judgements"]:
        if item["profile"] != last:
            last = item["profile"]
            lines.append(last)
        lines.append(f"  {item['package']} {item['tag']:<10} {item['verdict']}")
        lines += [f"    {line}" for line in (_details if details else _summary)(item)]
    lines.append("")
    lines += [f"{name}: {meaning}" for name, meaning in VERDICTS.items()]
    if not details:
        lines.append("every finding with the place to look at: --details, or --json")
    if not report["tags_compared"]:
        lines.append("git tags were not compared: name a remote with --git")
    return "\n".join(lines)


_ORDER = ("unsupported", "profile", "recipe", "unknown", "changed")


def _details(item: dict[str, Any]) -> list[str]:
    told = [f for f in item["findings"] if f["status"] != "same"]
    told.sort(key=lambda f: _ORDER.index(f["status"]))
    return [f"{f['status']:<11} {Finding(**f)}" for f in told]


def _summary(item: dict[str, Any]) -> list[str]:
    """What decides in full; what only changes by number."""
    lines = []
    for status in ("unsupported", "profile", "unknown"):
        for found in (Finding(**f) for f in item["findings"] if f["status"] == status):
            lines.append(str(replace(found, evidence=None)))
    recipe = [f["what"].partition(" ")[0] for f in item["findings"] if f["status"] == "recipe"]
    if recipe:
        lines.append(f"recipe: it must bring {', '.join(recipe)} first")
    changed = [f for f in item["findings"] if f["status"] == "changed"]
    for check in dict.fromkeys(f["check"] for f in changed):
        words = [f["what"] for f in changed if f["check"] == check]
        if check == "externals":
            lines.append(f"externals: {', '.join(words)}")
        elif check == "requirements":
            lines.append(f"requirements: {words[0].count(';') + 1} changed")
    overlay = [f["what"] for f in item["findings"] if f["check"] == "overlay"]
    return lines + [f"overlay: {what}" for what in overlay if what.startswith("resolves")]
