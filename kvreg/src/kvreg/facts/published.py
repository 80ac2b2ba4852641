"""Facts of a notebook image from the package lists that its makers publish.

A folder holds ``os-info.txt`` (``lsb_release -ds`` and ``python --version``), ``pip-freeze.txt``
and, if there is one, ``apt-cuda.txt`` (``apt list --installed``). What a list cannot tell, such as
the GPUs, is unknown, with that reason.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from kvreg import __version__
from kvreg.errors import ContractError, NotFoundError
from kvreg.facts.model import (
    HostFacts,
    Libstdcxx,
    Nccl,
    NcclFile,
    Python,
    System,
    Torch,
    Unknown,
)
from kvreg.facts.packages import normalised

UNLISTED = "not in a published package list"

# What the releases of distributions bring: glibc, and the newest symbol versions of libstdc++.
_RELEASES = {
    "Ubuntu 20.04": ("2.31", "3.4.28", "1.3.12"),
    "Ubuntu 22.04": ("2.35", "3.4.30", "1.3.13"),
    "Ubuntu 24.04": ("2.39", "3.4.33", "1.3.15"),
    "Debian GNU/Linux 12": ("2.36", "3.4.30", "1.3.13"),
}
# torch's own wheels are compiled with the new C++ ABI from this version on.
_NEW_ABI = (2, 7)

_DATE = re.compile(r"(\d{4}-\d\d-\d\d)$")
_PYTHON = re.compile(r"Python (3\.(\d+)\.\d+\S*)")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)==(\S+)")
_DIRECT = re.compile(r"([A-Za-z0-9][\w.-]*) @ \S*/[^/\s-]+-([0-9][^/\s-]*)-\S+\.whl\b\S*")
_APT = re.compile(r"([a-z0-9][a-z0-9+.-]*)/\S+ (\S+) \S+ \[installed")
_CUDA = re.compile(r"cu(\d+)(\d)")


@dataclass(frozen=True)
class Published:
    """The lists of one day. `apt` holds versions by name of the system's packages."""

    day: date
    folder: Path
    os: str
    python: str
    packages: dict[str, str]
    apt: dict[str, str]


def read_published(folder: Path) -> Published:
    """Read a folder of lists, whose name ends in its date (``colab-gpu-2026-05-22``).

    Raises `NotFoundError` when a list is missing and `ContractError` when one cannot be read.
    """
    match = _DATE.search(folder.resolve().name)
    try:
        day = date.fromisoformat(match[1] if match else "")
    except ValueError:
        raise ContractError(
            f"the name of {folder} does not end in a date", expected="such as image-2026-05-22"
        ) from None
    lines = list(_lines(folder / "os-info.txt"))
    python = next((found for line in lines if (found := _PYTHON.fullmatch(line))), None)
    if not lines or python is None:
        raise ContractError(
            f"{folder / 'os-info.txt'} names no operating system and Python",
            expected="the output of: lsb_release -ds; python --version",
        )
    packages = {}
    for line in _lines(folder / "pip-freeze.txt"):
        if found := _REQUIREMENT.fullmatch(line) or _DIRECT.fullmatch(line):
            packages[normalised(found[1])] = found[2]
    if not packages:
        raise ContractError(
            f"{folder / 'pip-freeze.txt'} names no packages", expected="the output of: pip freeze"
        )
    apt = folder / "apt-cuda.txt"
    system = [_APT.match(line) for line in _lines(apt)] if apt.is_file() else []
    return Published(day, folder, lines[0], python[1], packages, {m[1]: m[2] for m in system if m})


def published_facts(lists: Published) -> HostFacts:
    """What the lists tell of a host; everything else is unknown."""
    unknown = [
        Unknown(key, UNLISTED)
        for key in (
            "system.kernel", "system.cpu", "python.executable", "python.prefix", "torch.path",
            "torch.git", "torch.compute_capabilities", "driver", "gpus", "topology", "disks",
            "memory", "cgroup", "setting", "environment",
        )
    ]  # fmt: skip
    release = next((values for key, values in _RELEASES.items() if lists.os.startswith(key)), None)
    if release is None:
        unknown += [Unknown(key, f"of {lists.os}") for key in ("system.glibc", "libstdcxx")]
    glibc, glibcxx, cxxabi = release or (None, None, None)
    torch = _torch(lists.packages, unknown)
    return HostFacts(
        created=f"{lists.day.isoformat()}T00:00:00+00:00",
        kvreg=__version__,
        system=System(lists.os, None, "x86_64", glibc, None),
        python=Python(lists.python, _tag(lists.python), "cpython", None, None),
        libstdcxx=Libstdcxx("libstdc++.so.6", "the system's", glibcxx, cxxabi) if release else None,
        torch=torch,
        driver=None,
        gpus=None,
        topology=None,
        nccl=_nccl(lists, torch, unknown),
        disks=None,
        memory=None,
        cgroup=None,
        setting=None,
        packages=lists.packages,
        environment=None,
        unknown=tuple(unknown),
    )


def _torch(packages: dict[str, str], unknown: list[Unknown]) -> Torch | None:
    version = packages.get("torch")
    if version is None:
        return None
    cuda = _CUDA.fullmatch(version.partition("+")[2])
    if cuda is None:
        unknown.append(Unknown("torch.cuda", f"the version {version} does not tell"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    new = True if numbers >= _NEW_ABI else None
    if new is None:
        unknown.append(Unknown("torch.cxx11_abi", UNLISTED))
    name = f"{cuda[1]}.{cuda[2]}" if cuda else None
    return Torch(version, None, name, None, new, None, "list")


def _nccl(lists: Published, torch: Torch | None, unknown: list[Unknown]) -> Nccl | None:
    """The one that torch's CUDA brings; two packages of it overwrite each other's file."""
    pip = {
        name: version
        for name, version in lists.packages.items()
        if re.fullmatch(r"nvidia-nccl-cu\d+", name)
    }
    files = [NcclFile("nvidia/nccl/lib/libnccl.so.2", pip[name], name) for name in sorted(pip)]
    if "libnccl2" in lists.apt:
        version = lists.apt["libnccl2"].partition("-")[0]
        files.append(
            NcclFile("/usr/lib/x86_64-linux-gnu/libnccl.so.2", version, "apt package libnccl2")
        )
    if len(set(pip.values())) > 1:
        named = " and ".join(f"{name} {version}" for name, version in sorted(pip.items()))
        reason = f"{named} put their libnccl.so.2 at the same path: the last one installed wins"
        unknown.append(Unknown("nccl", reason))
        return None
    if torch is None or not pip:
        unknown.append(Unknown("nccl", UNLISTED))
        return None
    return Nccl(files[0], "torch's own RPATH comes first", tuple(files), None)


def _tag(python: str) -> str | None:
    match = re.match(r"(\d+)\.(\d+)\.", python)
    return f"cp{match[1]}{match[2]}" if match else None


def _lines(path: Path) -> Iterator[str]:
    """The lines of a list that are neither empty nor comments."""
    try:
        text = path.read_text("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"there is no {path}", expected="a published list") from None
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()
