"""What a profile does not name and a runtime needs all the same: room, quiet GPUs, one NCCL.

The bounds, with where they come from:

* shared memory for several GPUs: vLLM's engine and each of its workers have a ring of 240 MiB
  (``shm_broadcast.py``: 24 MiB by 10 chunks), and NCCL's transports take some 100 MiB. Docker's
  default of 64 MiB is too little for either.
* free GPU memory: vLLM takes 90 % of a GPU's memory by default and refuses to start with less.
* disks: what the largest published runtime and its overlay take unpacked, and room for the
  compile caches of torch and Triton.
"""

from collections.abc import Iterator

from kvreg.console import human_bytes
from kvreg.doctor.check import Check, bound, undetermined
from kvreg.facts.model import Gpu, HostFacts, NcclFile
from kvreg.facts.process import BY_TORCH
from kvreg.model.profile import Profile

_MIB = 1 << 20
_RING = 240 * _MIB
_NCCL_SHM = 100 * _MIB
_FREE_SHARE = 0.9
_DISKS = {
    # (bytes, for what): of a native runtime and of one that is only a probe
    "kvreg-home": ((2048 * _MIB, 64 * _MIB), "the runtime, its wheels and its overlay"),
    "tmp": ((256 * _MIB, 16 * _MIB), "temporary files"),
    "home": ((256 * _MIB, 16 * _MIB), "caches of compiled kernels"),
}


def surrounding_checks(profile: Profile, facts: HostFacts, *, staged: bool) -> Iterator[Check]:
    """All checks of what surrounds the runtime. `staged`: it lies on the disk already."""
    yield from _shared_memory(profile, facts)
    yield from _disks(profile, facts, staged)
    for gpu in facts.visible_gpus or ():
        yield _gpu_memory(gpu)
    if facts.nccl is not None and len(_versions(facts)) > 1:
        yield _nccl_files(profile, facts)
    yield from _settings(profile, facts)


def shared_memory_needed(gpus: int) -> int:
    """Bytes of ``/dev/shm`` that a runtime on so many GPUs uses at most; 0 on one."""
    return _RING * (gpus + 1) + _NCCL_SHM if gpus > 1 else 0


def _shared_memory(profile: Profile, facts: HostFacts) -> Iterator[Check]:
    wanted = profile.host.gpu.count.validated
    gpus = int(wanted) if wanted.isdigit() else len(facts.visible_gpus or ())
    needed = shared_memory_needed(gpus)
    if not needed:
        return
    required = f"{human_bytes(needed)} for {gpus} GPUs"
    disk = facts.disk("shm")
    if disk is None:
        yield undetermined("shm", required, facts.reason("disks.shm") or "not determined")
        return
    remedy = (
        "start the container with --shm-size=2g (Kubernetes: an emptyDir of medium Memory at"
        " /dev/shm), or as root: mount -o remount,size=2g /dev/shm"
    )
    yield bound("shm", required, human_bytes(disk.total), disk.total >= needed, remedy)


def _disks(profile: Profile, facts: HostFacts, staged: bool) -> Iterator[Check]:
    for use, ((native, probe), purpose) in _DISKS.items():
        name = f"disk.{use}"
        needed = probe if profile.runtime.role == "probe" else native
        if use == "kvreg-home" and staged:
            continue
        required = f"{human_bytes(needed)} free for {purpose}"
        disk = facts.disk(use)
        if disk is None:
            yield undetermined(name, required, facts.reason(f"disks.{use}") or "not determined")
            continue
        found = f"{human_bytes(disk.free)} in {disk.path}"
        option = "or --home on another disk" if use == "kvreg-home" else "or use another disk"
        remedy = f"free some space there, {option}"
        if use == "tmp":
            remedy = "free some space there, or set TMPDIR to another disk"
        if not disk.writable:
            found, remedy = f"{disk.path} is not writable", f"choose another directory, {option}"
        yield bound(name, required, found, disk.writable and disk.free >= needed, remedy)


def _gpu_memory(gpu: Gpu) -> Check:
    name = f"gpu.{gpu.index}.free"
    required = f"{_FREE_SHARE:.0%} of its memory free"
    if gpu.memory_mib is None or gpu.free_mib is None:
        return undetermined(name, required, f"GPU {gpu.index} does not tell")
    share = gpu.free_mib / gpu.memory_mib if gpu.memory_mib else 0.0
    found = f"{gpu.free_mib} of {gpu.memory_mib} MiB ({share:.0%})"
    users = [
        f"{process.name or 'process'} {process.pid}"
        + (f" ({process.memory_mib} MiB)" if process.memory_mib else "")
        for process in gpu.processes or ()
    ]
    if users:
        found += ", used by " + ", ".join(users)
    remedy = "stop what uses the GPU (in a notebook: restart the kernel), or give the engine less"
    remedy += f": --gpu-memory-utilization {max(share - 0.02, 0):.2f}"
    return bound(name, required, found, share >= _FREE_SHARE, remedy)


def _versions(facts: HostFacts) -> set[str | None]:
    nccl = facts.nccl
    files = [*nccl.candidates, *([nccl.other] if nccl.other else [])] if nccl else []
    return {file.version for file in files}


def _nccl_files(profile: Profile, facts: HostFacts) -> Check:
    """Two NCCLs are well as long as the one that is loaded is torch's own."""
    nccl = facts.nccl
    assert nccl is not None
    required = "one NCCL, or the one that torch brings is loaded"
    others = [file for file in nccl.candidates if file != nccl.loaded]
    described = [f"loaded: {_file(nccl.loaded)}" if nccl.loaded else "none is loaded"]
    described += [f"not loaded: {_file(file)}" for file in others]
    if nccl.other:
        described.append(f"vLLM would load: {_file(nccl.other)}")
    found = "; ".join(described)
    used = nccl.other if nccl.other and nccl.other.version != _version(nccl.loaded) else nccl.loaded
    own = used is not None and used.origin.startswith(("RPATH", "RUNPATH", BY_TORCH))
    if own:
        return Check("nccl.files", required, None, found, "ok", f"{_file(used)} is torch's own")
    verdict = profile.host.nccl.judge(_version(used))
    status = "compatible-not-validated" if verdict.status == "ok" else verdict.status
    remedy = "take the other NCCL out of the way: unset " + _variables(used)
    reason = f"the process would use {_file(used)}: {verdict.reason}"
    return Check("nccl.files", required, None, found, status, reason, remedy)


def _variables(file: NcclFile | None) -> str:
    known = ("LD_PRELOAD", "LD_LIBRARY_PATH", "VLLM_NCCL_SO_PATH")
    if file is not None and file.origin in known:
        return file.origin
    return " and ".join(known)


def _file(file: NcclFile | None) -> str:
    return f"{file.version or 'unknown'} ({file.path}, {file.origin})" if file else "none"


def _version(file: NcclFile | None) -> str | None:
    return file.version if file else None


def _settings(profile: Profile, facts: HostFacts) -> Iterator[Check]:
    """The environment variables that the profile denies."""
    rules = profile.runtime.environment
    if not rules.deny:
        return
    names = ", ".join(dict.fromkeys(rule.name for rule in rules.deny))
    required = f"no denied value of {names}"
    if facts.environment is None:
        reason = facts.reason("environment") or "not determined"
        yield undetermined("environment", required, reason)
        return
    denied = rules.denied(facts.environment)
    if not denied:
        yield Check("environment", required, None, "none is set", "ok", "nothing denied is set")
    for rule, value in denied:
        yield Check(
            f"environment.{rule.name}",
            f"not {' or '.join(rule.values)}" if "*" not in rule.values else "not set",
            None,
            value,
            "violated",
            rule.reason,
            f"unset {rule.name}",
        )
