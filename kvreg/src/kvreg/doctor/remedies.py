"""What to do when a fact of the host contract is violated, as data.

``{required}``, ``{validated}`` and ``{found}`` are filled in. The host's own packages are never to
be replaced: another image, another profile or another runtime are the ways out.
"""

from kvreg.model.fact import Fact

_ACCELERATOR = (
    "choose the accelerator that the profile is for (on Kaggle: Settings, Accelerator, GPU T4 x2);"
    " kvreg doctor without a profile says which one is nearest"
)
_IMAGE = "use an image with {required}, or a profile for {found}"
_DRIVER = "use a machine with NVIDIA driver {required}; a driver belongs to the machine, not to pip"

REMEDIES = {
    "os": "use an image of {required}",
    "arch": "use a machine with processor {required}, or a runtime compiled for {found}",
    "glibc": "use an image with glibc {required}; the C library cannot be replaced by a package",
    "glibcxx": "use an image whose libstdc++ provides GLIBCXX_{validated}; if another one comes"
    " first (conda, LD_LIBRARY_PATH), take it out of the way",
    "cxxabi": "use an image whose libstdc++ provides CXXABI_{validated}",
    "python": "use an image with Python {required}, or a profile for {found}",
    "python_tag": "use an interpreter of {required}, or a runtime built for {found}",
    "torch": "use an image with torch {required}, or a runtime compiled for torch {found}; do not"
    " replace the host's torch",
    "torch_cuda": "use an image whose torch has CUDA {required}, or a profile for {found}",
    "cxx11_abi": "use an image whose torch has the C++ ABI that the runtime was compiled for",
    "driver": _DRIVER,
    "cuda_driver": _DRIVER.replace("NVIDIA driver", "a driver for CUDA"),
    "nccl": "let torch load the NCCL that it was installed with: look for LD_PRELOAD,"
    " LD_LIBRARY_PATH and other copies in the checks below",
    "gpu.name": _ACCELERATOR,
    "gpu.compute_capability": _ACCELERATOR,
    "gpu.memory_mib": _ACCELERATOR,
    "gpu.count": "attach {required} GPUs (on Kaggle: Settings, Accelerator, GPU T4 x2), or unset"
    " CUDA_VISIBLE_DEVICES where it hides some",
    "gpu.topology": "use a machine whose GPUs are connected by {required}",
}


ABSENT = {
    "torch": "use an image whose Python has torch; kvreg never installs it",
    "nccl": "use an image whose torch brings NCCL {required}",
    "gpu": "attach a GPU (on Kaggle: Settings, Accelerator, GPU T4 x2)",
}
"""When the thing itself is not there."""

_KINDS = {"torch_cuda": "torch", "cxx11_abi": "torch", "driver": "gpu", "cuda_driver": "gpu"}


def remedy(key: str, fact: Fact, found: str, *, absent: bool = False) -> str:
    """What to do about one violated fact."""
    text = REMEDIES.get(key, _IMAGE)
    if absent:
        text = ABSENT.get(_KINDS.get(key, key.partition(".")[0]), text)
    for name, value in (
        ("{required}", fact.require), ("{validated}", fact.validated), ("{found}", found)
    ):  # fmt: skip
        text = text.replace(name, value)
    return text
