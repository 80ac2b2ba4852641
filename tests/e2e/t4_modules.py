"""Imports vLLM modules as a CUDA host with a Tesla T4 would, on a machine without one.

Prints JSON: module -> "" or the error. A machine without a GPU does not import these by itself, so
that what they miss would only be found on the notebook.
"""

import importlib
import json
import sys

import torch  # noqa: F401  (its libraries must be loaded before vLLM's modules)
import vllm.platforms as platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class TeslaT4(NonNvmlCudaPlatform):
    """vLLM's own CUDA platform, with a T4's answers in place of the driver's."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(7, 5)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "Tesla T4"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 15360 << 20

    @classmethod
    def log_warnings(cls) -> None:
        pass


def main(modules: list[str]) -> None:
    """Import each module; then say which FlashAttention vLLM would use on this device."""
    platforms._current_platform = TeslaT4()
    result: dict[str, object] = {}
    for module in modules:
        try:
            importlib.import_module(module)
            result[module] = ""
        except Exception as error:
            result[module] = f"{type(error).__name__}: {error}"
    from vllm.vllm_flash_attn import is_fa_version_supported

    result["flash attention"] = [v for v in (2, 3) if is_fa_version_supported(v)]
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
