"""vLLM's own CUDA platform, with a T4's answers in place of the driver's."""

import torch  # noqa: F401  (its libraries must be loaded before vLLM's modules)
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class TeslaT4(NonNvmlCudaPlatform):
    """Two of them would answer the same."""

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
