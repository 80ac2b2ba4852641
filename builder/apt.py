"""Debian packages of another suite than the machine's: a private apt, and packages by sha256.

apt itself resolves, verifies the archive's signature and downloads, with the machine's own mirror
and proxy settings; only its state, its cache and its list of sources are private, so nothing of
the machine's package management changes. No host name is written anywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from builder.cache import InputCache, file_sha256, storage_errors
from kvreg.errors import NetworkError, NotFoundError, UsageError, VerificationError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_URI_LINE = re.compile(r"'([^']+)' (\S+) (\d+) SHA256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Package:
    """One binary package. size in bytes (0: not recorded); sha256 of the .deb as hex."""

    name: str
    version: str
    architecture: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Location:
    """Where a mirror has a package's file."""

    name: str
    version: str
    architecture: str
    uri: str
    size: int
    sha256: str


def read_package_lock(path: Path) -> tuple[Package, ...]:
    """Read a lock of packages. Raises NotFoundError, or UsageError naming every fault."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no lock file {path.name} in {path.parent.name}",
            remedy=f"write it with: builder toolchain lock {path.parent.name}",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not a TOML file", found=str(error)) from error
    faults = [] if data.get("version") == 1 else ["version: expected 1"]
    packages = []
    for number, entry in enumerate(data.get("package", []), start=1):
        try:
            package = Package(**entry)
        except TypeError:
            faults.append(f"package {number}: expected name, version, architecture, size, sha256")
            continue
        texts = (package.name, package.version, package.architecture)
        if not all(isinstance(t, str) and t for t in texts):
            faults.append(f"package {number}: name, version and architecture must be text")
        elif not isinstance(package.size, int) or not _SHA256.match(str(package.sha256)):
            faults.append(f"package {number} ({package.name}): size or sha256 is malformed")
        else:
            packages.append(package)
    names = [(p.name, p.architecture) for p in packages]
    faults += [f"{n} is locked more than once" for n, a in set(names) if names.count((n, a)) > 1]
    if faults:
        raise UsageError(f"{path.name} is not a valid package lock", found="; ".join(faults))
    return tuple(packages)


def write_package_lock(path: Path, packages: Iterable[Package], header: str) -> None:
    """Write a lock of packages, sorted by name; `header` becomes its comment."""
    lines = [f"# {line}".rstrip() for line in header.splitlines()] + ["version = 1"]
    for package in sorted(packages, key=lambda p: (p.name, p.architecture)):
        lines += ["", "[[package]]"]
        for key in ("name", "version", "architecture"):
            lines.append(f'{key} = "{getattr(package, key)}"')
        lines += [f"size = {package.size}", f'sha256 = "{package.sha256}"']
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors("write", path):
        temporary.write_text("\n".join(lines) + "\n", "utf-8")
        temporary.replace(path)


def require_tools(*names: str) -> None:
    """Raises NotFoundError naming every program that is absent."""
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        raise NotFoundError(
            "programs that make the toolchain are not installed",
            expected=", ".join(names),
            found="without " + ", ".join(absent),
            remedy=f"on Debian: apt-get install {' '.join(_PROVIDERS.get(n, n) for n in absent)}; "
            "or use a toolchain of kind pull (builder toolchain list)",
        )


_PROVIDERS = {"apt-get": "apt", "dpkg-deb": "dpkg"}


def mirrors() -> tuple[str, ...]:
    """URIs that the machine's apt uses for Debian's main archive, likeliest first.

    ``$KVREG_DEBIAN_MIRROR`` alone when it is set. Whether one is a Debian mirror shows when its
    signature is checked. Raises NotFoundError when there is none.
    """
    named = os.environ.get("KVREG_DEBIAN_MIRROR")
    if named:
        return (named,)
    require_tools("apt-get")
    output = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    found = parse_index_targets(output)
    if not found or not KEYRING.exists():
        raise NotFoundError(
            "the machine's apt knows no Debian mirror",
            expected=f"a source of component main in its sources, and {KEYRING.name}",
            found="no such source" if not found else "no such keyring",
            remedy="set KVREG_DEBIAN_MIRROR to a mirror's URI (and install "
            "debian-archive-keyring), or use a toolchain of kind pull",
        )
    return found


def parse_index_targets(output: str) -> tuple[str, ...]:
    """Mirror URIs out of ``apt-get indextargets`` (URI, release, component a line).

    >>> parse_index_targets("http://m/debian-security/ bookworm-security main\\n"
    ...                     "http://m/debian/ bookworm main\\nhttp://m/debian/ bookworm main\\n")
    ('http://m/debian',)
    """
    candidates = []
    for line in output.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[2] == "main" and "-" not in parts[1]:
            candidates.append(parts[0].rstrip("/"))
    unique = dict.fromkeys(candidates)
    return tuple(sorted(unique, key=lambda uri: not uri.endswith("/debian")))


class PrivateApt:
    """An apt that sees one suite of one mirror and keeps its state below `root`."""

    def __init__(self, root: Path, suite: str, components: Sequence[str]) -> None:
        require_tools("apt-get", "dpkg-deb")
        self.root = root.absolute()
        self.suite = suite
        self.components = tuple(components)

    def update(self) -> str:
        """Fetch the package lists from the first mirror that has the suite; returns its URI.

        Raises NetworkError with what each mirror answered.
        """
        answers = []
        for uri in mirrors():
            self._configure(uri)
            done = self._apt("update", "--error-on=any")
            if done.returncode == 0:
                return uri
            complaints = [ln for ln in done.stderr.splitlines() if ln[:2] in ("E:", "W:")]
            answers.append(complaints[0] if complaints else f"exit status {done.returncode}")
        raise NetworkError(
            f"no mirror gave the package lists of Debian {self.suite}",
            expected="a mirror signed by the keys of debian-archive-keyring",
            found="; ".join(answers),
            remedy="check the network, or set KVREG_DEBIAN_MIRROR to a mirror's URI",
        )

    def locate(self, wanted: Iterable[str]) -> tuple[Location, ...]:
        """Where the mirror has packages, given as ``name`` or ``name=version``.

        Raises NotFoundError with apt's own words when it lacks one.
        """
        wanted = list(wanted)
        done = self._apt("download", "--print-uris", *wanted)
        if done.returncode != 0:
            raise NotFoundError(
                f"the mirror lacks packages of Debian {self.suite} that are asked for",
                expected=", ".join(wanted),
                found="; ".join(ln for ln in done.stderr.splitlines() if ln.startswith("E:")),
                remedy="the archive has moved on: lock anew with `builder toolchain lock`, or set "
                "KVREG_DEBIAN_MIRROR to a mirror that keeps old versions",
            )
        return parse_print_uris(done.stdout)

    def fetch(
        self,
        packages: Sequence[Package],
        cache: InputCache,
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Bring locked packages into the cache; an interrupted download is gone on with.

        advance: called with bytes as they arrive. Raises NotFoundError, NetworkError,
        VerificationError (names the package, expected and found digest), StorageError.
        """
        todo = [p for p in packages if not cache.has(p.sha256)]
        if not todo:
            return
        located = {loc.name: loc for loc in self.locate(f"{p.name}={p.version}" for p in todo)}
        for package in todo:
            location = located.get(package.name)
            if location is None or location.sha256 != package.sha256:
                raise VerificationError(
                    f"{package.name} {package.version} at the mirror is not what was locked",
                    expected=f"sha256:{package.sha256}",
                    found=f"sha256:{location.sha256}" if location else "nothing",
                    remedy="set KVREG_DEBIAN_MIRROR to another mirror",
                )
        folder = cache.folder("apt-downloads")
        done = self._download(todo, folder, advance)
        for package in todo:
            file = _find_download(folder, package)
            if file is None or file.stat().st_size < package.size:
                raise NetworkError(
                    f"{package.name} {package.version} could not be downloaded",
                    expected=f"{package.size} bytes",
                    found=f"{file.stat().st_size if file else 0} bytes; {done}",
                    remedy="run the command again: it goes on from the bytes that are there",
                )
            if file_sha256(file) != package.sha256:
                found = file_sha256(file)
                file.unlink()
                raise VerificationError(
                    f"the downloaded {package.name} {package.version} is not what was locked",
                    expected=f"sha256:{package.sha256}",
                    found=f"sha256:{found}",
                    remedy="run the command again; the file was thrown away",
                )
            cache.put(file, package.sha256, move=True)

    def _download(
        self, packages: Sequence[Package], folder: Path, advance: Callable[[int], None]
    ) -> str:
        """Let apt download; returns its complaints. Progress is what grows in the folder."""
        stop = threading.Event()

        def watch() -> None:
            seen = 0
            while True:
                ended = stop.wait(0.5)
                files = (_find_download(folder, p) for p in packages)
                size = sum(f.stat().st_size for f in files if f is not None)
                advance(max(size - seen, 0))
                seen = max(size, seen)
                if ended:
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            wanted = [f"{p.name}={p.version}" for p in packages]
            done = self._apt("download", *wanted, cwd=folder)
        finally:
            stop.set()
            thread.join()
        return "; ".join(ln for ln in done.stderr.splitlines() if ln.startswith("E:"))

    def _configure(self, uri: str) -> None:
        with storage_errors("set up apt in", self.root):
            for name in ("state/lists/partial", "cache/archives/partial", "etc/parts"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            (self.root / "status").touch()
            components = " ".join(self.components)
            (self.root / "etc/sources.list").write_text(
                f"deb [signed-by={KEYRING}] {uri} {self.suite} {components}\n"
            )
            # Read after the machine's own configuration, so proxies and the like stay.
            (self.root / "apt.conf").write_text(
                f'Dir::State "{self.root}/state";\n'
                f'Dir::State::status "{self.root}/status";\n'
                f'Dir::Cache "{self.root}/cache";\n'
                f'Dir::Etc::sourcelist "{self.root}/etc/sources.list";\n'
                f'Dir::Etc::sourceparts "{self.root}/etc/parts";\n'
                f'Dir::Etc::preferences "/dev/null";\n'
                f'Dir::Etc::preferencesparts "{self.root}/etc/parts";\n'
                'Acquire::Languages "none";\nAcquire::Retries "3";\n'
                'APT::Architecture "amd64";\nAPT::Architectures "amd64";\n'
                'APT::Sandbox::User "root";\n'
                "#clear APT::Update::Post-Invoke-Success;\n#clear APT::Update::Post-Invoke;\n"
            )

    def _apt(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        # -c is read after the machine's configuration, APT_CONFIG would be read before it.
        return subprocess.run(
            ["apt-get", "-q", "-c", str(self.root / "apt.conf"), *arguments],
            cwd=cwd or self.root,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def parse_print_uris(output: str) -> tuple[Location, ...]:
    """Locations out of ``apt-get download --print-uris``.

    >>> line = "'http://m/d/a_1%2b2_amd64.deb' a_1%2b2_amd64.deb 7 SHA256:" + "0" * 64
    >>> parse_print_uris(line)[0].version
    '1+2'
    """
    found = []
    for uri, filename, size, sha256 in _URI_LINE.findall(output):
        name, version, rest = unquote(filename).split("_", 2)
        found.append(Location(name, version, rest.removesuffix(".deb"), uri, int(size), sha256))
    return tuple(found)


def _find_download(folder: Path, package: Package) -> Path | None:
    # apt writes the epoch's colon as %3a, and nothing else, in the names of files.
    version = package.version.replace(":", "%3a")
    path = folder / f"{package.name}_{version}_{package.architecture}.deb"
    return path if path.exists() else None
