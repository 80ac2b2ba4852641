"""The host contract: every fact of the profile against the facts of the host."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvreg.doctor.check import SEVERITY, Check
from kvreg.doctor.remedies import remedy
from kvreg.facts.model import Gpu, HostFacts
from kvreg.model.fact import Fact
from kvreg.model.profile import Profile


@dataclass(frozen=True)
class Observed:
    """What a host has for one fact: different values of several devices, or none.

    `absent` says in words that the thing itself is not there, which violates whatever is required
    of it; `unknown` why nobody could tell.
    """

    values: tuple[str, ...] = ()
    absent: str | None = None
    unknown: str | None = None


def contract_checks(profile: Profile, facts: HostFacts) -> Iterator[Check]:
    """One check for every fact of the profile's ``[host]`` and ``[host.gpu]``, in their order."""
    for key, fact in profile.host.facts():
        yield judge(key, fact, observe(key, facts))


def judge(key: str, fact: Fact, observed: Observed) -> Check:
    """The verdict on one fact; of several devices the worst counts."""
    required, validated = fact.require, fact.validated
    if observed.absent is not None:
        reason = f"{observed.absent}; required {required}"
        advice = remedy(key, fact, observed.absent, absent=True)
        return Check(key, required, validated, observed.absent, "violated", reason, advice)
    if not observed.values:
        reason = observed.unknown or "not determined"
        return Check(key, required, validated, None, "unknown", reason, _ASK)
    verdicts = [fact.judge(value) for value in observed.values]
    verdict = max(verdicts, key=lambda item: SEVERITY.index(item.status))
    found = ", ".join(observed.values)
    advice = None
    if verdict.status == "violated":
        advice = remedy(key, fact, found)
    elif verdict.status == "unknown":
        advice = _ASK
    return Check(key, required, validated, found, verdict.status, verdict.reason, advice)


def observe(key: str, facts: HostFacts) -> Observed:
    """What the host has for one key of the contract, such as ``torch`` or ``gpu.name``."""
    if key in _GPU:
        return _of_gpus(facts, _GPU[key])
    return _OBSERVERS[key](facts) if key in _OBSERVERS else Observed(unknown="not a fact of hosts")


_ASK = "see the reason; kvreg facts shows what was found"

_GPU: dict[str, Callable[[Gpu], object]] = {
    "gpu.name": lambda gpu: gpu.name,
    "gpu.compute_capability": lambda gpu: gpu.compute_capability,
    "gpu.memory_mib": lambda gpu: gpu.memory_mib,
}


def _value(facts: HostFacts, path: str) -> Observed:
    """The value at a dotted path of the facts; unknown with its reason where it has none."""
    value: object = facts
    for name in path.split("."):
        value = getattr(value, name, None)
    if value is None:
        return Observed(unknown=facts.reason(path) or "not determined")
    return Observed((str(value),))


def _torch(facts: HostFacts, name: str) -> Observed:
    if facts.torch is None and facts.reason("torch") is None:
        return Observed(absent="no torch")
    if name == "cuda" and facts.torch and facts.torch.cuda is None:
        why = facts.reason("torch.version") or facts.reason("torch.cuda")
        return Observed(unknown=why) if why else Observed(absent="torch without CUDA")
    if name == "cxx11_abi" and facts.torch and facts.torch.cxx11_abi is not None:
        return Observed(("true" if facts.torch.cxx11_abi else "false",))
    return _value(facts, f"torch.{name}")


def _driver(facts: HostFacts, name: str) -> Observed:
    if facts.driver is None and facts.reason("driver") is None:
        return Observed(absent="no NVIDIA driver")
    return _value(facts, f"driver.{name}")


def _nccl(facts: HostFacts) -> Observed:
    if facts.nccl is None:
        return _value(facts, "nccl")
    loaded = facts.nccl.loaded
    if loaded is None:
        return Observed(absent=f"no NCCL ({facts.nccl.reason})")
    if loaded.version is None:
        return Observed(unknown=f"{loaded.path} does not say its version")
    return Observed((loaded.version,))


def _count(facts: HostFacts) -> Observed:
    if facts.visible_gpus is None:
        return _value(facts, "gpus")
    return Observed((str(len(facts.visible_gpus)),))


def _topology(facts: HostFacts) -> Observed:
    if facts.visible_gpus is None:
        return _value(facts, "gpus")
    links = facts.links()
    if links is None:
        return Observed(unknown=facts.reason("topology") or "not determined")
    # One GPU, or none, has nothing to be connected to.
    return Observed(_different(links) or ("none",))


def _of_gpus(facts: HostFacts, attribute: Callable[[Gpu], object]) -> Observed:
    gpus = facts.visible_gpus
    if gpus is None:
        return _value(facts, "gpus")
    if not gpus:
        return Observed(absent="no GPU")
    values = [attribute(gpu) for gpu in gpus]
    if None in values:
        index = gpus[values.index(None)].index
        return Observed(unknown=facts.reason(f"gpus[{index}]") or f"GPU {index} does not tell")
    return Observed(_different(map(str, values)))


def _different(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


_OBSERVERS: dict[str, Callable[[HostFacts], Observed]] = {
    "os": lambda facts: _value(facts, "system.os"),
    "arch": lambda facts: _value(facts, "system.arch"),
    "glibc": lambda facts: _value(facts, "system.glibc"),
    "glibcxx": lambda facts: _value(facts, "libstdcxx.glibcxx"),
    "cxxabi": lambda facts: _value(facts, "libstdcxx.cxxabi"),
    "python": lambda facts: _value(facts, "python.version"),
    "python_tag": lambda facts: _value(facts, "python.tag"),
    "torch": lambda facts: _torch(facts, "version"),
    "torch_cuda": lambda facts: _torch(facts, "cuda"),
    "cxx11_abi": lambda facts: _torch(facts, "cxx11_abi"),
    "driver": lambda facts: _driver(facts, "version"),
    "cuda_driver": lambda facts: _driver(facts, "cuda"),
    "nccl": _nccl,
    "gpu.count": _count,
    "gpu.topology": _topology,
}
