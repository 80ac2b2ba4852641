"""Reads a wheel once and tells what is in it: the facts on which every check is based."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from builder.audit.elf import ELF_MAGIC, ElfError, ElfFacts, read_elf
from builder.audit.policy import Policy
from builder.audit.scan import Finding, find_paths, find_secrets
from builder.audit.wheel import RecordRow, Wheel, member_problem, record_digest
from builder.fatbin import (
    MAGIC_BYTES,
    Buffer,
    Entry,
    FatbinError,
    Kind,
    Region,
    iter_entries,
    parse_fatbin,
)
from builder.fatbin_payload import check_cubin, cubin_architecture, unpack

MAX_FINDINGS = 50
"""Findings kept for one member: enough to act on, whatever the member holds."""


@dataclass(frozen=True)
class DeviceCode:
    """The device code of one member. `regions` counts translation units.

    `sass`, `ptx` and `other` map an architecture (``sm_75``, ``compute_80``) to the number of
    its entries; `other` is code that is neither, such as LTO-IR. `problem` says why the code
    could not be read, or why an entry is not what its header says.
    """

    regions: int = 0
    sass: Mapping[str, int] = field(default_factory=dict)
    ptx: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class MemberFacts:
    """One member of a wheel; `size` is unpacked bytes, `sha256` hex, `record_digest` base64."""

    path: str
    size: int
    sha256: str
    record_digest: str
    elf: ElfFacts | None = None
    elf_problem: str | None = None
    device: DeviceCode | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def is_module(self) -> bool:
        """Whether this is a file for the dynamic loader: ELF, and not a cubin by itself."""
        return self.elf_problem is not None or (self.elf is not None and self.elf.machine != "cuda")


@dataclass(frozen=True)
class Contents:
    """Everything that the checks read of a wheel; `sha256` is hex, `members` in zip order."""

    filename: str
    size: int
    sha256: str
    dist_info: str | None
    name: str | None
    version: str | None
    tags: tuple[str, ...]
    requires: tuple[str, ...]
    members: tuple[MemberFacts, ...]
    record: tuple[RecordRow, ...] | None
    unhashed: frozenset[str]
    refused: Mapping[str, str]

    @property
    def modules(self) -> tuple[MemberFacts, ...]:
        """The members that the dynamic loader would load."""
        return tuple(member for member in self.members if member.is_module)


def read_contents(
    path: Path,
    policy: Policy,
    *,
    filename: str | None = None,
    jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Contents:
    """Read every member of a wheel once. `filename` replaces the file's own name.

    Members are unpacked, hashed and searched in `jobs` threads (default: one a core, four at
    most); `progress` is called with numbers of unpacked bytes. Raises VerificationError for a
    file that is not a whole zip file, NotFoundError when there is none.
    """
    with Wheel(path, filename) as wheel:
        refused = _refused(wheel)
        infos = [info for info in wheel.members if info.filename not in refused]

        def inspect(info: zipfile.ZipInfo) -> MemberFacts:
            facts = _inspect(wheel, info, policy)
            if progress:
                progress(info.file_size)
            return facts

        workers = jobs or min(4, os.cpu_count() or 1)
        # The largest first: the last thread to finish then has least to do.
        order = sorted(infos, key=lambda info: (-info.file_size, info.filename))
        with ThreadPoolExecutor(max_workers=workers + 1) as pool:
            digest = pool.submit(wheel.sha256)
            facts = {member.path: member for member in pool.map(inspect, order)}
        headers, tags = wheel.metadata(), wheel.wheel_metadata()
        return Contents(
            filename=wheel.filename,
            size=wheel.size,
            sha256=digest.result(),
            dist_info=wheel.dist_info,
            name=_text(headers["Name"]),
            version=_text(headers["Version"]),
            tags=tuple(str(tag).strip() for tag in tags.get_all("Tag", [])),
            requires=tuple(str(item) for item in headers.get_all("Requires-Dist", [])),
            members=tuple(facts[info.filename] for info in infos),
            record=wheel.record(),
            unhashed=frozenset(path for path in facts if wheel.is_unhashed(path)),
            refused=refused,
        )


def _text(header: object) -> str | None:
    return None if header is None else str(header).strip()


def _refused(wheel: Wheel) -> dict[str, str]:
    counts = Counter(info.filename for info in wheel.members)
    refused = {name: "it is there more than once" for name, count in counts.items() if count > 1}
    for info in wheel.members:
        if problem := member_problem(info):
            refused[info.filename] = problem
    return refused


def _inspect(wheel: Wheel, info: zipfile.ZipInfo, policy: Policy) -> MemberFacts:
    with wheel.open(info) as (data, digest):
        elf, elf_problem, device = None, None, None
        regions: tuple[Region, ...] = ()
        magic = bytes(data[:4])
        if magic == ELF_MAGIC:
            try:
                elf = read_elf(data)
            except ElfError as error:
                elf_problem = "; ".join(filter(None, (error.what, error.found)))
        try:
            regions, device = _device_code(data, magic, elf, info.filename)
        except FatbinError as error:
            device = DeviceCode(problem="; ".join(filter(None, (error.what, error.found))))
        try:
            findings = _findings(data, regions, policy)
        except FatbinError as error:  # a payload that does not unpack
            device = replace(device or DeviceCode(), problem=error.what)
            findings = _findings(data, (), policy)
        return MemberFacts(
            path=info.filename,
            size=len(data),
            sha256=digest.hex(),
            record_digest=record_digest(digest),
            elf=elf,
            elf_problem=elf_problem,
            device=device,
            findings=findings,
        )


def _device_code(
    data: Buffer, magic: bytes, elf: ElfFacts | None, name: str
) -> tuple[tuple[Region, ...], DeviceCode | None]:
    if magic == MAGIC_BYTES:
        ranges = ((0, len(data)),)
    elif elf is not None and elf.machine == "cuda":
        return (), _cubin(bytes(data[:64]))
    elif elf is not None and elf.fatbin:
        ranges = elf.fatbin
    elif name.endswith(".ptx"):
        return (), DeviceCode(ptx={"compute": 1})
    else:
        return (), None
    regions = tuple(region for start, end in ranges for region in parse_fatbin(data, start, end))
    counts: dict[str, Counter[str]] = {"sass": Counter(), "ptx": Counter(), "other": Counter()}
    problem = None
    for entry in iter_entries(regions):
        if entry.is_sass:
            counts["sass"][entry.architecture] += 1
            if problem is None and entry.kind == Kind.CUBIN and (wrong := check_cubin(data, entry)):
                problem = f"the entry for {entry.architecture} at byte {entry.offset}: {wrong}"
        else:
            counts["ptx" if entry.kind == Kind.PTX else "other"][entry.architecture] += 1
    return regions, DeviceCode(regions=len(regions), problem=problem, **counts)


def _cubin(head: bytes) -> DeviceCode:
    found = cubin_architecture(head)
    if found is None:
        return DeviceCode(problem="it is a CUDA ELF file of an unknown layout")
    return DeviceCode(regions=1, sass={f"sm_{found[0]}{'a' if found[1] else ''}": 1})


def _findings(data: Buffer, regions: tuple[Region, ...], policy: Policy) -> tuple[Finding, ...]:
    found = list(islice(find_paths(data, policy), MAX_FINDINGS))
    for entry in iter_entries(regions):
        if entry.kind in (Kind.CUBIN, Kind.PTX) and entry.compression:
            found += _in_payload(data, entry, policy)
    # Device code holds no text of ours but file names of assertions: searched for paths alone.
    position = 0
    for region in (*regions, None):
        end = region.offset if region else len(data)
        if end > position and len(found) < 2 * MAX_FINDINGS:
            part = data if not regions else bytes(data[position:end])
            found += islice(find_secrets(part, policy), MAX_FINDINGS)
        position = region.end if region else end
    return tuple(found)


def _in_payload(data: Buffer, entry: Entry, policy: Policy) -> list[Finding]:
    payload = unpack(data, entry)
    where = entry.payload_offset
    return [
        Finding(found.kind, where, f"{found.text} (in {entry.architecture} code)")
        for found in islice(find_paths(payload, policy), MAX_FINDINGS)
    ]
