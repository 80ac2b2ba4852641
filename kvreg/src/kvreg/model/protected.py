"""What belongs to the host alone, as data: no overlay may bring it and no wheel may shadow it."""

from fnmatch import fnmatchcase

from packaging.utils import canonicalize_name

PROTECTED_PACKAGES = ("torch", "torchvision", "torchaudio", "triton", "numpy", "nvidia-*")
"""Distribution names; ``*`` stands for anything."""

PROTECTED_MODULES = frozenset(
    {"torch", "torchgen", "functorch", "torchvision", "torchaudio", "triton", "numpy", "nvidia"}
)
"""Top-level imports of the host: a runtime that brings one would shadow it."""


def is_protected(name: str) -> bool:
    """Whether a distribution belongs to the host alone.

    >>> is_protected("NVIDIA_nccl_cu12"), is_protected("torchao")
    (True, False)
    """
    canonical = canonicalize_name(name)
    return any(fnmatchcase(canonical, pattern) for pattern in PROTECTED_PACKAGES)
