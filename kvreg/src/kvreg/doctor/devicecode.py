"""Whether a runtime's device code runs on the GPUs of a host, before a kernel is launched.

Rule (CUDA C++ Programming Guide, "Compute Capabilities" and "Feature set compiler targets"):
machine code for X.y runs on X.z with z >= y; for X.ya on X.y alone; for X.yf on the family X.z with
z >= y; intermediate code (PTX) of X.y is compiled by the driver for X.y and everything newer.
"""

import re
from collections.abc import Sequence

from kvreg.doctor.check import Check, undetermined
from kvreg.facts.model import HostFacts
from kvreg.model.oci import ANNOTATION_COMPUTE_CAPABILITIES
from kvreg.model.profile import Profile
from kvreg.runtime import Runtime

_CODE = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?", re.ASCII)


def device_code_check(profile: Profile, runtime: Runtime, facts: HostFacts) -> Check:
    """Every visible GPU against the machine code that the artifact says it holds.

    An artifact that does not say it holds what its profile asks for: the build's audit refuses
    any other.
    """
    named = runtime.annotations.get(ANNOTATION_COMPUTE_CAPABILITIES, "").split()
    code = named or list(profile.build.compute_capabilities)
    required = f"GPUs that run code for {', '.join(code)}"
    validated = profile.host.gpu.compute_capability.validated
    name = "runtime.device-code"
    gpus = facts.visible_gpus
    if gpus is None:
        return undetermined(name, required, facts.reason("gpus") or "not determined")
    if not gpus:
        return Check(
            name, required, validated, "no GPU", "violated", "there is no GPU to run it",
            "attach the accelerator that the profile is for",
        )  # fmt: skip
    devices = {}
    for gpu in gpus:
        if gpu.compute_capability is None:
            return undetermined(name, required, f"GPU {gpu.index} does not tell its architecture")
        devices[gpu.compute_capability] = gpu.name or "GPU"
    refused = [f"{text} ({label})" for text, label in devices.items() if not runs_on(code, text)]
    found = ", ".join(f"{text} ({label})" for text, label in devices.items())
    if not refused:
        return Check(name, required, validated, found, "ok", "there is code for every GPU")
    return Check(
        name,
        required,
        validated,
        found,
        "violated",
        f"no machine code for {', '.join(refused)}: launching a kernel would fail",
        f"use a runtime that is compiled for {', '.join(refused)}",
    )


def runs_on(code: Sequence[str], device: str) -> bool:
    """Whether one of the compiled capabilities runs on a device of capability `device`.

    >>> runs_on(["7.5"], "7.5"), runs_on(["7.5"], "8.0"), runs_on(["8.0"], "8.9")
    (True, False, True)
    >>> runs_on(["9.0a"], "9.0"), runs_on(["10.0a"], "10.3"), runs_on(["10.0f"], "10.3")
    (True, False, True)
    >>> runs_on(["7.0", "7.0+PTX"], "12.0")
    True
    """
    found = re.fullmatch(r"(\d+)\.(\d+)", device, re.ASCII)
    if found is None:
        return False
    target = (int(found[1]), int(found[2]))
    for text in code:
        match = _CODE.fullmatch(text)
        if match is None:
            continue
        built = (int(match[1]), int(match[2]))
        if match[3] == "a":
            if built == target:
                return True
        elif match[4]:
            if built <= target:
                return True
        elif built[0] == target[0] and built <= target:
            return True
    return False
