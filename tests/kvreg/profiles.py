"""A valid profile for tests, and ways to make others of it."""

import sys
from pathlib import Path
from typing import Any

from kvreg import toml
from kvreg.model.profile import Profile, load_profile

_TEMPLATE = """\
schema = 1
name = "demo"
id = "demo-py312"
summary = "A profile for tests"

[host]
os          = { require = "*", validated = "Ubuntu 22.04.5 LTS" }
arch        = { require = "x86_64", validated = "x86_64" }
glibc       = { require = ">=2.35", validated = "2.35" }
glibcxx     = { require = ">=3.4.30", validated = "3.4.30" }
cxxabi      = { require = ">=1.3.13", validated = "1.3.13" }
python      = { require = "==3.12.*", validated = "3.12.13" }
python_tag  = { require = "TAG", validated = "TAG" }
torch       = { require = "==2.10.0", validated = "2.10.0+cu128" }
torch_cuda  = { require = "==12.8", validated = "12.8" }
cxx11_abi   = { require = "true", validated = "true" }
driver      = { require = ">=525.60.13", validated = "580.159.04" }
cuda_driver = { require = ">=12.0", validated = "13.0" }
nccl        = { require = ">=2.27.5,<3", validated = "2.27.5" }

[host.gpu]
name               = { require = "Tesla T4", validated = "Tesla T4" }
count              = { require = ">=2", validated = "2" }
compute_capability = { require = "7.5", validated = "7.5" }
topology           = { require = "*", validated = "PHB" }
memory_mib         = { require = ">=15000", validated = "15360" }

[runtime]
package = "demo-pkg"
version = "1.2+cu128.sm75"
role = "native"
upstream_tag = "v1.2"
upstream_commit = "a26e8dc7ff2111a005144d775ecf9cebf56c45b2"
modules = ["demo_pkg"]

[build]
recipe = "vllm"
compute_capabilities = ["7.5"]
ptx = false
cuda = { require = ">=12.4,<13", validated = "12.8.93" }
toolchains = ["cuda-12.4-debian12"]
source_date_epoch = 1774915200

[build.environment]
VLLM_TARGET_DEVICE = "cuda"

[[build.omission]]
name = "FlashAttention 2"
reason = "needs compute capability 8.0"

[build.limits]
glibc = "2.35"
glibcxx = "3.4.30"
cxxabi = "1.3.13"

[locks]
source = "source.lock"
"""
# Scripts of a staged runtime are run by the tests, so its host is this interpreter's.
_TEXT = _TEMPLATE.replace("TAG", f"cp{sys.version_info.major}{sys.version_info.minor}")


def profile_text(name: str = "demo", **replacements: str) -> str:
    """The TOML of a valid profile; each replacement is a key's whole line, by key."""
    lines = []
    for line in _TEXT.splitlines():
        key = line.split("=")[0].strip()
        lines.append(replacements.get(key, line))
    return "\n".join(lines).replace('name = "demo"', f'name = "{name}"') + "\n"


def write_profile(parent: Path, name: str = "demo", **replacements: str) -> Path:
    """Write a valid profile's folder with its lock under `parent`."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.toml").write_text(profile_text(name, **replacements))
    (folder / "source.lock").write_text(f"version = 1\n# of {name}\n")
    return folder


def make_profile(parent: Path, name: str = "demo", **replacements: str) -> Profile:
    """Write and load a valid profile."""
    return load_profile(write_profile(parent, name, **replacements))


def profile_tree() -> dict[str, Any]:
    """The valid profile as the tree that its TOML holds."""
    return toml.loads(_TEXT)
