"""The bill of materials: valid, complete, and the same bytes for the same facts."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from builder.inputs import Input, Member
from builder.sbom import WheelFacts, build_sbom
from kvreg.errors import ContractError
from kvreg.model.profile import LockFile
from tests.kvreg.profiles import make_profile


def sha(number: int) -> str:
    return f"{number:064x}"


TORCH = Input("torch", "2.10.0", "wheel", "torch-2.10.0-cp312-linux_x86_64.whl", 9, sha(1))
SDIST = Input("vllm", "0.18.1", "sdist", "vllm-0.18.1.tar.gz", 5, sha(2))
CMAKE = Input("cmake", "3.31.10", "wheel", "cmake-3.31.10-py3-none-any.whl", 4, sha(3))
PARTS = Input(
    *("vllm", "0.18.1", "members", "vllm-0.18.1-cp38-abi3-linux_x86_64.whl", 7, sha(4)),
    members=(Member("vllm/a.py", 1, sha(5)), Member("vllm/b.py", 2, sha(6))),
)
TREE = Input("kvreg-probe", "0.1.0", "tree", "kvreg-probe", 3, sha(7))
BESIDE = Input("extra", "3", "wheel", "extra-3-py3-none-any.whl", 7, sha(11))
ALL = (SDIST, PARTS, TREE, TORCH, CMAKE)
ROLES = {"source": (SDIST, PARTS, TREE), "build": (TORCH, CMAKE)}
WHEEL = WheelFacts(
    filename="demo_pkg-1.2+cu128.sm75-cp312-cp312-linux_x86_64.whl",
    sha256=sha(8),
    size=1234,
    modules=(("demo_pkg/_C.abi3.so", sha(9)), ("demo_pkg/_moe_C.abi3.so", sha(10))),
)
INSIDE = replace(WHEEL, sha256=None, size=None)
"""The wheel as the document that goes into it knows it."""


@dataclass(frozen=True)
class Image:
    name: str = "cuda-12.4-debian12"
    image_digest: str = "sha256:" + "a" * 64
    inputs: str = "sha256:" + "e" * 64
    cuda_version: str = "12.4.131"
    gcc: str = "12.2.0"
    glibc: str = "2.36"
    python: str = "3.12.1"
    packages: tuple[tuple[str, str, str, str], ...] = (
        ("deb", "libc6", "2.36-9+deb12u14", "b" * 64),
        ("deb", "gcc-12", "12.2.0-14", "c" * 64),
        ("pypi", "nvidia-cuda-nvcc", "13.0.88", "f" * 64),
    )


@pytest.fixture
def profile(tmp_path):
    return make_profile(tmp_path)


def build(profile, **changes):
    facts = {
        "profile": profile,
        "wheel": WHEEL,
        "inputs": ALL,
        "toolchain": Image(),
        "torch": TORCH,
        "omissions": profile.build.omissions,
        "roles": ROLES,
    }
    return build_sbom(**(facts | changes))


def properties(component):
    return {
        item["name"].removeprefix("vnd.kvreg:"): item["value"]
        for item in component.get("properties", [])
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"wheel": INSIDE},
        {"roles": None},
        {"overlay": (BESIDE,)},
        {"toolchain": None, "torch": None, "inputs": (PARTS,), "omissions": ()},
    ],
)
def test_valid_by_the_published_schema(profile, changes):
    raw = build(profile, **changes)
    assert json.loads(raw)["specVersion"] == "1.6"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.decode()) is None


def test_the_wheel_and_its_modules(profile):
    wheel = json.loads(build(profile))["metadata"]["component"]
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": WHEEL.sha256}]
    assert wheel["purl"].startswith("pkg:pypi/demo-pkg@1.2%2Bcu128.sm75?file_name=demo_pkg-1.2")
    assert properties(wheel) | {
        "profile": "demo",
        "profile-digest": profile.digest,
        "size": "1234",
        "compute-capabilities": "7.5",
        "upstream-commit": profile.runtime.upstream_commit,
        "omission:FlashAttention 2": "needs compute capability 8.0",
    } == properties(wheel)
    modules = {part["name"]: part["hashes"][0]["content"] for part in wheel["components"]}
    assert modules == dict(WHEEL.modules)


def test_inputs_torch_and_toolchain(profile):
    data = json.loads(build(profile))
    parts = {part["bom-ref"]: part for part in data["components"]}
    torch = parts[f"input:wheel:{TORCH.filename}"]
    assert properties(torch)["provided-by"] == "host"
    assert torch["scope"] == "required"
    assert parts[f"input:wheel:{CMAKE.filename}"]["scope"] == "excluded"
    assert parts[f"input:sdist:{SDIST.filename}"]["purl"].startswith("pkg:pypi/vllm@0.18.1?")
    members = parts[f"input:members:{PARTS.filename}"]["components"]
    assert {m["name"]: m["hashes"][0]["content"] for m in members} == {
        "vllm/a.py": sha(5),
        "vllm/b.py": sha(6),
    }
    assert parts[f"input:tree:{TREE.filename}"]["purl"] == "pkg:generic/kvreg-probe@0.1.0"
    image = parts["toolchain:cuda-12.4-debian12"]
    assert (image["type"], image["version"]) == ("container", Image.image_digest)
    assert properties(image)["cuda"] == "12.4.131"
    assert [part["purl"] for part in image["components"]] == [
        "pkg:deb/debian/gcc-12@12.2.0-14",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14",
        "pkg:pypi/nvidia-cuda-nvcc@13.0.88",
    ]


def test_what_went_into_a_module(profile):
    data = json.loads(build(profile))
    graph = {item["ref"]: set(item.get("dependsOn", [])) for item in data["dependencies"]}
    module = graph["module:demo_pkg/_C.abi3.so"]
    assert f"input:sdist:{SDIST.filename}" in module
    assert f"input:wheel:{TORCH.filename}" in module
    assert "toolchain:cuda-12.4-debian12" in module
    assert f"input:wheel:{CMAKE.filename}" not in module
    wheel = graph[f"wheel:{WHEEL.filename}"]
    assert {"module:demo_pkg/_C.abi3.so", "module:demo_pkg/_moe_C.abi3.so"} <= wheel
    assert "toolchain:cuda-12.4-debian12" not in wheel


def test_the_same_facts_give_the_same_bytes(profile):
    first = build(profile)
    assert build(profile, inputs=tuple(reversed(ALL))) == first
    assert build(profile) == first
    data = json.loads(first)
    stamp = datetime.fromisoformat(data["metadata"]["timestamp"])
    assert stamp == datetime.fromtimestamp(profile.build.source_date_epoch, UTC)


@pytest.mark.parametrize(
    "changes",
    [
        {"wheel": replace(WHEEL, sha256=sha(11))},
        {"inputs": ALL[:-1]},
        {"toolchain": Image(image_digest="sha256:" + "d" * 64)},
        {"omissions": ()},
    ],
)
def test_other_facts_are_another_document(profile, changes):
    first, other = json.loads(build(profile)), json.loads(build(profile, **changes))
    assert first["serialNumber"] != other["serialNumber"]


def test_torch_is_listed_once_and_added_when_it_is_no_input(profile):
    for inputs in (ALL, (SDIST,)):
        parts = json.loads(build(profile, inputs=inputs))["components"]
        assert [part["name"] for part in parts].count("torch") == 1


def test_a_profile_without_its_locks(profile):
    unlocked = replace(profile, locks={"source": LockFile("source.lock", None)})
    with pytest.raises(ContractError):
        build(unlocked)


def test_the_one_inside_the_wheel_knows_no_wheel_and_no_machine(profile):
    data = json.loads(build(profile, wheel=INSIDE))
    wheel = data["metadata"]["component"]
    assert "hashes" not in wheel and "size" not in properties(wheel)
    assert [part["name"] for part in wheel["components"]] == [path for path, _ in WHEEL.modules]
    (image,) = (part for part in data["components"] if part["type"] == "container")
    assert (image["version"], "hashes" in image) == (Image.inputs, False)
    # Another machine's image of the same definition makes the same wheel.
    other = Image(image_digest="sha256:" + "d" * 64, python="3.12.9", packages=())
    assert build(profile, wheel=INSIDE, toolchain=other) == build(profile, wheel=INSIDE)
    moved = Image(inputs="sha256:" + "f" * 64)
    assert build(profile, wheel=INSIDE, toolchain=moved) != build(profile, wheel=INSIDE)


def test_an_overlay_is_shipped_beside_the_wheel_and_not_in_it(profile):
    document = json.loads(build(profile, overlay=(BESIDE,)))
    (part,) = [c for c in document["components"] if c["name"] == "extra"]
    assert part["scope"] == "required"
    assert part["hashes"] == [{"alg": "SHA-256", "content": BESIDE.sha256}]
    assert properties(part)["use"] == "shipped beside the wheel"
    root = document["metadata"]["component"]["bom-ref"]
    (needed,) = [d["dependsOn"] for d in document["dependencies"] if d["ref"] == root]
    assert part["bom-ref"] in needed


def test_the_one_inside_the_wheel_is_the_same_whatever_the_overlay_is(profile):
    lock = LockFile("overlay.lock", sha(12))
    other = replace(profile, locks={**profile.locks, "overlay": lock})
    assert other.digest != profile.digest
    assert build(other, wheel=INSIDE) == build(profile, wheel=INSIDE)
    assert build(other) != build(profile)


THINNING = {
    "upstream": {
        "filename": "demo_pkg-1.2-cp38-abi3-linux_x86_64.whl",
        "size": 9,
        "sha256": sha(20),
    },
    "architectures": ["7.5"],
    "ptx": False,
    "modules": [
        {
            "path": "demo_pkg/_C.abi3.so",
            "units": 2,
            "kept": {"sm_75": {"count": 1, "bytes": 100}},
            "removed": {"sm_80": {"count": 2, "bytes": 300}},
            "before": {"size": 9, "sha256": sha(21)},
            "after": {"size": 5, "sha256": sha(9)},
        }
    ],
    "dropped": [{"path": "demo_pkg/_fa3.so", "reason": "needs 9.0", "removed": {}}],
}


def test_a_thinned_wheel_names_its_ancestor_and_every_payload(profile):
    raw = build(profile, toolchain=None, thinning=THINNING)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.decode()) is None
    wheel = json.loads(raw)["metadata"]["component"]
    (ancestor,) = wheel["pedigree"]["ancestors"]
    assert (ancestor["version"], ancestor["hashes"][0]["content"]) == ("1.2", sha(20))
    assert "demo_pkg/_fa3.so" in wheel["pedigree"]["notes"]
    thinned, other = wheel["components"]
    assert properties(thinned) | {
        "kept": "1 sm_75: 100 bytes",
        "removed": "2 sm_80: 300 bytes",
        "upstream-sha256": sha(21),
    } == properties(thinned)
    assert "kept" not in properties(other)
    assert raw == build(profile, toolchain=None, thinning=json.loads(json.dumps(THINNING)))
    assert (
        json.loads(raw)["serialNumber"]
        != json.loads(build(profile, toolchain=None))["serialNumber"]
    )
