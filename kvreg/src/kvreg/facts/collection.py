"""Collecting the facts of the host that this program runs on."""

import time
from pathlib import Path

from kvreg import __version__
from kvreg.facts import codec, nccl, packages, place, python, storage, system
from kvreg.facts import torch as torch_facts
from kvreg.facts.elf import Elf, highest_version
from kvreg.facts.gpu import graphics
from kvreg.facts.loader import Loader
from kvreg.facts.machine import Machine
from kvreg.facts.model import HostFacts, Libstdcxx
from kvreg.facts.process import nvidia_folders, torch_process

_LIBSTDCXX = "libstdc++.so.6"


def collect(
    machine: Machine | None = None, *, import_torch: bool = False, home: Path | None = None
) -> HostFacts:
    """The facts of this host as the running interpreter sees it; never fails.

    `import_torch` asks torch itself instead of its files (seconds, and it may start CUDA). `home`
    is the directory of runtimes whose disk counts.
    """
    host = machine or Machine()
    folder = torch_facts.torch_folder()
    torch = torch_facts.torch(host, folder, ask=import_torch)
    seen = graphics(host)
    with torch_process(folder, host) as loader:
        libstdcxx = host.attempt("libstdcxx", lambda: _libstdcxx(host, loader))
        library = host.attempt("nccl", lambda: nccl.nccl(host, loader, nvidia_folders()))
    facts = HostFacts(
        created=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        kvreg=__version__,
        system=host.attempt("system", lambda: system.system(host)),
        python=host.attempt("python", python.python),
        libstdcxx=libstdcxx,
        torch=torch,
        driver=seen.driver,
        gpus=seen.gpus,
        topology=seen.topology,
        nccl=library,
        disks=host.attempt("disks", lambda: storage.disks(host, home)),
        memory=host.attempt("memory", lambda: system.memory(host)),
        cgroup=host.attempt("cgroup", lambda: system.cgroup(host)),
        setting=host.attempt("setting", lambda: place.setting(host)),
        packages=host.attempt("packages", packages.packages),
        environment=host.attempt("environment", lambda: place.environment(host.environment)),
        unknown=tuple(host.unknown),
    )
    # A path or variable may hold what a terminal would obey.
    return HostFacts.from_dict(codec.printable(facts.to_dict()))


def _libstdcxx(machine: Machine, loader: Loader) -> Libstdcxx | None:
    loaded = loader.loaded.get(_LIBSTDCXX)
    found = loaded.place if loaded else loader.find(_LIBSTDCXX)
    if found is None:
        machine.miss("libstdcxx", f"the loader finds no {_LIBSTDCXX}")
        return None
    with Elf(found.path) as elf:
        names = elf.version_definitions()
    return Libstdcxx(
        str(found.path.resolve()),
        found.origin,
        highest_version(names, "GLIBCXX"),
        highest_version(names, "CXXABI"),
    )
