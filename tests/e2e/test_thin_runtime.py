"""The thin wheel of vLLM 0.18.1 against upstream's own: payloads, sections, imports, operators.

Slow: needs upstream's wheel, torch and minutes of packing (see `test_vllm_runtime`). NVIDIA's
`cuobjdump`, where there is one, lists the payloads as well: of each piece of device code alone,
because it reads only the first of several sections of one name.
"""

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from builder.audit.elf import read_elf
from builder.elf_layout import Layout
from builder.fatbin import iter_entries, parse_fatbin
from tests.e2e.conftest import Commands
from tests.e2e.test_vllm_runtime import (
    HERE,
    T4_MODULES,
    UPSTREAM,
    activated,
    driver,
    environments,
    serving_python,
    torch_python,
    upstream_wheel,
)
from tests.support.toolchain import engine, toolchain_image

__all__ = [
    "activated",
    "driver",
    "engine",
    "environments",
    "serving_python",
    "toolchain_image",
    "torch_python",
    "upstream_wheel",
]

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.network, pytest.mark.timeout(3600)]

PROFILE = "t4x2-cu128-thin"
SM75 = {"vllm/_C.abi3.so": 43, "vllm/_moe_C.abi3.so": 15}


@pytest.fixture(scope="session")
def built(commands: Commands, upstream_wheel: Path) -> dict:
    """The thin wheel, built, audited and described."""
    return commands("builder", "build", "-p", PROFILE, "--json").json()


@pytest.fixture(scope="session")
def home(commands: Commands, built: dict, tmp_path_factory) -> Path:
    """A home with the thin runtime and upstream's."""
    home = tmp_path_factory.mktemp("home")
    for name in (PROFILE, UPSTREAM):
        commands("builder", "publish", "-p", name, "--to", "oci-layout:thin")
        commands("kvreg", "pull", name, "--registry", "oci-layout:thin", "--home", home)
    return home


def test_every_section_but_device_code_is_upstreams(built, upstream_wheel):
    with zipfile.ZipFile(built["wheel"]) as thin, zipfile.ZipFile(upstream_wheel) as whole:
        names = [name for name in thin.namelist() if name.endswith(".so")]
        assert set(SM75) < set(names)
        for name in names:
            new, old = thin.read(name), whole.read(name)
            before, after = Layout.read(old), Layout.read(new)
            for one, other in zip(before.sections, after.sections, strict=False):
                if one.label != ".nv_fatbin":
                    stored = new[other.offset : other.offset + other.stored]
                    assert stored == old[one.offset : one.offset + one.stored], (name, one.label)
                    assert other.address == one.address
        others = [n for n in thin.namelist() if not n.endswith(".so") and ".dist-info/" not in n]
        assert all(thin.getinfo(n).CRC == whole.getinfo(n).CRC for n in others)
        assert len(others) > 2000


def test_the_device_code_is_what_upstream_has_for_this_architecture(built, upstream_wheel):
    with zipfile.ZipFile(built["wheel"]) as thin, zipfile.ZipFile(upstream_wheel) as whole:
        for name, count in SM75.items():
            new, old = thin.read(name), whole.read(name)
            wanted = [payload for arch, payload in payloads(old) if arch == "sm_75"]
            found = payloads(new)
            assert [payload for arch, payload in found if arch == "sm_75"] == wanted
            assert len(wanted) == count
            assert {arch for arch, _ in found} - {"sm_75"} <= {"compute_52"}


def test_cuobjdump_lists_the_same(built, tmp_path):
    program = shutil.which("cuobjdump") or os.environ.get("KVREG_TEST_CUOBJDUMP")
    if program is None:
        pytest.skip("no cuobjdump here")
    with zipfile.ZipFile(built["wheel"]) as thin:
        for name, count in SM75.items():
            data = thin.read(name)
            found: Counter[str] = Counter()
            for number, (start, end) in enumerate(read_elf(data).fatbin):
                for region in parse_fatbin(data, start, end):
                    path = tmp_path / f"{number}-{region.offset}.fatbin"
                    path.write_bytes(data[region.offset : region.end])
                    if region.entries:
                        ended = subprocess.run(
                            [program, "-lelf", path], capture_output=True, text=True, check=False
                        )
                        found.update(re.findall(r"\.(sm_\w+)\.cubin", ended.stdout))
            assert found == {"sm_75": count}


def payloads(data: bytes) -> list[tuple[str, bytes]]:
    return [
        (entry.architecture, data[entry.offset : entry.end])
        for start, end in read_elf(data).fatbin
        for entry in iter_entries(parse_fatbin(data, start, end))
    ]


def test_it_registers_the_operators_of_upstream_with_all_their_kernels(activated, torch_python):
    def operators(profile: str) -> dict:
        return json.loads(activated(profile, torch_python, HERE / "operators.py"))["operators"]

    thin = operators(PROFILE)
    assert thin == operators(UPSTREAM)
    assert len(thin) == 130


def test_on_a_t4_everything_that_serving_imports_is_there(activated, serving_python):
    out = activated(PROFILE, serving_python, HERE / "t4_modules.py", *T4_MODULES)
    result = json.loads(out.splitlines()[-1])
    assert result.pop("flash attention") == []
    assert {module: error for module, error in result.items() if error} == {}


def test_it_is_a_tenth_of_upstreams_packed_and_a_ninth_unpacked(built, commands, home):
    assert built["size"] * 11 < 433_216_393
    rows = commands("kvreg", "list", "--home", home, "--json").json()
    unpacked = {row["profile"]["name"]: row["bytes"] for row in rows}
    # The overlay's wheels come on top in the home.
    with zipfile.ZipFile(built["wheel"]) as thin:
        assert sum(info.file_size for info in thin.infolist()) * 6 < unpacked[UPSTREAM]
