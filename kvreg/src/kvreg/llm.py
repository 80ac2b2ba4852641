"""`LLM`: upstream's ``vllm.LLM`` in this process, on a host that was checked."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvreg.activation import find_runtime
from kvreg.engine import Chosen, for_call
from kvreg.errors import ContractError, NotFoundError, Problem, UsageError
from kvreg.home import Home
from kvreg.kernel import activate, active
from kvreg.runtime import Runtime

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}


def LLM(
    model: str,
    *,
    profile: str,
    home: Path | str | None = None,
    check: bool = True,
    strict: bool = False,
    force: bool = False,
    say: Callable[[str], object] = print,
    **options: Any,
) -> Any:
    """Check the host, activate the runtime, and return upstream's ``vllm.LLM(model, **options)``.

    The profile's engine options are added where you give none, and said with `say`; what it denies
    is refused. `check` False skips the host's check; `strict` makes what is not validated, or
    unknown, a failure too; `force` is `kvreg.activate`'s. Raises `ContractError` with every failed
    check, and what `kvreg.activate` and upstream raise.
    """
    place = Home.find(Path(home) if home is not None else None)
    runtime = find_runtime(place, profile)
    contract = runtime.profile()
    chosen = for_call(contract.runtime.engine, options, contract.name)
    if check:
        require_host(runtime, place, strict=strict)
    found = active()
    if found is None or found.runtime.folder != runtime.folder:
        activate(profile, home=place.root, force=force)
    say(f"kvreg: {contract.name}, {runtime.manifest_digest}")
    say(f"kvreg: vllm.LLM({_call(model, chosen)})")
    import vllm  # of the runtime, which is active now

    return vllm.LLM(model=model, **chosen.options)


def require_host(runtime: Runtime, home: Home, *, strict: bool = False) -> None:
    """Raise `ContractError` naming every check of ``kvreg doctor`` that this host fails."""
    from kvreg.doctor.diagnosis import diagnose
    from kvreg.facts import collect

    diagnosis = diagnose(runtime.profile(), collect(home=home.root), home)
    if diagnosis.passes(strict=strict):
        return
    passing = ("ok",) if strict else ("ok", "compatible-not-validated", "unknown")
    failed = [item for item in diagnosis.checks if item.status not in passing]
    raise ContractError(
        f"this host is not the one that {diagnosis.profile} was made for",
        problems=[Problem(i.name, f"{i.status}: {i.reason}", i.required, i.found) for i in failed],
        remedy=f"kvreg doctor {diagnosis.profile} says more; check=False goes on all the same",
    )


def save_sharded_state(llm: Any, model: Path | str, folder: Path | str) -> Path:
    """Write a loaded model's weights as its workers hold them, by upstream's own saver.

    `model` is the folder that the model was loaded from: what is not weights is copied from it.
    ``LLM(folder, load_format="sharded_state", tensor_parallel_size=the same)`` loads it again,
    and each worker reads only its own part. Raises `NotFoundError` and `UsageError` before
    anything is written.
    """
    source, target = Path(model), Path(folder)
    if not source.is_dir():
        raise NotFoundError(
            f"{source} is no folder", remedy="load the model from a local folder to save it so"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not an empty folder", remedy="choose a new one")
    target.mkdir(parents=True, exist_ok=True)
    llm.llm_engine.engine_core.save_sharded_state(path=str(target))
    for path in sorted(source.iterdir()):
        if path.suffix not in _WEIGHTS and not path.name.endswith(".index.json"):
            if path.is_dir():
                shutil.copytree(path, target / path.name)
            else:
                shutil.copy2(path, target / path.name)
    return target


def _call(model: str, chosen: Chosen) -> str:
    words = [repr(model)]
    for name, value in chosen.options.items():
        by_profile = name.replace("_", "-") in chosen.defaults
        words.append(f"{name}={value!r}" + (" (the profile's)" if by_profile else ""))
    return ", ".join(words)
