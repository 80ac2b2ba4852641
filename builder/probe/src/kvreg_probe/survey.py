"""The order of questions to CUDA, and what the answers mean. Every host fact is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvreg_probe.driver import KernelDriver
from kvreg_probe.report import (
    Build,
    Check,
    CudaFailure,
    Device,
    Driver,
    Link,
    Problem,
    ReasonCode,
    Report,
    Transfer,
    TransferKind,
)
from kvreg_probe.transfer import (
    DEVICE_BYTES,
    DEVICE_REPETITIONS,
    LINK_BYTES,
    LINK_REPETITIONS,
    MIB,
    copy_bytes,
    measured,
    skipped,
)

_STUB_LIBRARY = 34
_INSUFFICIENT_DRIVER = 35
_INVALID_DEVICE_FUNCTION = 98  # what older runtimes answer where newer ones say 209
_NO_DEVICE = 100
_NO_KERNEL_IMAGE = 209

_Answer = Mapping[str, Any]


class Native(Protocol):
    """The native module's functions; see `_native.pyi`."""

    def build(self) -> _Answer: ...
    def versions(self) -> _Answer: ...
    def devices(self) -> _Answer: ...
    def device(self, index: int, /) -> _Answer: ...
    def image(self, index: int, /) -> _Answer: ...
    def free_memory(self, index: int, /) -> _Answer: ...
    def checks(self, index: int, /) -> _Answer: ...
    def copy_within(self, index: int, bytes: int, repetitions: int, /) -> _Answer: ...
    def link(self, source: int, target: int, /) -> _Answer: ...
    def copy_between(
        self, source: int, target: int, peer: bool, bytes: int, repetitions: int, /
    ) -> _Answer: ...


def survey(
    native: Native, kernel_driver: KernelDriver | None, visible_devices: str | None
) -> Report:
    """Ask `native` everything and judge the answers.

    `visible_devices` is the value of CUDA_VISIBLE_DEVICES, None when it is not set: it explains a
    machine whose devices are hidden.
    """
    build = _read_build(native.build())
    versions = native.versions()
    driver = Driver(
        version=kernel_driver.version if kernel_driver else None,
        source=kernel_driver.source if kernel_driver else None,
        cuda=_cuda_version(versions.get("driver_api", 0)),
    )
    answer = native.devices()
    failure = _failure(answer)
    absence = _absence(failure, answer.get("devices", 0), driver, visible_devices)
    if absence is not None:
        code, reason = absence
        return Report("no-gpu", build, driver, reason=reason, reason_code=code)
    if failure is not None:
        return Report("failed", build, driver, problems=(_start_problem(failure, build, driver),))
    return _Survey(native, build).report(driver, answer["devices"])


def _absence(
    failure: CudaFailure | None, count: int, driver: Driver, visible_devices: str | None
) -> tuple[ReasonCode, str] | None:
    """Tell a machine without a GPU, which is fine, from one whose GPU cannot be used."""
    code = failure.code if failure else None
    if code == _STUB_LIBRARY:
        return "stub-driver", "libcuda.so.1 is the toolkit's stub library, not a driver"
    if code == _INSUFFICIENT_DRIVER and driver.cuda is None:
        if driver.version is None:
            return "no-driver", "no NVIDIA driver: libcuda.so.1 was not found"
        return "no-driver", (
            f"driver {driver.version} is loaded, but its library libcuda.so.1 was not found: "
            "the container may have been started without the driver's libraries"
        )
    if code == _NO_DEVICE or (failure is None and count == 0):
        hidden = (
            "" if visible_devices is None else f" (CUDA_VISIBLE_DEVICES is {visible_devices!r})"
        )
        return "no-device", f"no CUDA device is visible to the driver{hidden}"
    return None


def _start_problem(failure: CudaFailure, build: Build, driver: Driver) -> Problem:
    if failure.code == _INSUFFICIENT_DRIVER:
        major = build.cuda_runtime.partition(".")[0]
        return Problem(
            code="driver-too-old",
            what="the driver is older than the CUDA runtime of this build",
            expected=f"a driver for CUDA {major}.0 or newer",
            found=f"driver {driver.version or 'of unknown version'} for CUDA {driver.cuda}",
            remedy=f"update the driver, or use a build for CUDA older than {major}.0",
            cuda=failure,
        )
    return _cuda_problem(failure, "CUDA could not be started")


@dataclass
class _Survey:
    """One run over the devices; collects problems on the way."""

    native: Native
    build: Build
    problems: list[Problem] = field(default_factory=list)

    def report(self, driver: Driver, count: int) -> Report:
        devices = tuple(
            device for index in range(count) if (device := self.device(index)) is not None
        )
        # A device that failed may hang or poison a copy; its links would tell nothing new.
        sound = [device.index for device in devices if device.status == "ok"]
        links = tuple(
            link
            for source in sound
            for target in sound
            if source != target and (link := self.link(source, target)) is not None
        )
        status = "failed" if self.problems else "ok"
        return Report(
            status, self.build, driver, devices=devices, links=links, problems=tuple(self.problems)
        )

    def device(self, index: int) -> Device | None:
        facts = self.ask(self.native.device(index), "the device cannot be read", index)
        if facts is None:
            return None
        before = len(self.problems)
        sass = self.image(index, facts)
        checks: tuple[Check, ...] = ()
        transfer = None
        if sass is not None:
            checks = self.checks(index)
        if len(self.problems) == before:
            transfer = self.device_transfer(index)
        return Device(
            index=index,
            status="ok" if len(self.problems) == before else "failed",
            name=facts["name"],
            uuid=facts["uuid"],
            pci_bus_id=facts["pci_bus_id"],
            compute_capability=_capability(facts),
            multiprocessors=facts["multiprocessors"],
            memory_mib=facts["memory_bytes"] // MIB,
            peak_gb_per_s=round(facts["peak_gb_per_s"], 2) or None,
            sass=sass,
            checks=checks,
            transfer=transfer,
        )

    def image(self, index: int, facts: _Answer) -> str | None:
        answer = self.native.image(index)
        failure = _failure(answer)
        if failure is None:
            major, minor = divmod(answer["binary_version"], 10)
            return f"{major}.{minor}"
        if failure.code not in (_NO_KERNEL_IMAGE, _INVALID_DEVICE_FUNCTION):
            self.problems.append(_cuda_problem(failure, "the kernels cannot be loaded", index))
            return None
        found = _capability(facts)
        self.problems.append(
            Problem(
                code="no-kernel-image",
                what="no kernel image for this device",
                expected=f"compute capability {' or '.join(self.build.compute_capabilities)}, "
                "all that this build has machine code for",
                found=f"{facts['name']} with compute capability {found}",
                remedy=f"use a build for compute capability {found}",
                device=index,
                cuda=failure,
            )
        )
        return None

    def checks(self, index: int) -> tuple[Check, ...]:
        answer = self.ask(self.native.checks(index), "the checked kernels did not run", index)
        if answer is None:
            return ()
        checks = tuple(
            Check(status="failed" if entry["mismatches"] else "ok", **entry)
            for entry in answer["checks"]
        )
        for check in checks:
            if check.status == "failed":
                self.problems.append(
                    Problem(
                        code="wrong-result",
                        what=f"the device computes wrong numbers in {check.name}",
                        expected=f"{check.elements} elements within: {check.tolerance}",
                        found=f"{check.mismatches} outside, worst error {check.worst_error:g}",
                        remedy="take the device out of use and test its memory",
                        device=index,
                    )
                )
        return checks

    def device_transfer(self, index: int) -> Transfer | None:
        memory = self.ask(self.native.free_memory(index), "free memory is unknown", index)
        if memory is None:
            return None
        size = copy_bytes(DEVICE_BYTES, memory["free_bytes"])
        if size is None:
            return skipped("device", _too_little(index, memory["free_bytes"]))
        answer = self.native.copy_within(index, size, DEVICE_REPETITIONS)
        return self.transfer("device", size, answer, index)

    def link(self, source: int, target: int) -> Link | None:
        before = len(self.problems)
        facts = self.ask(
            self.native.link(source, target), "peer access cannot be read", source, target
        )
        if facts is None:
            return None
        transfers = self.link_transfers(source, target, facts)
        return Link(
            source=source,
            target=target,
            status="ok" if len(self.problems) == before else "failed",
            peer_access=facts["peer_access"],
            native_atomics=facts["native_atomics"],
            performance_rank=facts["performance_rank"],
            transfers=transfers,
        )

    def link_transfers(self, source: int, target: int, facts: _Answer) -> tuple[Transfer, ...]:
        size = LINK_BYTES
        for index in (source, target):
            memory = self.ask(self.native.free_memory(index), "free memory is unknown", index)
            if memory is None:
                return ()
            possible = copy_bytes(LINK_BYTES, memory["free_bytes"])
            if possible is None:
                reason = _too_little(index, memory["free_bytes"])
                return (skipped("peer", reason), skipped("staged", reason))
            size = min(size, possible)

        def copy(kind: TransferKind) -> Transfer:
            answer = self.native.copy_between(
                source, target, kind == "peer", size, LINK_REPETITIONS
            )
            return self.transfer(kind, size, answer, source, target)

        peer = (
            copy("peer")
            if facts["peer_access"]
            else skipped("peer", "the devices have no peer access to each other")
        )
        staged = (
            skipped("staged", "peer access was already enabled by other code of this process")
            if facts["already_enabled"]
            else copy("staged")
        )
        return (peer, staged)

    def transfer(
        self,
        kind: TransferKind,
        size: int,
        answer: _Answer,
        device: int,
        peer: int | None = None,
    ) -> Transfer:
        failure = _failure(answer)
        if failure is not None:
            self.problems.append(_cuda_problem(failure, f"the {kind} copy failed", device, peer))
            return Transfer(kind, "failed", bytes=size, reason=f"{failure.call}: {failure.text}")
        transfer = measured(kind, size, answer)
        if transfer.status == "corrupt":
            self.problems.append(
                Problem(
                    code="corrupt-copy",
                    what=f"the {kind} copy arrived with other bytes than were sent",
                    expected=f"{size // 4} equal 32-bit words",
                    found=f"{transfer.differing_words} differ",
                    remedy="switch off the IOMMU or PCIe access control (ACS) for the devices, or "
                    "run without peer access"
                    if kind == "peer"
                    else "take the device out of use and test its memory",
                    device=device,
                    peer=peer,
                )
            )
        return transfer

    def ask(
        self, answer: _Answer, what: str, device: int, peer: int | None = None
    ) -> _Answer | None:
        """The answer, or None after its failure was noted."""
        failure = _failure(answer)
        if failure is None:
            return answer
        self.problems.append(_cuda_problem(failure, what, device, peer))
        return None


def _read_build(answer: _Answer) -> Build:
    return Build(
        version=answer["version"],
        compute_capabilities=tuple(answer["compute_capabilities"].split(",")),
        cuda_compiler=answer["cuda_compiler"],
        host_compiler=answer["host_compiler"],
        cuda_runtime=_cuda_version(answer["runtime_api"]) or "",
    )


def _cuda_version(number: int) -> str | None:
    """12040 is CUDA 12.4; 0 is what the runtime answers without a driver."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _capability(facts: _Answer) -> str:
    return f"{facts['major']}.{facts['minor']}"


def _failure(answer: _Answer) -> CudaFailure | None:
    return CudaFailure(**answer["failure"]) if "failure" in answer else None


def _cuda_problem(
    failure: CudaFailure, what: str, device: int | None = None, peer: int | None = None
) -> Problem:
    return Problem(
        "cuda-error",
        what,
        expected="cudaSuccess",
        found=f"{failure.call}: {failure.name} ({failure.code}), {failure.text}",
        remedy="see the driver's log (dmesg) and whether another process uses the device",
        device=device,
        peer=peer,
        cuda=failure,
    )


def _too_little(index: int, free: int) -> str:
    return f"device {index} has {free // MIB} MiB free, too little for a measurement"
