"""The installed torch, read from its files: importing it would take seconds and start CUDA.

Its version and CUDA come from ``torch/version.py``; the C++ ABI from the names that ``libc10.so``
exports (``std::__cxx11::string`` is mangled differently from the old string); the compute
capabilities from the flags that ``torch._C._cuda_getArchFlags()`` would answer, which are a text in
``libtorch_python.so``.
"""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

from kvreg.facts.elf import Elf
from kvreg.facts.machine import Machine
from kvreg.facts.model import Torch

_FLAGS = re.compile(rb"\0((?:(?:sm|compute)_\d+[af]? ?)+)\0")
_NEW_STRING = b"NSt7__cxx1112basic_string"
_OWN_NAMESPACE = b"3c10"


def torch_folder() -> Path | None:
    """The folder of the torch that ``import torch`` would import; nothing is imported."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    folder = Path(places[0]) if places else None
    return folder if folder and (folder / "__init__.py").is_file() else None


def torch(machine: Machine, folder: Path | None, *, ask: bool = False) -> Torch | None:
    """Facts of the torch in `folder`; None when there is none. With `ask` torch is imported."""
    if folder is None:
        return None
    if ask:
        return _imported(machine)
    values = machine.attempt("torch.version", lambda: _version_file(folder)) or {}
    abi = machine.attempt("torch.cxx11_abi", lambda: _cxx11_abi(machine, folder))
    cuda = values.get("cuda")
    capabilities: tuple[str, ...] | None = ()
    if cuda:
        capabilities = machine.attempt(
            "torch.compute_capabilities", lambda: _capabilities(machine, folder)
        )
    return Torch(
        version=values.get("__version__"),
        path=str(folder),
        cuda=cuda,
        git=values.get("git_version"),
        cxx11_abi=abi,
        compute_capabilities=capabilities,
        source="files",
    )


def _imported(machine: Machine) -> Torch | None:
    module: Any = machine.attempt("torch", lambda: importlib.import_module("torch"))
    if module is None:
        return None
    flags = machine.attempt("torch.compute_capabilities", module.cuda.get_arch_list) or []
    return Torch(
        version=str(module.__version__),
        path=str(Path(module.__file__).parent),
        cuda=module.version.cuda,
        git=module.version.git_version,
        cxx11_abi=bool(module.compiled_with_cxx11_abi()),
        compute_capabilities=_names(" ".join(flags)),
        source="import",
    )


def _version_file(folder: Path) -> dict[str, str]:
    """The texts that ``version.py`` assigns; it is parsed, not run."""
    tree = ast.parse((folder / "version.py").read_bytes())
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(getattr(node, "value", None), "value", None)
        if isinstance(target, ast.Name) and isinstance(value, str):
            found[target.id] = value
    return found


def _cxx11_abi(machine: Machine, folder: Path) -> bool | None:
    with Elf(folder / "lib" / "libc10.so") as elf:
        names = elf.strings()
    if _NEW_STRING in names:
        return True
    if _OWN_NAMESPACE in names:
        return False
    machine.miss("torch.cxx11_abi", "libc10.so exports no names to tell it by")
    return None


def _capabilities(machine: Machine, folder: Path) -> tuple[str, ...] | None:
    with Elf(folder / "lib" / "libtorch_python.so") as elf:
        match = _FLAGS.search(elf.section(".rodata"))
    if match is None:
        machine.miss("torch.compute_capabilities", "libtorch_python.so has no architecture flags")
        return None
    return _names(match[1].decode("ascii"))


def _names(flags: str) -> tuple[str, ...]:
    """``sm_75 compute_120`` as compute capabilities.

    >>> _names("sm_75 sm_90a sm_120 compute_120")
    ('7.5', '9.0a', '12.0', '12.0+PTX')
    """
    found = []
    for kind, number, suffix in re.findall(r"(sm|compute)_(\d+)(\d[af]?)", flags):
        found.append(f"{number}.{suffix}" + ("+PTX" if kind == "compute" else ""))
    return tuple(dict.fromkeys(found))
