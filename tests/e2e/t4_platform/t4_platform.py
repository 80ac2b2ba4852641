"""A platform plugin of vLLM's for machines without a GPU: vLLM's CUDA platform, as if on T4s.

Found by its entry point when this folder is on PYTHONPATH. It lets the whole of vLLM's command
line be read; nothing can be computed with it.
"""


def register() -> str:
    """The class that vLLM is to use."""
    return "t4_platform_class.TeslaT4"
