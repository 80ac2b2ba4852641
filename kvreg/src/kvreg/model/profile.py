"""Profiles: the named compatibility boundary of a runtime, read from ``profile.toml``.

The canonical JSON of a profile is the config blob of its artifact and its digest is how an
artifact is found. Lock files belong to the profile: their sha256 is part of the canonical form.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from kvreg import toml
from kvreg.errors import ContractError, NotFoundError, Problem, UsageError, VerificationError
from kvreg.model.activation import (
    OverlayPolicy,
    Settings,
    read_engine,
    read_environment,
    read_overlay,
)
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes
from kvreg.model.fact import Fact
from kvreg.model.host import Host, read_host
from kvreg.model.oci import parse_json
from kvreg.model.schema import TableReader
from kvreg.model.tag import digest_tag

SCHEMA = 1
PROFILE_FILE = "profile.toml"
ROLES = ("native", "probe")
RECIPES = ("vllm", "probe", "adopt", "thin")
EARLIEST_EPOCH = 315_532_800
"""1980-01-01, the earliest time that a wheel (a zip file) can hold."""

PROFILE_NAME = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"
"""A regular expression for names of profiles and toolchains."""
_PACKAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[0-9][0-9A-Za-z.!]*(?:\+[0-9a-z]+(?:[._-][0-9a-z]+)*)?"
_MODULE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_NUMBERS = r"\d+(?:\.\d+)*"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_MEMBER = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*"
_KEY = r"[a-z][a-z0-9_-]*"


@dataclass(frozen=True)
class Runtime:
    """The pinned package. `modules` are the imports that must load.

    `environment` and `engine` are variables and engine options that running it sets and denies.
    """

    package: str
    version: str
    role: str
    upstream_tag: str
    upstream_commit: str
    modules: tuple[str, ...]
    environment: Settings = field(default_factory=Settings)
    engine: Settings = field(default_factory=Settings)

    def to_dict(self) -> dict[str, Any]:
        """The table of the profile; settings only where there are any."""
        tree = {item.name: getattr(self, item.name) for item in fields(self)}
        tree |= {"modules": list(self.modules)}
        for key in ("environment", "engine"):
            settings = tree.pop(key).to_dict()
            tree |= {key: settings} if settings else {}
        return tree


@dataclass(frozen=True)
class Omission:
    """Something of upstream's that the build leaves out on purpose.

    Of a wheel that is thinned, `empty` are members that lose their device code and `drop` members
    that go, by their paths.
    """

    name: str
    reason: str
    empty: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The table of the profile; paths only where there are any."""
        tree: dict[str, Any] = {"name": self.name, "reason": self.reason}
        paths = {key: list(getattr(self, key)) for key in ("empty", "drop")}
        return tree | {key: value for key, value in paths.items() if value}


@dataclass(frozen=True)
class Limits:
    """The highest symbol versions that the wheel's shared objects may need."""

    glibc: str
    glibcxx: str
    cxxabi: str


@dataclass(frozen=True)
class Build:
    """How the wheel is made. The first of `toolchains` is the default."""

    recipe: str
    compute_capabilities: tuple[str, ...]
    ptx: bool
    cuda: Fact
    toolchains: tuple[str, ...]
    source_date_epoch: int
    environment: Mapping[str, str] = field(hash=False)
    omissions: tuple[Omission, ...]
    limits: Limits


@dataclass(frozen=True)
class LockFile:
    """A lock file beside ``profile.toml``; `sha256` is None while the file does not exist."""

    file: str
    sha256: str | None


class Tags(NamedTuple):
    """The three tags of a published artifact."""

    moving: str
    fixed: str
    by_digest: str


@dataclass(frozen=True)
class Profile:
    """One profile. Made by `load_profile` or `profile_from_canonical`, never half-valid."""

    name: str
    id: str
    summary: str
    host: Host
    runtime: Runtime
    build: Build
    locks: Mapping[str, LockFile] = field(hash=False)
    overlay: OverlayPolicy | None = None

    def to_dict(self) -> dict[str, Any]:
        """The tree whose canonical JSON is digested; `ContractError` if a lock is missing."""
        missing = [lock.file for lock in self.locks.values() if lock.sha256 is None]
        if missing:
            raise ContractError(
                f"profile {self.name} has no digest yet",
                expected="every lock file beside its profile.toml",
                found="missing: " + ", ".join(missing),
                remedy=f"run: builder lock --profile {self.name}",
            )
        host: dict[str, Any] = {"gpu": {}}
        for key, fact in self.host.facts():
            table, _, name = key.rpartition(".")
            (host[table] if table else host)[name] = fact.to_dict()
        build = self.build
        return {
            "schema": SCHEMA,
            "name": self.name,
            "id": self.id,
            "summary": self.summary,
            "host": host,
            "runtime": self.runtime.to_dict(),
            "build": {
                "recipe": build.recipe,
                "compute_capabilities": list(build.compute_capabilities),
                "ptx": build.ptx,
                "cuda": build.cuda.to_dict(),
                "toolchains": list(build.toolchains),
                "source_date_epoch": build.source_date_epoch,
                "environment": dict(build.environment),
                "omission": [omission.to_dict() for omission in build.omissions],
                "limits": {
                    item.name: getattr(build.limits, item.name) for item in fields(build.limits)
                },
            },
            **({"overlay": self.overlay.to_dict()} if self.overlay else {}),
            "locks": {key: asdict(lock) for key, lock in self.locks.items()},
        }

    def canonical(self) -> bytes:
        """RFC 8785 bytes: the config blob of the artifact."""
        return canonical_json(self.to_dict())

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of `canonical()`."""
        return sha256_bytes(self.canonical())

    @property
    def build_digest(self) -> str:
        """The digest of what the native build depends on: the profile as if it had no overlay.

        The overlay and the settings of ``[runtime]`` reach no build, so a wheel that was built
        before they changed is still the wheel of this profile. Of a profile without them it is
        `digest`.
        """
        bare = replace(
            self,
            overlay=None,
            runtime=replace(self.runtime, environment=Settings(), engine=Settings()),
            locks={key: lock for key, lock in self.locks.items() if key != "overlay"},
        )
        return bare.digest

    @property
    def digest_tag(self) -> str:
        """The tag by which a registry without an index finds the artifact of this profile."""
        return digest_tag(self.digest)

    def tags(self, vllm_version: str, day: date | str) -> Tags:
        """The tags to publish under. `day` is a date, ``yyyymmdd`` or ``yyyy-mm-dd``.

        The local part of the version is dropped: a tag cannot hold ``+``.
        """
        stamp = day.strftime("%Y%m%d") if isinstance(day, date) else day.replace("-", "")
        if re.fullmatch(r"\d{8}", stamp) is None:
            raise UsageError("this is not a date", expected="yyyymmdd", found=repr(day))
        version = vllm_version.removeprefix("v").partition("+")[0]
        return Tags(self.name, f"{self.name}-v{version}-{stamp}", self.digest_tag)


def load_profile(folder: Path, *, allow_missing_locks: bool = False) -> Profile:
    """Read and validate ``folder/profile.toml`` and hash its lock files.

    Raises `NotFoundError` when there is no such file and `ContractError` with every problem at
    once. A lock file that does not exist yet is a problem unless `allow_missing_locks`, which is
    for the command that writes them; such a profile has no digest.
    """
    path = folder / PROFILE_FILE
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"there is no {path}", remedy="name a folder with a profile.toml"
        ) from None
    try:
        tree = toml.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise ContractError(f"{path} is not valid TOML: {error}") from None
    problems: list[Problem] = []
    root = TableReader(tree, str(path), "", problems)
    locks = _toml_locks(root, folder, allow_missing_locks)
    profile = _read(root, locks)
    _raise(f"profile {folder.name} is invalid", problems)
    return profile


def profile_from_canonical(raw: bytes) -> Profile:
    """Read the config blob of an artifact back.

    Raises `VerificationError` unless `raw` is exactly the canonical form of a valid profile.
    """
    tree = parse_json(raw, "profile config blob")
    problems: list[Problem] = []
    root = TableReader(tree, "config", "", problems)
    profile = _read(root, _json_locks(root))
    if problems:
        raise VerificationError("the artifact's config is not a valid profile", problems=problems)
    if profile.canonical() != raw:
        raise VerificationError(
            "the artifact's config is not in canonical form", expected="RFC 8785 JSON"
        )
    return profile


def _read(root: TableReader, locks: dict[str, LockFile]) -> Profile:
    schema = root.integer("schema", 1)
    if schema != SCHEMA:
        root.report(
            "schema",
            "unknown schema",
            expected=str(SCHEMA),
            found=f"{schema} (is this tool too old?)",
        )
    profile = Profile(
        name=root.text("name", PROFILE_NAME, "lower-case letters and digits, parted by - or ."),
        id=root.text("id", PROFILE_NAME, "lower-case letters and digits, parted by - or ."),
        summary=root.text("summary"),
        host=read_host(root.table("host")),
        runtime=_runtime(root.table("runtime")),
        build=_build(root.table("build")),
        overlay=read_overlay(root.table("overlay", optional=True)),
        locks=locks,
    )
    root.finish()
    return profile


def _runtime(table: TableReader) -> Runtime:
    runtime = Runtime(
        package=table.text("package", _PACKAGE, "a distribution name"),
        version=table.text("version", _VERSION, "a PEP 440 version"),
        role=table.choice("role", ROLES),
        upstream_tag=table.text("upstream_tag", r"(?:[A-Za-z0-9_][\w.-]*)?", "a git tag, or ''"),
        upstream_commit=table.text(
            "upstream_commit", r"(?:[0-9a-f]{40})?", "40 lower-case hex digits, or ''"
        ),
        modules=table.texts("modules", _MODULE, "a module name"),
        environment=read_environment(table.table("environment", optional=True)),
        engine=read_engine(table.table("engine", optional=True)),
    )
    table.finish()
    return runtime


def _build(table: TableReader) -> Build:
    build = Build(
        recipe=table.choice("recipe", RECIPES),
        compute_capabilities=table.texts("compute_capabilities", r"\d+\.\d[af]?", "such as '7.5'"),
        ptx=table.flag("ptx"),
        cuda=table.fact("cuda"),
        toolchains=table.texts("toolchains", PROFILE_NAME, "a toolchain's name"),
        source_date_epoch=table.integer("source_date_epoch", EARLIEST_EPOCH),
        environment=table.mapping("environment", r"[A-Za-z_]\w*", "an environment variable's name"),
        omissions=tuple(_omission(item) for item in table.tables("omission")),
        limits=_limits(table.table("limits")),
    )
    table.finish()
    return build


def _omission(table: TableReader) -> Omission:
    omission = Omission(
        name=table.text("name"),
        reason=table.text("reason"),
        empty=_members(table, "empty"),
        drop=_members(table, "drop"),
    )
    table.finish()
    return omission


def _members(table: TableReader, key: str) -> tuple[str, ...]:
    if key not in table.names():
        return ()
    return table.texts(key, _MEMBER, "the path of a member of the wheel")


def _limits(table: TableReader) -> Limits:
    values = {
        item.name: table.text(item.name, _NUMBERS, "numbers such as '2.35'")
        for item in fields(Limits)
    }
    table.finish()
    return Limits(**values)


def _toml_locks(root: TableReader, folder: Path, allow_missing: bool) -> dict[str, LockFile]:
    table = root.table("locks", optional=True)
    locks = {}
    for key in table.names():
        file = table.text(key, _FILE, "the name of a file in the profile's folder")
        if re.fullmatch(_KEY, key) is None:
            table.report(key, "this key is not allowed", expected="such as source, build, overlay")
        elif file:
            try:
                sha256 = hashlib.sha256((folder / file).read_bytes()).hexdigest()
            except FileNotFoundError:
                sha256 = None
                if not allow_missing:
                    table.report(
                        key, "lock file is missing", expected=f"{file} (run: builder lock)"
                    )
            locks[key] = LockFile(file, sha256)
    return locks


def _json_locks(root: TableReader) -> dict[str, LockFile]:
    table = root.table("locks", optional=True)
    locks = {}
    for key in table.names():
        entry = table.table(key)
        file = entry.text("file", _FILE, "a file name")
        sha256 = entry.text("sha256", r"[0-9a-f]{64}", "64 lower-case hex digits")
        locks[key] = LockFile(file, sha256)
        entry.finish()
    return locks


def _raise(what: str, problems: list[Problem]) -> None:
    if problems:
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        raise ContractError(f"{what}: {count}", problems=problems)
