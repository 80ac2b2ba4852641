"""A report as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from kvreg_probe.report import Build, Device, Driver, Link, Problem, Report, Transfer


def render(report: Report) -> str:
    """Write the report as lines; those of problems come last, where they are seen."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield _build_line(report.build)
    yield _driver_line(report.driver)
    for device in report.devices:
        yield ""
        yield from _device_lines(device)
    if report.links:
        yield ""
    for link in report.links:
        yield _link_line(link)
    for problem in report.problems:
        yield ""
        yield from _problem_lines(problem)
    yield ""
    yield f"{report.status}: {_summary(report)}"


def _build_line(build: Build) -> str:
    return (
        f"kvreg-probe {build.version}: machine code for compute capability "
        f"{', '.join(build.compute_capabilities)}; nvcc {build.cuda_compiler}, "
        f"{build.host_compiler}, CUDA runtime {build.cuda_runtime}"
    )


def _driver_line(driver: Driver) -> str:
    version = f"driver {driver.version} ({driver.source})" if driver.version else "driver: none"
    return f"{version}, CUDA {driver.cuda}" if driver.cuda else version


def _device_lines(device: Device) -> Iterator[str]:
    yield (
        f"GPU {device.index}: {device.name}, compute capability {device.compute_capability}, "
        f"{device.multiprocessors} multiprocessors, {device.memory_mib} MiB, {device.pci_bus_id}"
    )
    for check in device.checks:
        right = check.elements - check.mismatches
        yield f"  {check.name:<18} {check.status:<7} {right} of {check.elements} right" + (
            f", worst error {check.worst_ratio:.2g} of the bound" if check.worst_ratio else ""
        )
    if device.transfer is not None:
        peak = f" (peak {device.peak_gb_per_s:g})" if device.peak_gb_per_s else ""
        yield f"  {'device copy':<18} {_transfer_text(device.transfer)}{peak}"


def _link_line(link: Link) -> str:
    texts = [f"{transfer.kind} {_transfer_text(transfer)}" for transfer in link.transfers]
    access = "peer access" if link.peer_access else "no peer access"
    return f"GPU {link.source} -> GPU {link.target}: " + "; ".join([access, *texts])


def _transfer_text(transfer: Transfer) -> str:
    if transfer.median_gb_per_s is None:
        return f"{transfer.status}" + (f" ({transfer.reason})" if transfer.reason else "")
    corrupt = ", CORRUPT" if transfer.status == "corrupt" else ""
    return f"{transfer.median_gb_per_s:.1f} GB/s{corrupt}"


def _problem_lines(problem: Problem) -> Iterator[str]:
    where = "" if problem.device is None else f"GPU {problem.device}"
    if problem.peer is not None:
        where += f" -> GPU {problem.peer}"
    yield f"problem [{problem.code}]: " + (f"{where}: " if where else "") + problem.what
    for label, text in (
        ("expected", problem.expected),
        ("found", problem.found),
        ("remedy", problem.remedy),
    ):
        if text:
            yield f"  {label + ':':<10}{text}"


def _summary(report: Report) -> str:
    if report.status == "no-gpu":
        return report.reason or ""
    if report.status == "failed":
        count = len(report.problems)
        return f"{count} problem{'s' if count != 1 else ''}"
    count = len(report.devices)
    return f"{count} device{'s' if count != 1 else ''} checked"
