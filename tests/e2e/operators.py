"""Lists the operators that vLLM's native modules register, as JSON: name -> schema and backends.

Runs in an environment with torch, with the staged runtime on the path and, where there is no
driver, the toolkit's stub libcuda.so.1 where the loader finds it.
"""

import json
import sys

import torch
import vllm
import vllm._C
import vllm._moe_C

NAMESPACES = ("_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils", "_C_utils", "_moe_C")
KEYS = ("CUDA", "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "Meta")


def operators() -> dict[str, dict[str, object]]:
    """Every operator of vLLM's namespaces: its schema and for which backends it has a kernel."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.split("::")[0] in NAMESPACES:
            name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
            found[name] = {
                "schema": str(schema),
                "kernels": [
                    key for key in KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
                ],
            }
    return found


if __name__ == "__main__":
    json.dump({"vllm": vllm.__version__, "operators": operators()}, sys.stdout, indent=1)
