"""The probe's judgement, with every host fact as an argument: no GPU and no build are needed."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

PROBE = Path(__file__).parents[2] / "builder" / "probe"
if str(PROBE / "src") not in sys.path:
    sys.path.insert(0, str(PROBE / "src"))

from kvreg_probe.driver import KernelDriver, parse_module_version  # noqa: E402
from kvreg_probe.report import Report  # noqa: E402
from kvreg_probe.survey import survey  # noqa: E402
from kvreg_probe.table import render  # noqa: E402
from kvreg_probe.transfer import LEAST_BYTES, MIB, copy_bytes  # noqa: E402

SCHEMA = json.loads((PROBE / "src" / "kvreg_probe" / "report.schema.json").read_text())
DRIVER = KernelDriver("580.159.04", "nvml")

T4 = {
    "name": "Tesla T4",
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "pci_bus_id": "0000:00:04.0",
    "major": 7,
    "minor": 5,
    "multiprocessors": 40,
    "memory_bytes": 15_828_320_256,
    "peak_gb_per_s": 320.064,
}
P100 = T4 | {"name": "Tesla P100-PCIE-16GB", "major": 6, "minor": 0, "multiprocessors": 56}
CHECK = {
    "name": "int32-product",
    "elements": 49949,
    "mismatches": 0,
    "worst_error": 0.0,
    "worst_ratio": 0.0,
    "tolerance": "exact, modulo 2^32",
}
MMA = CHECK | {"name": "fp16-mma-rounded", "worst_error": 1e-6, "worst_ratio": 0.03}


def failure(call: str, code: int, name: str, text: str) -> dict[str, Any]:
    return {"failure": {"call": call, "code": code, "name": name, "text": text}}


NO_IMAGE = failure(
    "cudaFuncGetAttributes",
    209,
    "cudaErrorNoKernelImageForDevice",
    "no kernel image is available for execution on the device",
)
STUB = failure("cudaGetDeviceCount", 34, "cudaErrorStubLibrary", "a stub library")
NO_DEVICE = failure("cudaGetDeviceCount", 100, "cudaErrorNoDevice", "no device")
INSUFFICIENT = failure("cudaGetDeviceCount", 35, "cudaErrorInsufficientDriver", "insufficient")


class Recording:
    """The native module's answers on a machine, and which questions were asked."""

    def __init__(self, *devices: dict[str, Any], **answers: Any) -> None:
        self.facts = devices
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def answer(self, question: str, key: Any, otherwise: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((question, key))
        answers = self.answers.get(question, {})
        return deepcopy(answers.get(key, answers.get("all", otherwise)))

    def build(self) -> dict[str, Any]:
        return {
            "version": "0.1.0+cu128.sm75",
            "compute_capabilities": "7.5",
            "cuda_compiler": "12.4.131",
            "host_compiler": "GNU 12.2.0",
            "runtime_api": 12040,
        }

    def versions(self) -> dict[str, Any]:
        return self.answer("versions", None, {"driver_api": 13000, "runtime_api": 12040})

    def devices(self) -> dict[str, Any]:
        return self.answer("devices", None, {"devices": len(self.facts)})

    def device(self, index: int) -> dict[str, Any]:
        return self.answer("device", index, self.facts[index])

    def image(self, index: int) -> dict[str, Any]:
        return self.answer("image", index, {"binary_version": 75})

    def free_memory(self, index: int) -> dict[str, Any]:
        return self.answer("free_memory", index, {"free_bytes": 15_000 * MIB})

    def checks(self, index: int) -> dict[str, Any]:
        return self.answer("checks", index, {"checks": [CHECK, MMA]})

    def copy_within(self, index: int, bytes: int, repetitions: int) -> dict[str, Any]:
        times = [2.2, *[2.0] * (repetitions - 2), 1.8]
        return self.answer("copy_within", index, {"milliseconds": times, "differing_words": 0})

    def link(self, source: int, target: int) -> dict[str, Any]:
        facts = {"peer_access": True, "already_enabled": False, "native_atomics": False}
        return self.answer("link", (source, target), facts | {"performance_rank": 0})

    def copy_between(
        self, source: int, target: int, peer: bool, bytes: int, repetitions: int
    ) -> dict[str, Any]:
        times = [6.0 if peer else 12.0] * repetitions
        return self.answer(
            "copy_between",
            (source, target, peer),
            {"milliseconds": times, "differing_words": 0},
        )


def judged(native: Recording, driver: KernelDriver | None = DRIVER, hidden=None) -> Report:
    """Every report fits the schema, and its text can be written."""
    report = survey(native, driver, hidden)
    jsonschema.validate(report.to_dict(), SCHEMA)
    json.dumps(report.to_dict(), allow_nan=False)
    assert report.status in render(report)
    return report


def test_two_devices_pass() -> None:
    report = judged(Recording(T4, T4))
    assert (report.status, report.exit_code, report.problems) == ("ok", 0, ())
    assert report.driver.cuda == "13.0"
    assert report.build.cuda_runtime == "12.4"
    device = report.devices[1]
    assert (device.compute_capability, device.sass, device.memory_mib) == ("7.5", "7.5", 15095)
    assert device.transfer is not None
    # 256 MiB read and 256 MiB written in 2 ms.
    assert device.transfer.median_gb_per_s == pytest.approx(268.44)
    assert device.transfer.best_gb_per_s == pytest.approx(298.26)
    assert [(link.source, link.target) for link in report.links] == [(0, 1), (1, 0)]
    peer, staged = report.links[0].transfers
    # 64 MiB in 6 ms and in 12 ms, each byte counted once.
    assert (peer.kind, peer.median_gb_per_s) == ("peer", pytest.approx(11.18))
    assert (staged.kind, staged.median_gb_per_s) == ("staged", pytest.approx(5.59))


@pytest.mark.parametrize("code", [209, 98])
def test_another_architecture_is_a_coded_failure_that_names_both(code: int) -> None:
    image = deepcopy(NO_IMAGE)
    image["failure"]["code"] = code
    native = Recording(P100, image={0: image})
    report = judged(native)
    assert (report.status, report.exit_code) == ("failed", 1)
    (problem,) = report.problems
    assert (problem.code, problem.what) == ("no-kernel-image", "no kernel image for this device")
    assert "7.5" in problem.expected
    assert "Tesla P100-PCIE-16GB" in problem.found
    assert "6.0" in problem.found
    assert report.devices[0].sass is None
    assert not [question for question, _ in native.asked if question in ("checks", "copy_within")]
    text = render(report)
    assert "no kernel image for this device" in text
    assert "7.5" in text
    assert "6.0" in text


def test_one_bad_device_does_not_hide_the_others() -> None:
    launch = failure("integer_product", 700, "cudaErrorIllegalAddress", "an illegal access")
    report = judged(Recording(T4, T4, T4, checks={1: launch}))
    assert [device.status for device in report.devices] == ["ok", "failed", "ok"]
    assert [(link.source, link.target) for link in report.links] == [(0, 2), (2, 0)]
    (problem,) = report.problems
    assert (problem.code, problem.device) == ("cuda-error", 1)
    assert problem.cuda is not None
    assert problem.cuda.call == "integer_product"


def test_a_device_that_cannot_be_read_is_a_problem() -> None:
    lost = failure("cudaGetDeviceProperties", 999, "cudaErrorUnknown", "unknown error")
    report = judged(Recording(T4, T4, device={0: lost}))
    assert report.exit_code == 1
    assert [device.index for device in report.devices] == [1]
    assert report.problems[0].device == 0


def test_wrong_numbers_are_a_problem() -> None:
    wrong = MMA | {"mismatches": 7, "worst_error": 12.5}
    report = judged(Recording(T4, checks={0: {"checks": [CHECK, wrong]}}))
    assert [check.status for check in report.devices[0].checks] == ["ok", "failed"]
    (problem,) = report.problems
    assert (problem.code, problem.device) == ("wrong-result", 0)
    assert "fp16-mma-rounded" in problem.what
    assert "7 outside" in problem.found


def test_bytes_that_arrive_changed_are_a_problem() -> None:
    corrupt = {"milliseconds": [6.0] * 10, "differing_words": 12}
    report = judged(Recording(T4, T4, copy_between={(0, 1, True): corrupt}))
    (problem,) = report.problems
    assert (problem.code, problem.device, problem.peer) == ("corrupt-copy", 0, 1)
    assert report.links[0].status == "failed"
    assert [transfer.status for transfer in report.links[0].transfers] == ["corrupt", "measured"]
    assert "CORRUPT" in render(report)


def test_no_peer_access_leaves_the_staged_copy() -> None:
    facts = {"peer_access": False, "already_enabled": False, "native_atomics": False}
    report = judged(Recording(T4, T4, link={"all": facts | {"performance_rank": 1}}))
    assert report.status == "ok"
    assert [transfer.status for transfer in report.links[0].transfers] == ["skipped", "measured"]


def test_peer_access_of_the_host_process_is_left_alone() -> None:
    facts = {"peer_access": True, "already_enabled": True, "native_atomics": False}
    native = Recording(T4, T4, link={"all": facts | {"performance_rank": 0}})
    peer, staged = judged(native).links[0].transfers
    assert (peer.status, staged.status) == ("measured", "skipped")
    assert "already enabled" in staged.reason
    assert ("copy_between", (0, 1, False)) not in native.asked


def test_a_full_device_is_checked_but_not_measured() -> None:
    native = Recording(T4, T4, free_memory={1: {"free_bytes": 20 * MIB}})
    report = judged(native)
    assert report.status == "ok"
    assert report.devices[1].transfer.status == "skipped"
    assert "20 MiB free" in report.devices[1].transfer.reason
    assert {t.status for link in report.links for t in link.transfers} == {"skipped"}


@pytest.mark.parametrize(
    ("native", "driver", "hidden", "code", "words"),
    [
        (
            Recording(versions={None: {"driver_api": 0}}, devices={None: INSUFFICIENT}),
            None,
            None,
            "no-driver",
            "libcuda.so.1 was not found",
        ),
        (
            Recording(versions={None: {"driver_api": 0}}, devices={None: INSUFFICIENT}),
            DRIVER,
            None,
            "no-driver",
            "driver 580.159.04 is loaded",
        ),
        (
            Recording(devices={None: STUB}),
            None,
            None,
            "stub-driver",
            "stub library",
        ),
        (
            Recording(devices={None: NO_DEVICE}),
            DRIVER,
            "",
            "no-device",
            "CUDA_VISIBLE_DEVICES is ''",
        ),
        (Recording(), DRIVER, None, "no-device", "no CUDA device is visible"),
    ],
)
def test_a_machine_without_a_gpu_is_no_failure(
    native: Recording, driver: KernelDriver | None, hidden: str | None, code: str, words: str
) -> None:
    report = judged(native, driver, hidden)
    assert (report.status, report.exit_code, report.reason_code) == ("no-gpu", 0, code)
    assert words in report.reason
    assert words in render(report)


def test_an_old_driver_is_a_failure() -> None:
    native = Recording(versions={None: {"driver_api": 11040}}, devices={None: INSUFFICIENT})
    report = judged(native, KernelDriver("470.82.01", "nvml"))
    assert report.exit_code == 1
    (problem,) = report.problems
    assert problem.code == "driver-too-old"
    assert "12.0" in problem.expected
    assert "470.82.01" in problem.found
    assert "11.4" in problem.found


def test_a_driver_that_does_not_start_is_a_failure() -> None:
    mismatch = failure("cudaGetDeviceCount", 803, "cudaErrorSystemDriverMismatch", "mismatch")
    report = judged(Recording(devices={None: mismatch}))
    assert (report.status, report.problems[0].code) == ("failed", "cuda-error")
    assert "cudaGetDeviceCount" in report.problems[0].found


@given(wanted=st.integers(1, 1 << 32), free=st.integers(0, 1 << 40))
def test_copy_sizes_leave_half_of_the_free_memory(wanted: int, free: int) -> None:
    size = copy_bytes(wanted, free)
    if size is None:
        assert min(wanted, free // 4) < LEAST_BYTES
    else:
        assert LEAST_BYTES <= size <= wanted
        assert 2 * size <= free // 2
        assert size % MIB == 0


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC\n"
            "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
            "(dvs-builder@host)\nGCC version:  gcc version 12.3.0\n",
            "580.159.04",
        ),
        ("GCC version:  gcc version 12.3.0\n", None),
        ("", None),
    ],
)
def test_the_kernel_modules_version(text: str, version: str | None) -> None:
    assert parse_module_version(text) == version


@given(st.text())
def test_any_text_is_a_version_or_none(text: str) -> None:
    version = parse_module_version(text)
    assert version is None or version in text
