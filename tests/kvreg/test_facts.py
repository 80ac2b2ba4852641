"""Facts of a host: the value and its file, and the collectors on trees of files."""

import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kvreg
from kvreg.cli import main
from kvreg.errors import ContractError
from kvreg.facts import HostFacts, collect, gpu, load, packages, place, smi, system
from kvreg.facts.files import save
from kvreg.facts.machine import Machine
from kvreg.facts.model import Gpu, schema

ROOT = Path(__file__).resolve().parents[2]
DUAL = ROOT / "tests" / "data" / "facts" / "dual-t4.json"

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\tSYS\t0-3\t0\t\tN/A
GPU1\tPHB\t X \tSYS\t0-3\t0\t\tN/A
NIC0\tSYS\tSYS\t X
\nLegend:\n\n  X    = Self
"""
BANNER = "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04   CUDA Version: 13.0 |"
QUERY = """\
0, Tesla T4, GPU-aa, 00000000:00:04.0, 7.5, 15360, 15095, 580.159.04
1, Tesla T4, GPU-bb, 00000000:00:05.0, 7.5, 15360, 2800, 580.159.04
"""


def nothing(arguments):
    raise OSError(f"{arguments[0]}: no such program")


def machine(root=Path("/"), **environment):
    return Machine(root=root, environment=environment, run=nothing)


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# -- the value and its file ---------------------------------------------------------------------


def test_this_host_is_collected_and_comes_back_from_its_file(tmp_path):
    facts = collect()
    assert facts.python.version == ".".join(map(str, sys.version_info[:3]))
    assert facts.packages["click"]
    assert facts.system.glibc == os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    jsonschema.validate(facts.to_dict(), schema())
    save(facts, tmp_path / "facts.json")
    again = load(tmp_path / "facts.json")
    assert again == facts
    assert again.digest == facts.digest
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


def test_the_package_can_be_called():
    assert isinstance(kvreg.facts(), HostFacts)


def test_the_published_schema_is_that_of_the_value():
    published = json.loads((ROOT / "docs" / "facts.schema.json").read_text())
    assert published == schema()
    validator = jsonschema.Draft202012Validator(published)
    for path in DUAL.parent.glob("*.json"):
        validator.validate(json.loads(path.read_text()))


def test_the_command_writes_shows_and_replays(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "very-secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    runner = CliRunner()
    path = tmp_path / "facts.json"
    first = runner.invoke(main, ["facts", "--json", "--output", str(path)], catch_exceptions=False)
    assert first.exit_code == 0
    assert json.loads(first.stdout) == json.loads(path.read_text())
    assert json.loads(first.stdout)["environment"]["NCCL_DEBUG"] == "INFO"
    assert "very-secret" not in path.read_text()
    text = runner.invoke(main, ["facts", "--facts", str(DUAL)], catch_exceptions=False).stdout
    for said in ("Tesla T4, SM75, 15095 of 15360 MiB", "X PHB", "not loaded: 2.25.1"):
        assert said in text


def test_an_older_file_has_unknown_facts_instead_of_wrong_ones():
    old = json.loads(DUAL.read_text())
    del old["nccl"], old["torch"]["cxx11_abi"]
    facts = HostFacts.from_dict(old)
    assert facts.nccl is None
    assert facts.reason("nccl") == facts.reason("torch.cxx11_abi") == "not recorded in this file"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree.update(schema=7), "another schema"),
        (lambda tree: tree.update(extra=1), "unknown key"),
        (lambda tree: tree["torch"].update(version=2), "torch.version: wrong value"),
        (lambda tree: tree["gpus"][1].update(index="0"), "gpus[1].index: wrong value"),
        (lambda tree: tree["gpus"][0].update(visible=1), "gpus[0].visible: wrong value"),
        (lambda tree: tree.update(gpus={}), "expected an array"),
        (lambda tree: tree["packages"].update(torch=None), "packages.torch: wrong value"),
        (lambda tree: tree["memory"].update(total=1 << 70), "memory.total: wrong value"),
        (lambda tree: tree["system"].update(os="a\x1b[2Jb"), "printable text"),
        (lambda tree: tree.pop("created"), "required key is missing"),
    ],
)
def test_what_is_no_fact_is_refused_and_named(change, said):
    tree = json.loads(DUAL.read_text())
    change(tree)
    with pytest.raises(ContractError) as caught:
        HostFacts.from_dict(tree)
    assert said in str(caught.value)


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.sampled_from(sorted(json.loads(DUAL.read_text()))), json_trees)
def test_any_value_in_any_place_is_read_or_refused(key, value):
    tree = {**json.loads(DUAL.read_text()), key: value}
    try:
        facts = HostFacts.from_dict(tree)
    except ContractError:
        return
    assert HostFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
    assert facts.digest.startswith("sha256:")


def test_facts_import_nothing_heavy():
    script = (
        "import sys, kvreg.facts; kvreg.facts();"
        "heavy = {'torch', 'numpy', 'requests', 'importlib.metadata'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# -- collectors -----------------------------------------------------------------------------------


def test_cgroup_2_takes_the_tightest_limit_on_the_way_up(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/a/memory.max": "2147483648\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
        },
    )
    found = system.cgroup(machine(root))
    assert (found.version, found.memory, found.cpus) == (2, 2 << 30, 1.5)


def test_cgroup_1_and_its_way_to_say_no_limit(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "3:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    found = system.cgroup(machine(root))
    assert (found.version, found.memory, found.cpus) == (1, 1 << 30, None)


def test_no_cgroups_are_unknown(tmp_path):
    host = machine(tmp_path)
    assert system.cgroup(host).version is None
    assert host.unknown[0].fact == "cgroup"


@pytest.mark.parametrize(
    ("files", "environment", "notebook", "container"),
    [
        ({}, {}, "none", "none"),
        ({".dockerenv": ""}, {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "kaggle", "docker"),
        ({".dockerenv": ""}, {"COLAB_RELEASE_TAG": "x"}, "colab", "docker"),
        ({"run/.containerenv": ""}, {"JPY_PARENT_PID": "1"}, "jupyter", "podman"),
        ({"proc/1/cgroup": "1:name=systemd:/lxc/a\n"}, {}, "none", "lxc"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "none", "kubernetes"),
        ({}, {"container": "oci"}, "none", "other"),
    ],
)
def test_notebook_and_container(tmp_path, files, environment, notebook, container):
    found = place.setting(machine(tree(tmp_path, files), **environment))
    assert (found.notebook, found.container) == (notebook, container)


def test_the_environment_has_what_matters_and_no_secrets():
    found = place.environment(
        {
            "LD_LIBRARY_PATH": "/lib", "NCCL_P2P_DISABLE": "1", "HF_TOKEN": "x",
            "VLLM_API_KEY": "x", "HOME": "/root", "PYTHONPATH": "", "HF_ENDPOINT": "https://me:pw@mirror/x",
            "MY_PASSWORD": "x", "CUDA_VISIBLE_DEVICES": "0",
        }
    )  # fmt: skip
    assert set(found) == {
        "LD_LIBRARY_PATH", "NCCL_P2P_DISABLE", "PYTHONPATH", "HF_ENDPOINT", "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip
    assert found["HF_ENDPOINT"] == "https://mirror/x"


def test_packages_come_from_names_of_folders_the_first_on_the_path_first(tmp_path):
    for name in ("a/Demo_Pkg-1.0.dist-info", "b/demo_pkg-2.0.dist-info", "b/x.y-3-py3.12.egg-info"):
        (tmp_path / name).mkdir(parents=True)
    old = tmp_path / "b" / "old.egg-info"
    old.mkdir()
    (old / "PKG-INFO").write_text("Metadata-Version: 1\nName: Old\nVersion: 0.1\n\nName: not\n")
    (tmp_path / "b" / "broken.egg-info").mkdir()
    found = packages.packages([str(tmp_path / "a"), str(tmp_path / "none"), str(tmp_path / "b")])
    assert found == {"demo-pkg": "1.0", "old": "0.1", "x-y": "3"}


def test_packages_are_what_importlib_finds():
    from importlib.metadata import distributions

    expected = {}
    for item in distributions():
        expected.setdefault(packages.normalised(item.metadata["Name"]), item.version)
    assert packages.packages() == dict(sorted(expected.items()))


# -- GPUs -----------------------------------------------------------------------------------------


def answers(arguments):
    """What nvidia-smi prints."""
    if arguments == ["nvidia-smi"]:
        return BANNER
    if arguments[1:3] == ["topo", "-m"]:
        return TOPOLOGY
    if "compute-apps" in arguments[1]:
        return "GPU-bb, 4242, /usr/bin/python3 --token=secret, 12290\n"
    return QUERY


def test_nvidia_smi_where_there_is_no_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    host = Machine(environment={}, run=answers)
    found = gpu.graphics(host)
    assert (found.driver.version, found.driver.cuda) == ("580.159.04", "13.0")
    assert [item.free_mib for item in found.gpus] == [15095, 2800]
    assert found.gpus[1].processes[0].name == "python3"
    assert found.topology == (("X", "PHB"), ("PHB", "X"))
    assert host.unknown == []


def test_the_real_program_is_asked(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$1\" in --query-gpu*) echo '{QUERY.splitlines()[0]}';; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    host = Machine(environment={})
    found = gpu.graphics(host)
    assert [item.name for item in found.gpus] == ["Tesla T4"]
    assert found.topology == (("X",),)
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/nvidia0").touch()
    failed = Machine(root=tmp_path / "root", environment={})
    assert gpu.graphics(failed).gpus is None
    assert "NVIDIA-SMI has failed" in failed.unknown[0].reason


def test_a_machine_without_a_driver_has_no_gpu_and_one_that_is_silent_has_unknown_ones(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    host = machine(tmp_path)
    assert gpu.graphics(host).gpus == ()
    assert host.unknown == []
    tree(
        tmp_path,
        {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Kernel Module  580.159.04\n"},
    )
    silent = gpu.graphics(host)
    assert silent.gpus is None
    assert silent.driver.version == "580.159.04"
    assert {item.fact for item in host.unknown} == {"gpus", "topology", "driver.cuda"}


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, {0, 1}), ("", set()), ("1", {1}), ("0,1", {0, 1}), ("1,7,0", {1}), ("-1", set()),
        ("GPU-aa", {0}), ("GPU-", set()), ("NoDevFiles", set()), ("0, 1", {0, 1}),
    ],
)  # fmt: skip
def test_visible_devices_as_cuda_reads_them(monkeypatch, variable, visible):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    found = gpu.graphics(Machine(environment=environment, run=answers))
    assert {item.index for item in found.gpus if item.visible} == visible


@pytest.mark.parametrize(
    ("text", "count"), [("", 2), ("GPU0\n", 1), (TOPOLOGY, 3), ("GPU0 GPU1\nGPU0 X\nGPU1 PHB X", 2)]
)
def test_a_topology_that_is_none(text, count):
    with pytest.raises(ValueError, match="nvidia-smi topo"):
        smi.parse_topology(text, count)


@given(st.text(alphabet="GPU01 XPHB\t\nNV", max_size=120), st.integers(1, 3))
def test_any_text_is_a_matrix_or_refused(text, count):
    try:
        rows = smi.parse_topology(text, count)
    except ValueError:
        return
    assert [len(row) for row in rows] == [count] * count


def fake_nvml(connection, p2p):
    """A stand-in for the module pynvml with two GPUs; what only a driver can answer is stated."""

    class NVMLError(Exception):
        pass

    def refuse(*_):
        raise NVMLError("Not Supported")

    def pci(handle):
        return types.SimpleNamespace(busId=f"0000:00:0{handle}.0".encode())

    module = types.ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError, NVML_P2P_CAPS_INDEX_NVLINK=2, NVML_P2P_STATUS_OK=0,
        NVML_NVLINK_MAX_LINKS=18, NVML_FEATURE_ENABLED=1, NVML_NVLINK_DEVICE_TYPE_SWITCH=2,
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlSystemGetDriverVersion=lambda: b"580.159.04",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetPciInfo=pci,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=8 << 20, free=6 << 20),
        nvmlDeviceGetComputeRunningProcesses=refuse,
        nvmlDeviceGetTopologyCommonAncestor=lambda one, other: connection,
        nvmlDeviceGetP2PStatus=lambda one, other, index: 0 if p2p else 1,
        nvmlDeviceGetNvLinkState=lambda handle, link: 1 if link < 4 else 0,
        nvmlDeviceGetNvLinkRemotePciInfo=refuse,
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda handle, link: 2,
    )  # fmt: skip
    return module


@pytest.mark.parametrize(
    ("connection", "p2p", "name"), [(30, False, "PHB"), (50, True, "NV4"), (10, False, "PIX")]
)
def test_nvml(monkeypatch, connection, p2p, name):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(connection, p2p))
    host = machine()
    found = gpu.graphics(host)
    assert found.topology == (("X", name), (name, "X"))
    assert found.driver.cuda == "12.8"
    expected = Gpu(0, "NVIDIA H200", "GPU-0", "0000:00:00.0", "9.0", 8, 6, True, None)
    assert found.gpus[0] == expected
    assert [item.fact for item in host.unknown] == ["gpus[0].processes", "gpus[1].processes"]


def test_links_are_those_of_visible_gpus():
    facts = load(DUAL)
    assert facts.links() == ("PHB",)
    hidden = tuple(replace(item, visible=item.index == 1) for item in facts.gpus)
    assert replace(facts, gpus=hidden).links() == ()
    assert replace(facts, topology=None).links() is None
    assert replace(facts, topology=(("X",),)).links() is None
