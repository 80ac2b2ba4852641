"""The Debian root file system: debootstrap, then everything taken out that differs by run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from builder.apt import KEYRING, Package, require_tools
from builder.cache import InputCache, file_sha256, storage_errors
from builder.errors import BuildError
from builder.toolchain_archive import write_archive
from builder.toolchain_definition import Rootfs
from kvreg.errors import UsageError

LAYOUT = 1
"""To be raised whenever the root file system changes for the same packages."""

BUILD_USER = "builder"
BUILD_UID = 1000
"""The user that compiles where the engine runs as root."""

_EMPTIED = ("dev", "proc", "sys", "run", "tmp", "boot", "mnt", "media")
_DROPPED = re.compile(
    r"""
    (usr/share/(man|info|locale|lintian|bash-completion)/.*)
    | (usr/share/doc/[^/]+/(?!copyright$).*)
    | (var/cache/(apt|debconf|ldconfig|man)/.*) | (var/lib/apt/lists/.*) | (var/log/.*)
    | (var/lib/dpkg/(.*-old|lock.*|parts/.*|updates/.*|available|cmethopt))
    | (etc/(machine-id|hostname|resolv\.conf|(passwd|group|shadow|gshadow|subuid|subgid)-))
    | (etc/\.pwd\.lock) | (debootstrap/?.*)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Drift:
    """How the packages of a root file system differ from the lock: name, locked, found."""

    changed: tuple[tuple[str, str, str], ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return {
            "changed": [{"name": n, "locked": a, "found": b} for n, a, b in self.changed],
            "added": list(self.added),
            "removed": list(self.removed),
        }

    def __str__(self) -> str:
        parts = [f"{name} {locked} -> {found}" for name, locked, found in self.changed]
        parts += [f"+{name}" for name in self.added] + [f"-{name}" for name in self.removed]
        return ", ".join(parts)


def drift(locked: Iterable[Package], found: Iterable[Package]) -> Drift:
    """Compare by name; the same version with another sha256 is a change too."""
    old = {p.name: p for p in locked}
    new = {p.name: p for p in found}
    changed = []
    for name in sorted(old.keys() & new.keys()):
        if old[name].version != new[name].version:
            changed.append((name, old[name].version, new[name].version))
        elif old[name].sha256 != new[name].sha256:
            changed.append((name, f"sha256:{old[name].sha256}", f"sha256:{new[name].sha256}"))
    return Drift(
        tuple(changed),
        tuple(sorted(new.keys() - old.keys())),
        tuple(sorted(old.keys() - new.keys())),
    )


def make_rootfs_archive(
    rootfs: Rootfs,
    mirror: str,
    cache: InputCache,
    work: Path,
    target: Path,
    *,
    epoch: int,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[str, tuple[Package, ...]]:
    """Make the root file system and write it as a tar; returns its sha256 and its packages.

    Downloaded packages stay in the cache, so an interrupted run starts over without them. Raises
    UsageError when not root, NotFoundError without debootstrap, BuildError when it fails.
    """
    require_tools("debootstrap", "dpkg-deb", "unshare")
    if os.geteuid() != 0:
        raise UsageError(
            "making a root file system with debootstrap needs root",
            expected="user id 0",
            found=f"user id {os.geteuid()}",
            remedy="run `builder toolchain build` as root once, or use a toolchain of kind pull "
            "(builder toolchain list)",
        )
    debs = cache.folder("debootstrap")
    with storage_errors("make the root file system in", work):
        shutil.rmtree(work, ignore_errors=True)
        work.parent.mkdir(parents=True, exist_ok=True)
        _debootstrap(rootfs, mirror, debs, work, say)
        packages = installed_packages(work, debs)
        _settle(work, epoch)
        say("packing the root file system")
        digest = write_archive(work, target, epoch=epoch, include=wanted)
        shutil.rmtree(work)
    return digest, packages


def _debootstrap(
    rootfs: Rootfs, mirror: str, debs: Path, work: Path, say: Callable[[str], None]
) -> None:
    command = [
        # In a mount namespace of its own, so that a killed run leaves no mounts behind.
        *("unshare", "--mount", "debootstrap"),
        "--variant=minbase",
        "--arch=amd64",
        "--components=main",
        f"--keyring={KEYRING}",
        "--force-check-gpg",
        f"--cache-dir={debs.absolute()}",
        f"--include={','.join(rootfs.include)}",
        rootfs.suite,
        str(work.absolute()),
        mirror,
    ]
    kept = ("PATH", "http_proxy", "https_proxy", "no_proxy", "TMPDIR")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env={**environment, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            say(line.rstrip())
    if process.returncode != 0:
        log = work / "debootstrap/debootstrap.log"
        if log.is_file():
            lines += log.read_text("utf-8", "replace").splitlines()[-10:]
        raise BuildError(
            f"debootstrap of {rootfs.suite} failed",
            expected="exit status 0",
            found=f"exit status {process.returncode}; it ends:\n    " + "\n    ".join(lines[-15:]),
            remedy="run the command again: what was downloaded is kept",
        )


def installed_packages(root: Path, debs: Path) -> tuple[Package, ...]:
    """The packages of a root file system with the digests of the .debs they came from.

    Raises BuildError for a package whose .deb is not in `debs`.
    """
    packages = []
    for entry in parse_status((root / "var/lib/dpkg/status").read_text("utf-8")):
        name, version, architecture = entry["Package"], entry["Version"], entry["Architecture"]
        deb = debs / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
        if not deb.is_file():
            raise BuildError(f"debootstrap kept no {deb.name}", found=f"nothing in {debs}")
        size = deb.stat().st_size
        packages.append(Package(name, version, architecture, size, file_sha256(deb)))
    return tuple(sorted(packages, key=lambda p: p.name))


def parse_status(text: str) -> list[dict[str, str]]:
    """The installed packages of a dpkg status file, each with its one-line fields.

    >>> parse_status("Package: a\\nStatus: install ok installed\\nVersion: 1\\n\\n")[0]["Version"]
    '1'
    """
    entries = []
    for paragraph in text.split("\n\n"):
        pairs = (ln.split(": ", 1) for ln in paragraph.splitlines() if re.match(r"\S+: ", ln))
        fields = dict(pairs)
        if fields.get("Status", "").endswith(" installed"):
            entries.append(fields)
    return entries


def wanted(path: str) -> bool:
    """Whether a path (relative) of the root file system goes into the image.

    >>> wanted("usr/bin/gcc"), wanted("dev/null"), wanted("dev"), wanted("etc/machine-id")
    (True, False, True, False)
    """
    top, _, rest = path.partition("/")
    if rest and top in _EMPTIED:
        return False
    return _DROPPED.fullmatch(path) is None


def _settle(root: Path, epoch: int) -> None:
    """Add the user that compiles; take the day of the run out of the password file."""
    home = f"{BUILD_USER}:x:{BUILD_UID}:{BUILD_UID}:{BUILD_USER}:/work:/bin/sh\n"
    _append(root / "etc/passwd", home)
    _append(root / "etc/group", f"{BUILD_USER}:x:{BUILD_UID}:\n")
    day = epoch // 86400
    shadow = root / "etc/shadow"
    lines = [line.split(":") for line in shadow.read_text().splitlines()]
    settled = [[*fields[:2], str(day), *fields[3:]] for fields in lines]
    settled.append([BUILD_USER, "!", str(day), "0", "99999", "7", "", "", ""])
    shadow.write_text("".join(":".join(fields) + "\n" for fields in settled))
    for folder in ("work", "inputs", "recipe", "out", "ccache", "opt", "usr/local/share"):
        (root / folder).mkdir(parents=True, exist_ok=True)


def _append(path: Path, line: str) -> None:
    with path.open("a") as handle:
        handle.write(line)


def is_step(line: str) -> bool:
    """Whether a line of debootstrap tells that one package got one step further.

    >>> is_step("I: Unpacking libc6:amd64..."), is_step("I: Installing core packages...")
    (True, False)
    """
    return re.match(r"I: (Retrieving|Unpacking|Configuring) \S", line) is not None
