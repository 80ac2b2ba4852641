"""The overlay: what the runtime needs and the host lacks, resolved, explained and locked.

uv resolves for the profile's host, with the host's own versions as its preferences (as versions of
an earlier resolution are) and its protected packages as constraints. What comes out as the host has
it stays the host's; the rest is the overlay, less whatever turns out to be needed by nobody.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from builder.index import IndexFile, PackageIndex, target_tags
from builder.requirements import Need, marker_environment, needs, requires
from kvreg.errors import ContractError, NotFoundError, Problem, UsageError
from kvreg.model.activation import OverlayPolicy
from kvreg.model.profile import Profile
from kvreg.model.protected import is_protected

Say = Callable[[str], None]

_ANY_DATE = "9999-01-01T00:00:00Z"


@dataclass(frozen=True)
class Chosen:
    """One wheel of the overlay and why it is there.

    `host_version` is the version that it shadows, None when the host has none. `because` are the
    needs that the host does not meet; `affects` are needs of packages of the host that will see
    this version instead.
    """

    name: str
    version: str
    file: IndexFile
    size: int
    host_version: str | None
    because: tuple[Need, ...]
    affects: tuple[Need, ...] = ()


@dataclass(frozen=True)
class Overlay:
    """A resolved overlay. `kept` are the host's packages that serve as they are."""

    entries: tuple[Chosen, ...]
    kept: Mapping[str, str]
    broken: tuple[Need, ...]
    """Needs of the host's own packages that the host itself does not meet."""


@dataclass(frozen=True)
class Resolver:
    """Resolves the overlay of one profile for one host."""

    profile: Profile
    metadata: bytes
    """METADATA of the runtime's wheel."""
    host: Mapping[str, str]
    index: PackageIndex
    exclude_newer: str = ""

    @property
    def policy(self) -> OverlayPolicy:
        return self.profile.overlay or OverlayPolicy()

    @cached_property
    def _omitted(self) -> frozenset[str]:
        return frozenset(item.name for item in self.policy.omissions if not item.direct)

    @cached_property
    def roots(self) -> list[Requirement]:
        """What the wheel itself requires on this host, less what is omitted."""
        found = requires(self.metadata, self.policy.extras, marker_environment(self.profile))
        left_out = {item.name for item in self.policy.omissions}
        return [item for item in found if canonicalize_name(item.name) not in left_out]

    def resolve(self, say: Say) -> Overlay:
        """Raises ContractError when the host cannot do, UsageError when nothing resolves."""
        say(f"resolving {len(self.roots)} requirements for {self._python} on {self._platform}")
        versions = self.versions()
        overlay = {n: v for n, v in versions.items() if not self.of_host(n, v)}
        say(f"explaining {len(versions)} packages")
        while True:
            found = self._needs({**self.host, **overlay})
            idle = next((name for name in overlay if self._is_idle(name, overlay, found)), None)
            if idle is None:
                break
            say(f"{idle} {overlay.pop(idle)} is not needed: the host's serves, or nobody asks")
        return self._finish(overlay, found)

    def versions(self, index_options: tuple[str, ...] = ()) -> dict[str, str]:
        """The versions of everything that uv would take, the host's own among them.

        index_options: uv's options in place of the configured index. Raises as `resolve`.
        """
        self._check_protected()
        return self._run_uv(index_options)

    def of_host(self, name: str, version: str) -> bool:
        """Whether the host has this version already, or the package is its alone."""
        if is_protected(name):
            return True
        return name in self.host and Version(self.host[name]) == Version(version)

    @cached_property
    def _python(self) -> str:
        return self.profile.host.python.validated

    @cached_property
    def _platform(self) -> str:
        host = self.profile.host
        return f"{host.arch.validated}-manylinux_{host.glibc.validated.replace('.', '_')}"

    def _is_idle(self, name: str, overlay: Mapping[str, str], found: list[Need]) -> bool:
        """Whether an entry could be left out: nobody asks for it, or the host's serves as well."""
        asked = _of(name, found)
        if not asked or name not in self.host:
            return not asked
        old = self.host[name]
        if not all(need.allows(old) for need in asked):
            return False
        # The host's own must go with what the overlay brings.
        text = self._metadata(name, old)
        combined = {**self.host, **overlay}
        for item in requires(text, (), marker_environment(self.profile)) if text else ():
            child = canonicalize_name(item.name)
            version = combined.get(child)
            if child in overlay and not item.specifier.contains(version or "", prereleases=True):
                return False
        return True

    def _check_protected(self) -> None:
        problems = []
        for item in self.roots:
            name = canonicalize_name(item.name)
            if not is_protected(name):
                continue
            version = self.host.get(name)
            if version is None or not item.specifier.contains(version, prereleases=True):
                problems.append(
                    Problem(name, "is the host's alone", str(item), version or "not installed")
                )
        if problems:
            raise ContractError(
                f"the host does not have what {self.profile.name} takes from it",
                problems=problems,
                remedy="another host, or [[overlay.omission]] with the reason why the runtime does"
                " without it",
            )

    def _run_uv(self, index_options: tuple[str, ...]) -> dict[str, str]:
        pinned = {n: Version(v).public for n, v in self.host.items()}
        hosts_own = {n: v for n, v in pinned.items() if is_protected(n)}
        # torch's own nvidia-* pins are between it and its image; numpy's version binds the others.
        dropped = {n for n in hosts_own if n.startswith("nvidia-")} | self._omitted
        constrained = {n: v for n, v in hosts_own.items() if n not in dropped}
        command = [
            *(find_uv_bin(), "pip", "compile", "requirements.in", "--quiet"),
            *("--no-header", "--no-annotate", "--output-file", "preferred.txt"),
            *("--constraints", "constraints.txt", "--overrides", "overrides.txt"),
            *("--python-version", self._python, "--python-platform", self._platform),
            # Any interpreter will do, so this one: uv would look through the whole machine.
            *("--python", sys.executable, "--no-python-downloads"),
            *("--only-binary", ":all:"),
            *(index_options or ("--no-config", "--default-index", self.index.url)),
        ]
        if self.exclude_newer:
            command += ["--exclude-newer", f"{self.exclude_newer}T00:00:00Z"]
            # What is the host's alone has one version, however new it is.
            for name in sorted(constrained):
                command += ["--exclude-newer-package", f"{name}={_ANY_DATE}"]
        for name, date in sorted(self.policy.exclude_newer_package.items()):
            command += ["--exclude-newer-package", f"{name}={date}T00:00:00Z"]
        with tempfile.TemporaryDirectory(prefix="kvreg-overlay-") as name:
            folder = Path(name)
            plain = (str(Requirement(str(item).partition(";")[0])) for item in self.roots)
            _write(folder / "requirements.in", plain)
            # uv keeps the versions that its output file has, wherever they satisfy.
            _write(folder / "preferred.txt", (f"{n}=={v}" for n, v in pinned.items()))
            _write(folder / "constraints.txt", (f"{n}=={v}" for n, v in constrained.items()))
            # A marker that never holds takes a package, and what only it needs, out of the graph.
            never = "python_version < '0'"
            _write(folder / "overrides.txt", (f"{n} ; {never}" for n in sorted(dropped)))
            result = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False
            )
            if result.returncode != 0:
                raise UsageError(
                    f"the overlay of {self.profile.name} cannot be resolved",
                    found=result.stderr.strip(),
                    remedy="look for the host's protected package that stands in the way, or a"
                    " later --exclude-newer",
                )
            text = (folder / "preferred.txt").read_text("utf-8")
        pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.M)
        return {canonicalize_name(name): version for name, version in pins}

    def _needs(self, versions: Mapping[str, str]) -> list[Need]:
        runtime = self.profile.runtime
        found = needs(
            canonicalize_name(runtime.package),
            runtime.version,
            self.roots,
            versions,
            self._metadata,
            marker_environment(self.profile),
            lambda name: is_protected(name) or name in self._omitted,
        )
        return [need for need in found if need.child not in self._omitted]

    def _metadata(self, name: str, version: str) -> bytes | None:
        if (name, version) not in self._texts:
            try:
                text = self.index.metadata(self._file(name, version))
            except NotFoundError:
                text = None  # the host has what no index has: it is taken as it is
            self._texts[name, version] = text
        return self._texts[name, version]

    @cached_property
    def _texts(self) -> dict[tuple[str, str], bytes | None]:
        return {}

    def _file(self, name: str, version: str) -> IndexFile:
        host = self.profile.host
        major, minor = self._python.split(".")[:2]
        glibc = host.glibc.validated.split(".")
        tags = target_tags((int(major), int(minor)), (int(glibc[0]), int(glibc[1])))
        return self.index.best_wheel(name, str(Version(version)), tags)

    def _finish(self, overlay: Mapping[str, str], found: list[Need]) -> Overlay:
        combined = {**self.host, **overlay}
        unmet = [n for n in found if n.child not in combined or not n.allows(combined[n.child])]
        broken = [n for n in unmet if n.parent in self.host and n.parent not in overlay]
        ours = [n for n in unmet if n not in broken]
        if ours:
            raise ContractError(
                f"the overlay of {self.profile.name} would not satisfy itself on this host",
                problems=[Problem(n.child, str(n), found=combined.get(n.child)) for n in ours],
                remedy="a protected package cannot be brought: [[overlay.omission]] says why the"
                " runtime does without it",
            )
        entries = []
        for name, version in sorted(overlay.items()):
            file = self._file(name, version)
            of_it = _of(name, found)
            old = self.host.get(name)
            because = [n for n in of_it if old is None or not n.allows(old)]
            hosts = [n for n in of_it if n.parent in self.host and n.parent not in overlay]
            affects = tuple(hosts) if old is not None else ()
            size = self.index.size(file)
            entries.append(Chosen(name, version, file, size, old, tuple(because), affects))
        kept = {
            n.child: self.host[n.child]
            for n in found
            if n.child in self.host and n.child not in overlay
        }
        return Overlay(tuple(entries), dict(sorted(kept.items())), tuple(broken))


def _of(name: str, found: list[Need]) -> list[Need]:
    return [need for need in found if need.child == name]


def _write(path: Path, lines: object) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")  # type: ignore[attr-defined]
