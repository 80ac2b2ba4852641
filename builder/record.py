"""The build record: everything that a build was made of and what it cost, as data and as a page."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.build import Built
from builder.cache import file_sha256
from builder.toolchain_packages import recorded_packages
from kvreg.errors import UsageError
from kvreg.model.profile import Profile

SCHEMA = "vnd.kvreg.build-record.v1"


def make_record(profile: Profile, built: Built) -> dict[str, Any]:
    """The record of a build as JSON-ready data, its ``audit`` still None.

    Times in seconds, sizes and memory in bytes.
    """
    wheel = built.wheel
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "profile": profile_facts(profile),
        "recipe": profile.build.recipe,
        "runtime": {
            "package": profile.runtime.package,
            "version": profile.runtime.version,
            "upstream_tag": profile.runtime.upstream_tag,
            "upstream_commit": profile.runtime.upstream_commit,
        },
        "compute_capabilities": list(profile.build.compute_capabilities),
        "started": built.started.isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
        },
        "cost": {
            "wall_seconds": built.wall_seconds,
            "cpu_seconds": built.cpu_seconds,
            "peak_memory_bytes": built.peak_memory_bytes,
        },
        "wheel": wheel_facts(wheel),
        "inputs": [_input(item) for item in built.inputs],
        "omissions": [o.to_dict() for o in profile.build.omissions],
        "audit": None,
    }
    if built.thinning is not None:
        record["thinning"] = built.thinning
    if built.toolchain is not None and built.jobs is not None:
        record["toolchain"] = built.toolchain.to_dict()
        record["network"] = "none"
        record["jobs"] = {"count": built.jobs.count, "reason": built.jobs.reason}
        record["environment"] = built.environment
        record["steps"] = list(built.steps)
        record["compile_cache"] = built.compile_cache
        record["compile_cache_storage"] = built.compile_cache_storage
        record["units"] = [
            {"module": u.module, "source": u.source, "seconds": u.seconds} for u in built.units
        ]
    return record


def profile_facts(profile: Profile) -> dict[str, str]:
    """What a record says of its profile; `build` is the digest of what reached the build."""
    return {"name": profile.name, "digest": profile.digest, "build": profile.build_digest}


def is_build_of(record: dict[str, Any], profile: Profile) -> bool:
    """Whether the recorded wheel is what a build of this profile makes.

    Records from before profiles had overlays name one digest, which then was that of both.
    """
    found = record["profile"]
    return bool(found.get("build", found["digest"]) == profile.build_digest)


def wheel_facts(wheel: Path) -> dict[str, Any]:
    """What a record says of its wheel; size in bytes."""
    return {
        "filename": wheel.name,
        "size": wheel.stat().st_size,
        "sha256": file_sha256(wheel),
        "modules": shared_objects(wheel),
    }


@dataclass(frozen=True)
class ToolchainFacts:
    """What a record says of its toolchain; packages as in `builder.toolchain`.

    `inputs` is the digest of the definition that the image was made from.
    """

    name: str
    image_digest: str
    inputs: str
    cuda_version: str
    gcc: str
    glibc: str
    python: str
    packages: tuple[tuple[str, str, str, str], ...]


def toolchain_facts(record: dict[str, Any]) -> ToolchainFacts | None:
    """The toolchain of a record; None for an adopted wheel."""
    found = record.get("toolchain")
    if found is None:
        return None
    return ToolchainFacts(
        name=found["name"],
        image_digest=found["image_digest"],
        inputs=found["inputs"],
        cuda_version=found["cuda_version"],
        gcc=found["gcc"],
        glibc=found["glibc"],
        python=found["versions"]["python"],
        packages=recorded_packages(found["packages"]),
    )


def shared_objects(wheel: Path) -> list[dict[str, Any]]:
    """path, size and sha256 of every shared object in a wheel."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".so"):
                with archive.open(info) as member:
                    digest = hashlib.file_digest(member, "sha256").hexdigest()
                found.append({"path": info.filename, "size": info.file_size, "sha256": digest})
    return found


def _input(item: Any) -> dict[str, Any]:
    entry = {
        "name": item.name,
        "version": item.version,
        "kind": item.kind,
        "filename": item.filename,
        "size": item.size,
        "sha256": item.sha256,
    }
    if item.members:
        entry["members"] = [
            {"path": m.path, "size": m.size, "sha256": m.sha256} for m in item.members
        ]
    return entry


def read_record(path: Path) -> dict[str, Any]:
    """Read a record file. Raises UsageError when it is none."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a build record", found=str(error)) from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"{path} is not a build record", expected=SCHEMA, found=repr(schema))
    return record


def page(record: dict[str, Any]) -> str:
    """A record as a Markdown page for people."""
    wheel, runtime = record["wheel"], record["runtime"]
    lines = [
        f"# Build of {record['profile']['name']}",
        "",
        f"`{wheel['filename']}`, {wheel['size']:,} bytes, sha256 `{wheel['sha256']}`.",
        "",
        *_table(
            ("what", "value"),
            [
                ("profile", f"{record['profile']['name']} (`{record['profile']['digest']}`)"),
                ("runtime", f"{runtime['package']} {runtime['version']}"),
                *_upstream(runtime),
                ("compute capabilities", ", ".join(record["compute_capabilities"])),
                ("recipe", record["recipe"]),
                *_how(record),
            ],
        ),
    ]
    if record.get("steps"):
        lines += ["", "## Steps", ""]
        lines += _table(
            ("step", "seconds"), [(s["name"], f"{s['seconds']:,.1f}") for s in record["steps"]]
        )
    lines += ["", "## Audit", ""]
    lines += _table(
        ("check", "status", "required", "found"),
        [
            (c["name"], c["status"], c.get("required") or "", c.get("found") or "")
            for c in (record["audit"] or {}).get("checks", ())
        ],
    )
    lines += ["", "## Modules", ""]
    lines += _table(
        ("module", "bytes", "sha256"),
        [(m["path"], f"{m['size']:,}", f"`{m['sha256'][:16]}…`") for m in wheel["modules"]],
    )
    if record.get("thinning"):
        lines += ["", "## Taken out of upstream's wheel", "", *_thinning(record["thinning"])]
    if record["omissions"]:
        lines += ["", "## Left out on purpose", ""]
        lines += _table(("what", "why"), [(o["name"], o["reason"]) for o in record["omissions"]])
    if record.get("units"):
        lines += ["", f"## Translation units ({len(record['units'])})", ""]
        if any(record.get("compile_cache", {}).get(k) for k in _HITS):
            lines += [
                "Some objects came from the compile cache; their times are no compile times.",
                "",
            ]
        lines += _table(
            ("seconds", "module", "source"),
            [(f"{u['seconds']:,.1f}", u["module"], u["source"]) for u in record["units"]],
        )
    lines += ["", f"## Inputs ({len(record['inputs'])})", ""]
    lines += _table(
        ("input", "kind", "bytes", "sha256"),
        [
            (
                i["filename"],
                f"{len(i['members'])} members of the wheel" if i.get("members") else i["kind"],
                f"{sum(m['size'] for m in i['members']) if i.get('members') else i['size']:,}",
                f"`{i['sha256'][:16]}…`",
            )
            for i in record["inputs"]
        ],
    )
    if record.get("environment"):
        lines += ["", "## Environment of the compile", "", "```"]
        lines += [f"{k}={v}" for k, v in sorted(record["environment"].items())] + ["```"]
    return "\n".join(lines) + "\n"


_HITS = ("direct_cache_hit", "preprocessed_cache_hit")


def _upstream(runtime: dict[str, str]) -> list[tuple[str, str]]:
    if not runtime["upstream_tag"]:
        return []
    return [("upstream", f"{runtime['upstream_tag']} at `{runtime['upstream_commit']}`")]


def _how(record: dict[str, Any]) -> list[tuple[str, str]]:
    cost = record["cost"]
    rows = [("started", record["started"]), ("wall time", _duration(cost["wall_seconds"]))]
    if "toolchain" not in record:
        return rows
    toolchain, machine = record["toolchain"], record["machine"]
    cache = record["compile_cache"]
    hits = sum(cache.get(k, 0) for k in _HITS)
    rows += [
        ("CPU time", f"{cost['cpu_seconds']:,.0f} s"),
        ("peak memory of the container", f"{cost['peak_memory_bytes'] / 1024**3:.1f} GiB"),
        ("machine", f"{machine['cores']} cores, {machine['memory_bytes'] / 1024**3:.0f} GiB"),
        ("jobs", f"{record['jobs']['count']}: {record['jobs']['reason']}"),
        ("toolchain", f"{toolchain['name']} (`{toolchain['image_digest']}`)"),
        (
            "compilers",
            f"nvcc {toolchain['cuda_version']}, gcc {toolchain['gcc']}, glibc {toolchain['glibc']}",
        ),
        ("network during the build", record["network"]),
        (
            "compile cache",
            f"{hits} hits, {cache.get('cache_miss', 0)} misses" if cache else "not used",
        ),
    ]
    return rows


def _thinning(facts: dict[str, Any]) -> list[str]:
    upstream = facts["upstream"]
    rows = [
        (
            item["path"],
            f"{item['before']['size']:,}",
            f"{item['after']['size']:,}",
            _payloads(item["kept"]),
            _payloads(item["removed"]),
        )
        for item in facts["modules"]
    ]
    rows += [
        (item["path"], "", "left out", item["reason"], _payloads(item["removed"]))
        for item in facts["dropped"]
    ]
    return [
        f"From `{upstream['filename']}`, {upstream['size']:,} bytes, sha256"
        f" `{upstream['sha256']}`, for {', '.join(facts['architectures'])}. All other sections of"
        " every module were compared and are the same.",
        "",
        *_table(("module", "bytes before", "after", "kept", "removed"), rows),
    ]


def _payloads(entries: dict[str, dict[str, int]]) -> str:
    found = [f"{item['count']} {name} ({item['bytes']:,})" for name, item in entries.items()]
    return ", ".join(found) or "nothing"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min ({seconds:,.0f} s)"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(_cell(text) for text in row) + " |" for row in rows),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
