"""Where the program runs: which notebook service, which container, and its environment."""

import re
import sys
from collections.abc import Mapping

from kvreg.facts.machine import Machine
from kvreg.facts.model import Setting

# What changes how CUDA, NCCL, torch, vLLM, Python or the loader behave.
_RELEVANT = re.compile(
    r"(?:LD_|CUDA_|CUDNN_|CUBLAS_|NCCL_|NVIDIA_|TORCH_|PYTORCH_|VLLM_|FLASHINFER_|TRITON_|"
    r"XFORMERS_|OMP_|MKL_|KVREG_|HF_|TRANSFORMERS_|PYTHON|RAY_|GLOO_)[A-Z0-9_]*"
)
# Values of these are never written down.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE")
_CREDENTIALS = re.compile(r"//[^/@\s]*@")


def setting(machine: Machine) -> Setting:
    """The notebook service and the kind of container."""
    return Setting(_notebook(machine), _container(machine), "ipykernel" in sys.modules)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a runtime; no secrets, and no credentials in addresses."""
    return {
        name: _CREDENTIALS.sub("//", value)
        for name, value in sorted(variables.items())
        if _RELEVANT.fullmatch(name) and not _SECRET.search(name)
    }


def _notebook(machine: Machine) -> str:
    names = machine.environment
    if "KAGGLE_KERNEL_RUN_TYPE" in names or machine.path("/kaggle/working").is_dir():
        return "kaggle"
    if "COLAB_RELEASE_TAG" in names or "COLAB_GPU" in names:
        return "colab"
    return "jupyter" if "JPY_PARENT_PID" in names or "ipykernel" in sys.modules else "none"


def _container(machine: Machine) -> str:
    if "KUBERNETES_SERVICE_HOST" in machine.environment:
        return "kubernetes"
    if machine.path("/run/.containerenv").exists():
        return "podman"
    if machine.path("/.dockerenv").exists():
        return "docker"
    named = machine.environment.get("container", "")
    groups = machine.read("/proc/1/cgroup") or ""
    for kind in ("docker", "podman", "lxc"):
        if kind in named or f"/{kind}" in groups:
            return kind
    return "other" if named else "none"
