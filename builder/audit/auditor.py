"""Runs every check on one wheel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from builder.audit.contents import Contents, read_contents
from builder.audit.device import check_ptx, check_sass
from builder.audit.hygiene import check_paths, check_secrets
from builder.audit.identity import check_metadata, check_modules, check_record, check_tags
from builder.audit.linkage import (
    Providers,
    check_libraries,
    check_machine,
    check_search_path,
    check_symbols,
)
from builder.audit.policy import Policy, default_policy
from builder.audit.pythonapi import check_python_api
from builder.audit.report import AuditReport, Check, Module
from builder.audit.symbols import SymbolTable, read_symbols
from builder.audit.versions import check_platform, check_version, highest, limits
from builder.cache import InputCache
from kvreg.model.profile import Profile

SYMBOLS_FOLDER = "symbols"
"""The folder of the builder's cache that holds symbol tables."""


def audit_wheel(
    wheel: Path,
    profile: Profile,
    torch_wheel: Path | None = None,
    *,
    library_wheels: Sequence[Path] = (),
    filename: str | None = None,
    torch_filename: str | None = None,
    cache: InputCache | None = None,
    policy: Policy | None = None,
    jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> AuditReport:
    """Ask every question of a wheel; a failing check is a value, never an exception.

    `torch_wheel` is the one that was compiled against: without it, symbols that torch would
    provide cannot be looked up, and that check is skipped. `library_wheels` are wheels of
    libraries (``nvidia-cublas-cu12``) whose symbols shall be looked up too, not only their names.
    `filename` and `torch_filename` replace the files' names where they lie in a cache by digest.
    Symbol tables are kept in `cache` (default: the builder's). `progress` is called with numbers
    of unpacked bytes. Raises NotFoundError for a missing file, and VerificationError for one
    that is not a whole wheel.
    """
    policy = policy or default_policy()
    tables = (cache or InputCache()).folder(SYMBOLS_FOLDER)
    torch = read_symbols(torch_wheel, tables, filename=torch_filename) if torch_wheel else None
    others = tuple(read_symbols(path, tables) for path in library_wheels)
    contents = read_contents(wheel, policy, filename=filename, jobs=jobs, progress=progress)
    return AuditReport(
        filename=contents.filename,
        size=contents.size,
        sha256=contents.sha256,
        profile=profile.name,
        torch_wheel=torch.wheel if torch else None,
        torch_sha256=torch.sha256 if torch else None,
        modules=tuple(_module(contents)),
        checks=_checks(contents, profile, policy, torch, others),
    )


def _checks(
    contents: Contents,
    profile: Profile,
    policy: Policy,
    torch: SymbolTable | None,
    others: Sequence[SymbolTable],
) -> tuple[Check, ...]:
    providers = Providers.of(contents, profile, policy, torch, others)
    return (
        check_metadata(contents, profile),
        check_tags(contents, profile),
        check_record(contents),
        check_modules(contents, profile),
        check_machine(contents, profile),
        check_sass(contents, profile),
        check_ptx(contents, profile),
        *(check_version(contents, limit) for limit in limits(profile)),
        check_platform(contents, profile),
        check_libraries(contents, providers),
        check_search_path(contents),
        check_symbols(contents, providers),
        check_python_api(contents, profile),
        check_paths(contents, policy),
        check_secrets(contents, policy),
    )


def _module(contents: Contents) -> list[Module]:
    return [
        Module(
            path=member.path,
            size=member.size,
            sha256=member.sha256,
            needed=member.elf.needed if member.elf else (),
            versions={
                family: found
                for family in ("GLIBC", "GLIBCXX", "CXXABI")
                if (found := highest(member, family))
            },
            sass=dict(member.device.sass) if member.device else {},
            ptx=dict(member.device.ptx) if member.device else {},
        )
        for member in contents.members
        if member.is_module or member.device
    ]
