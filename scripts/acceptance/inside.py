"""What runs inside the activated runtime: run by the stages, in a process of its own each.

    python inside.py imports PROFILE           what `import vllm` and its native modules give
    python inside.py kernels PROFILE           native kernels against torch, on every GPU
    python inside.py llm PROFILE MODEL TOKENIZER TP UTILIZATION     kvreg.LLM generates

The last line of standard output is JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


def imports(profile: str) -> dict[str, Any]:
    """Activate in this process, as a notebook does, and import."""
    import kvreg

    began = time.monotonic()
    active = kvreg.activate(profile)
    activated = time.monotonic()
    import torch
    import vllm

    loaded = time.monotonic()
    modules = active.runtime.profile().runtime.modules
    for name in modules:
        importlib.import_module(name)
    names = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith(("_C", "_moe_C"))}
    return {
        "vllm": vllm.__version__,
        "file": vllm.__file__,
        "torch": torch.__version__,
        "torch_file": torch.__file__,
        "modules": list(modules),
        "operators": len(names),
        "activate_s": round(activated - began, 2),
        "import_s": round(loaded - activated, 2),
    }


def kernels(profile: str) -> dict[str, Any]:
    """Two kernels of ``vllm._C`` against torch on every GPU: their device code is there and right.

    With ``CUDA_MODULE_LOADING=EAGER`` the driver takes every fat binary at once, those without code
    for this GPU included.
    """
    import kvreg

    active = kvreg.activate(profile)
    import torch

    for name in active.runtime.profile().runtime.modules:
        if name.startswith("vllm._"):
            importlib.import_module(name)

    result: dict[str, Any] = {
        "loading": os.environ.get("CUDA_MODULE_LOADING", "default"),
        "gpus": [],
    }
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        generator = torch.Generator(device=device).manual_seed(7)
        made = {"device": device, "dtype": torch.float16, "generator": generator}
        x = torch.randn(64, 4096, **made)
        weight = torch.randn(2048, **made)
        half = x[:, :2048].contiguous()
        normed = torch.empty_like(half)
        torch.ops._C.rms_norm(normed, half, weight, 1e-6)
        wide = half.float()
        right = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
        gated = torch.empty(64, 2048, device=device, dtype=torch.float16)
        torch.ops._C.silu_and_mul(gated, x)
        expected = torch.nn.functional.silu(x[:, :2048].float()) * x[:, 2048:].float()
        torch.cuda.synchronize(device)
        result["gpus"].append(
            {
                "name": torch.cuda.get_device_name(device),
                "rms_norm_error": float((normed.float() - right).abs().max()),
                "silu_and_mul_error": float((gated.float() - expected).abs().max()),
            }
        )
    if not result["gpus"]:
        raise SystemExit("there is no GPU")
    worst = max(max(g["rms_norm_error"], g["silu_and_mul_error"]) for g in result["gpus"])
    if not worst < 0.05:
        raise SystemExit(f"a kernel computes something else: {json.dumps(result)}")
    return result


def llm(profile: str, model: str, tokenizer: str, tp: str, utilization: str) -> dict[str, Any]:
    """Generate in this process."""
    import kvreg

    began = time.monotonic()
    engine = kvreg.LLM(
        model,
        profile=profile,
        tokenizer=tokenizer,
        load_format="dummy",
        max_model_len=1024,
        max_num_seqs=8,
        enforce_eager=True,
        tensor_parallel_size=int(tp),
        gpu_memory_utilization=float(utilization),
        say=lambda text: print(text, flush=True),
    )
    ready = time.monotonic()
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    answers = engine.generate(["t5 t6 t7 t8", "t900 t901"], sampling)
    done = time.monotonic()
    counts = [len(answer.outputs[0].token_ids) for answer in answers]
    if counts != [16, 16]:
        raise SystemExit(f"not 16 tokens for each prompt but {counts}")
    again = engine.generate(["t5 t6 t7 t8", "t900 t901"], sampling)
    same = [
        a.outputs[0].token_ids == b.outputs[0].token_ids
        for a, b in zip(answers, again, strict=True)
    ]
    return {
        "ready_s": round(ready - began, 1),
        "generate_s": round(done - ready, 2),
        "tokens": counts,
        "prompt_tokens": [len(answer.prompt_token_ids) for answer in answers],
        "same_again": all(same),
        "text": answers[0].outputs[0].text[:80],
    }


if __name__ == "__main__":
    what = {"imports": imports, "kernels": kernels, "llm": llm}[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:])), flush=True)
