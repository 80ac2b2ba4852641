"""Is there machine code for the profile's GPUs, and nothing else?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from builder.audit.contents import Contents, DeviceCode, MemberFacts
from builder.audit.identity import module_member
from builder.audit.report import Check, architecture_key, summarise
from kvreg.model.profile import Profile


def architectures(profile: Profile) -> frozenset[str]:
    """The profile's compute capabilities as nvcc names their machine code.

    ``7.5`` is ``sm_75``, ``9.0a`` is ``sm_90a``, ``12.0`` is ``sm_120``.
    """
    return frozenset("sm_" + text.replace(".", "") for text in profile.build.compute_capabilities)


def check_sass(contents: Contents, profile: Profile) -> Check:
    """Exactly the profile's architectures in a built wheel; among others in an adopted one.

    In a thinned wheel, no others: some of them in what the profile imports, and none in a module
    that upstream has none for.
    """
    coded = [(member, member.device) for member in contents.members if member.device]
    wanted = architectures(profile)
    names = _join(wanted)
    adopted = profile.build.recipe == "adopt"
    thinned = profile.build.recipe == "thin"
    if thinned:
        required = f"no SASS but for {names}, and some in the modules that the profile imports"
        problems = [text for member, code in coded for text in _foreign(member, code, wanted)]
        problems += _absent(contents, profile, wanted, any_of=True)
    elif adopted:
        required = f"the CUDA modules that the profile imports contain SASS for {names} (adopted)"
        problems = list(_absent(contents, profile, wanted))
    else:
        required = f"every CUDA module holds SASS for exactly {names}"
        problems = [text for member, code in coded for text in _inexact(member, code, wanted)]
    problems += [f"{member.path}: {code.problem}" for member, code in coded if code.problem]
    if not any(code.sass for _, code in coded):
        problems.append("no module holds any SASS")
    if problems:
        return Check(
            "sass",
            "fail",
            required,
            "; ".join(problems[:1]) + (f"; and {len(problems) - 1} more" * (len(problems) > 1)),
            where=tuple(problems),
            remedy=_remedy(profile.build.compute_capabilities),
        )
    others = tuple(
        f"{member.path}: {summarise(code.sass)}"
        for member, code in coded
        if set(code.sass) != wanted
    )
    total: Counter[str] = sum((Counter(code.sass) for _, code in coded), Counter())
    found = f"{len(coded)} CUDA modules: {summarise({arch: total[arch] for arch in wanted})}"
    if thinned and others:
        return Check("sass", "note", required, f"{found}; not all of it everywhere", where=others)
    if adopted and others:
        return Check("sass", "note", required, f"{found}, and other architectures", where=others)
    return Check("sass", "pass", required, found)


def _remedy(capabilities: Sequence[str]) -> str:
    cmake = " ".join(text.replace(".", "") + "-real" for text in capabilities)
    return (
        f"compile with TORCH_CUDA_ARCH_LIST={';'.join(capabilities)} (CMake: CUDA_ARCHITECTURES "
        f"{cmake}), and look for -gencode flags that add another"
    )


def _inexact(member: MemberFacts, code: DeviceCode, wanted: frozenset[str]) -> Iterator[str]:
    missing, extra = wanted - set(code.sass), set(code.sass) - wanted
    if missing:
        yield f"{member.path}: no SASS for {_join(missing)}"
    if extra:
        yield f"{member.path}: SASS for {_join(extra)} as well"
    if code.other:
        yield f"{member.path}: device code of other kinds: {summarise(code.other)}"


def _foreign(member: MemberFacts, code: DeviceCode, wanted: frozenset[str]) -> Iterator[str]:
    if extra := set(code.sass) - wanted:
        yield f"{member.path}: SASS for {_join(extra)}"


def _absent(
    contents: Contents, profile: Profile, wanted: frozenset[str], *, any_of: bool = False
) -> Iterator[str]:
    by_path = {member.path: member for member in contents.members}
    coded = False
    for name in profile.runtime.modules:
        path = module_member(name, set(by_path))
        code = by_path[path].device if path else None
        if code is not None:
            coded = True
            missing = wanted - set(code.sass)
            if missing and not (any_of and wanted & set(code.sass)):
                yield f"{path}: no SASS for {_join(missing)}, only {summarise(code.sass) or 'none'}"
    if not coded:
        yield "none of runtime.modules is a CUDA module"


def check_ptx(contents: Contents, profile: Profile) -> Check:
    """PTX only where the profile asks for it."""
    coded = [(member, member.device) for member in contents.members if member.device]
    holders = tuple(f"{member.path}: {summarise(code.ptx)}" for member, code in coded if code.ptx)
    if profile.build.ptx:
        wanted = frozenset(arch.replace("sm_", "compute_") for arch in architectures(profile))
        found = frozenset(arch for _, code in coded for arch in code.ptx)
        required = f"PTX for {_join(wanted)} at most"
        if found <= wanted:
            return Check("ptx", "pass", required, _join(found) or "none", where=holders)
    else:
        required = "no PTX"
        if not holders:
            return Check("ptx", "pass", required, "none")
    if profile.build.recipe == "adopt" or (profile.build.recipe == "thin" and profile.build.ptx):
        # Thinning keeps upstream's PTX where upstream has no machine code, whatever its version.
        return Check(
            "ptx", "note", f"{required} (upstream's wheel may hold more)", "present", where=holders
        )
    return Check(
        "ptx",
        "fail",
        required,
        f"PTX in {len(holders)} modules",
        where=holders,
        remedy="PTX is compiled on the user's machine, slowly, and hides a missing architecture: "
        "drop +PTX from TORCH_CUDA_ARCH_LIST (CMake: use 75-real, not 75), or set build.ptx",
    )


def _join(names: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names, key=architecture_key))
