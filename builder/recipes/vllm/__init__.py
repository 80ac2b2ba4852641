"""vLLM from its sdist, for the compute capabilities of the profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from builder.inputs import Input
from builder.recipes.model import CONTAINER, Recipe, Requirements, Sources, torch_pin
from kvreg.errors import UsageError
from kvreg.model.profile import Profile

_HERE = Path(__file__).parent

# `import torch` in the build loads libtorch_cuda, and with it exactly the libraries that torch
# names, less these. None of them is linked against or compiled with.
_UNNEEDED = {
    "triton": "just-in-time compiler, loaded when a kernel is compiled",
    "nvidia-cusolver-cu12": "loaded by torch when a solver is first used",
    "nvidia-cuda-nvrtc-cu12": "loaded by torch when a kernel is first compiled at run time",
    "nvidia-nvtx-cu12": "header-only since torch 2.6",
    "cuda-bindings": "Python bindings, imported when torch first asks for a driver function",
}
# The wheels of CUDA 13 carry no suffix.
_UNNEEDED |= {
    name.removesuffix("-cu12"): reason
    for name, reason in _UNNEEDED.items()
    if name.endswith("-cu12")
}


@dataclass(frozen=True)
class Headers:
    """CUTLASS's headers: the wheel that has them, and its folder that stands for upstream's."""

    wheel: str
    folder: str


# By the vLLM release from which on. Upstream's CMake clones a git tag; the index has the same
# headers in wheels of other projects. What was used is in the lock, the build record and the SBOM.
_CUTLASS = (
    # v4.2.1 is wanted; the index has 4.2.0 of it.
    (Version("0"), Headers("nvidia-cutlass==4.2.0.0", "cutlass_library/source/")),
    # v4.4.2 is wanted, and it is what this release of FlashInfer, which vLLM 0.20.2 pins, carries.
    (Version("0.20"), Headers("flashinfer-python==0.6.8.post1", "flashinfer/data/cutlass/")),
)


def cutlass(profile: Profile) -> Headers:
    """The headers for the profile's release."""
    release = Version(profile.runtime.upstream_tag)
    return [headers for since, headers in _CUTLASS if release >= since][-1]


def sources(profile: Profile) -> Sources:
    """The sdist, CUTLASS's headers, and Python files that upstream takes from elsewhere."""
    version = profile.runtime.upstream_tag.removeprefix("v")
    return Sources(
        sdists=(f"vllm=={version}",),
        wheels=(cutlass(profile).wheel,),
        members=(
            (
                f"vllm=={version}",
                (
                    "vllm/third_party/triton_kernels/*",
                    "vllm/third_party/flashmla/flash_mla_interface.py",
                    "vllm/vllm_flash_attn/*.py",
                ),
                (
                    "vllm/vllm_flash_attn/__init__.py",
                    "vllm/vllm_flash_attn/flash_attn_interface.py",
                ),
            ),
        ),
    )


def requirements(profile: Profile) -> Requirements:
    """What vLLM's pyproject.toml asks for, and the torch of the profile's host."""
    return Requirements(
        resolved=(
            "cmake>=3.26.1,<4",
            "ninja",
            "packaging>=24.2",
            "setuptools>=77.0.3,<81.0.0",
            "setuptools-scm>=8.3",
            "wheel",
            "jinja2",
        ),
        alone=(torch_pin(profile),),
        unneeded=_UNNEEDED,
    )


def parameters(profile: Profile, inputs: tuple[Input, ...]) -> dict[str, Any]:
    """File names of the sources, the commit to insist on, and the architectures.

    ptx: the capability whose PTX every module gets, or None. vLLM's CMake drops ``+PTX`` from its
    list for most sources, so the compiler is told by itself.
    """
    if not profile.runtime.upstream_commit:
        raise UsageError(
            f"profile {profile.name} does not name the commit of {profile.runtime.upstream_tag}",
            expected="runtime.upstream_commit, the 40 digits that upstream's tag stands for",
            found="''",
            remedy="take them from upstream; the sdist's _version.py has the first digits",
        )
    headers = cutlass(profile)
    capabilities = profile.build.compute_capabilities
    return {
        "sdist": _filename(inputs, "vllm", "sdist"),
        "cutlass": _filename(inputs, headers.wheel.partition("==")[0], "wheel"),
        "cutlass_folder": headers.folder,
        "commit": profile.runtime.upstream_commit,
        "architectures": " ".join(capabilities),
        "ptx": capabilities[-1].replace(".", "") if profile.build.ptx else None,
    }


def _filename(inputs: tuple[Input, ...], name: str, kind: str) -> str:
    found = [i.filename for i in inputs if (i.name, i.kind) == (name, kind)]
    if len(found) != 1:
        raise UsageError(
            f"source.lock must name one {kind} of {name}",
            expected="1",
            found=str(len(found)),
            remedy="write the locks anew with: builder lock",
        )
    return found[0]


RECIPE = Recipe(
    name="vllm",
    sources=sources,
    requirements=requirements,
    parameters=parameters,
    files={"container.py": CONTAINER}
    | {name: _HERE / name for name in ("compile.py", "CMakeLists.txt", "fa2_absent.cpp")},
    script="compile.py",
    externals=(
        "VLLM_CUTLASS_SRC_DIR",
        "TRITON_KERNELS_SRC_DIR",
        "FLASH_MLA_SRC_DIR",
        "QUTLASS_SRC_DIR",
        "DEEPGEMM_SRC_DIR",
        "VLLM_FLASH_ATTN_SRC_DIR",
    ),
)
