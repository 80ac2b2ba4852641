"""Will the dynamic loader find every library and every symbol on the profile's host?"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.audit.contents import Contents, MemberFacts
from builder.audit.elf import Undefined
from builder.audit.policy import Policy, Provider
from builder.audit.pythonapi import is_python_symbol
from builder.audit.report import Check
from builder.audit.symbols import Library, SymbolTable
from kvreg.model.profile import Profile


@dataclass(frozen=True)
class Providers:
    """Everything that may satisfy a module: the host, torch, torch's requirements, the wheel."""

    policy: Policy
    cuda: int
    torch: SymbolTable | None
    others: tuple[SymbolTable, ...]
    own: dict[str, Library]

    @classmethod
    def of(
        cls,
        contents: Contents,
        profile: Profile,
        policy: Policy,
        torch: SymbolTable | None,
        others: Sequence[SymbolTable] = (),
    ) -> Providers:
        """What the profile's host offers to the wheel's modules."""
        own = {}
        for member in contents.modules:
            if member.elf is not None:
                name = member.elf.soname or PurePosixPath(member.path).name
                own[name] = Library(member.path, name, member.elf.needed, member.elf.defined)
        cuda = profile.host.torch_cuda.validated.partition(".")[0]
        major = int(cuda) if cuda.isdigit() else 0
        return cls(policy, major, torch, tuple(others), own)

    def library(self, soname: str) -> Library | None:
        """The library of that name whose symbols are known: the wheel's, or of a given wheel."""
        tables = [table.libraries for table in (self.torch, *self.others) if table is not None]
        for libraries in (self.own, *tables):
            if soname in libraries:
                return libraries[soname]
        return None

    def closure(self, sonames: Iterable[str]) -> list[str]:
        """The sonames and all that they need in turn, in the loader's order."""
        waiting, found = list(sonames), dict[str, None]()
        while waiting:
            soname = waiting.pop(0)
            if soname not in found:
                found[soname] = None
                library = self.library(soname)
                waiting += library.needed if library else ()
        return list(found)

    def source(self, soname: str) -> str | None:
        """Who brings a library, in words; None when nobody does."""
        if soname in self.policy.host_libraries:
            return "host"
        if soname in self.own:
            return "the wheel"
        if self.torch is not None:
            if soname in self.torch.libraries:
                return "torch"
        elif soname in self.policy.torch_libraries:
            return "torch"
        for table in self.others:
            if soname in table.libraries:
                return table.name
        provider = self.policy.provider(soname, self.cuda)
        if provider is None:
            return None
        if provider.is_driver:
            return "driver"
        return provider.distribution if self._required_by_torch(provider) else None

    def _required_by_torch(self, provider: Provider) -> bool:
        if self.torch is None:
            return True
        return any(_names(text, provider) for text in self.torch.requires)


def _names(requirement: str, provider: Provider) -> bool:
    try:
        found = Requirement(requirement)
    except InvalidRequirement:
        return False
    if "extra" in str(found.marker):
        return False
    name = canonicalize_name(found.name)
    # torch for CUDA 13 names the toolkit's extras in place of its parts.
    by_toolkit = name == "cuda-toolkit" and provider.toolkit_extra in found.extras
    return name == provider.distribution or by_toolkit


def check_machine(contents: Contents, profile: Profile) -> Check:
    """Every module is a whole ELF file for the host's machine."""
    arch = profile.host.arch.validated
    required = f"ELF modules for {arch}"
    problems = []
    for member in contents.modules:
        if member.elf is None:
            problems.append(f"{member.path}: {member.elf_problem}")
        elif member.elf.machine != arch:
            problems.append(f"{member.path}: for {member.elf.machine}")
    if not problems:
        return Check("machine", "pass", required, f"{len(contents.modules)} modules")
    return Check(
        "machine",
        "fail",
        required,
        f"{len(problems)} other modules",
        where=tuple(problems),
        remedy=f"build on {arch}, and keep the dynamic sections when stripping",
    )


def check_libraries(contents: Contents, providers: Providers) -> Check:
    """Every NEEDED library comes from the host, driver, torch, its requirements or the wheel."""
    required = "NEEDED libraries from the host, the driver, torch, its requirements, or the wheel"
    problems, sources = [], set()
    for member in contents.modules:
        for soname in member.elf.needed if member.elf else ():
            source = providers.source(soname)
            if source is None:
                problems.append(f"{member.path}: {soname}{_hint(soname, providers)}")
            else:
                sources.add(source)
    if not problems:
        found = f"all found in {', '.join(sorted(sources))}" if sources else "none needed"
        return Check("libraries", "pass", required, found)
    return Check(
        "libraries",
        "fail",
        required,
        f"{len(problems)} that nobody provides",
        where=tuple(problems),
        remedy="link against what the profile's torch uses, link it statically, or ship it in the "
        "wheel beside the module with an $ORIGIN search path",
    )


def _hint(soname: str, providers: Providers) -> str:
    for provider in providers.policy.providers:
        if provider.soname == soname and provider.cuda not in (None, providers.cuda):
            return (
                f" (of CUDA {provider.cuda}, while the host's torch is for CUDA {providers.cuda})"
            )
    provider = providers.policy.provider(soname, providers.cuda)
    return f" ({provider.distribution} is no requirement of torch)" if provider else ""


def check_search_path(contents: Contents) -> Check:
    """No RPATH or RUNPATH leads to a fixed place, or to wherever the process happens to be."""
    required = "RPATH and RUNPATH absent, or below $ORIGIN"
    problems, found = [], set()
    for member in contents.modules:
        if member.elf is None:
            continue
        for kind, parts in (("RPATH", member.elf.rpath), ("RUNPATH", member.elf.runpath)):
            for part in parts:
                if part.startswith(("$ORIGIN", "${ORIGIN}")):
                    found.add(part)
                else:
                    problems.append(
                        f"{member.path}: {kind} {part or '(empty: the working folder)'}"
                    )
    if not problems:
        return Check("search path", "pass", required, ", ".join(sorted(found)) or "none")
    return Check(
        "search path",
        "fail",
        required,
        f"{len(problems)} others",
        where=tuple(problems),
        remedy="set CMAKE_SKIP_RPATH=ON, or remove it with `patchelf --remove-rpath`",
    )


def check_symbols(contents: Contents, providers: Providers) -> Check:
    """Every undefined symbol that is not weak is exported by something the module has loaded."""
    table = providers.torch
    source = f"torch {table.version}" if table else "torch"
    required = f"undefined symbols found in {source}, the libraries it needs, the host or the wheel"
    missing: list[tuple[str, str, str]] = []
    count = 0
    for member in contents.modules:
        if member.elf is None:
            continue
        finder = _Finder(member, providers)
        count += sum(not symbol.weak for symbol in member.elf.undefined)
        missing += [
            (member.path, symbol.name, finder.hint(symbol))
            for symbol in member.elf.undefined
            if not symbol.weak and not finder.finds(symbol)
        ]
    names = readable({name for _, name, _ in missing})
    problems = [f"{path}: {names[name]}{hint}" for path, name, hint in missing]
    if not problems:
        return Check("symbols", "pass", required, f"{count:,} symbols, all found")
    if table is None:
        return Check(
            "symbols",
            "skip",
            required,
            f"{len(problems):,} symbols that torch would have to provide",
            where=_by_module(missing, names),
            remedy="give the wheel that was compiled against: --torch-wheel PATH",
        )
    return Check(
        "symbols",
        "fail",
        required,
        f"{len(problems):,} of {count:,} symbols are not found",
        where=tuple(problems),
        remedy="the module was compiled against another torch, or does not link a library it uses: "
        f"compile against exactly {table.wheel}",
    )


def _by_module(
    missing: Sequence[tuple[str, str, str]], names: Mapping[str, str]
) -> tuple[str, ...]:
    counts = Counter(path for path, _, _ in missing)
    samples = {path: names[name] for path, name, _ in reversed(missing)}
    return tuple(f"{path}: {n}, such as {samples[path]}" for path, n in counts.items())


class _Finder:
    """Looks for symbols among what the loader has when it loads one module."""

    def __init__(self, member: MemberFacts, providers: Providers) -> None:
        assert member.elf is not None
        self.providers = providers
        # An extension module is opened with local scope: itself and what it needs, in turn. That
        # `import torch` has loaded a library before does not make its symbols visible.
        self.scope = providers.closure(member.elf.needed)

    def finds(self, symbol: Undefined) -> bool:
        if symbol.version is not None:
            library = self.providers.library(symbol.version.file)
            return library is None or symbol.name in library.symbols
        if is_python_symbol(symbol.name):
            return True  # another check's question
        libraries = (self.providers.library(soname) for soname in self.scope)
        if any(library and symbol.name in library.symbols for library in libraries):
            return True
        return any(provider.soname in self.scope for provider in self._exporters(symbol))

    def _exporters(self, symbol: Undefined) -> Iterator[Provider]:
        """The libraries of the policy that export a name, unless their symbols are known."""
        for provider in self.providers.policy.providers:
            if provider.cuda in (None, self.providers.cuda) and provider.symbols.fullmatch(
                symbol.name
            ):
                library = self.providers.library(provider.soname)
                if library is None or symbol.name in library.symbols:
                    yield provider

    def hint(self, symbol: Undefined) -> str:
        if symbol.version is not None:
            return f" of {symbol.version.file}"
        for provider in self._exporters(symbol):
            return f" (of {provider.soname}, which is not NEEDED)"
        if self.providers.torch is not None:
            for library in self.providers.torch.libraries.values():
                if symbol.name in library.symbols:
                    return f" (in torch's {library.soname}, which is not NEEDED)"
        return ""


def readable(names: Iterable[str]) -> dict[str, str]:
    """C++ names as people write them, where binutils is installed; else as they are."""
    result = {name: name for name in names}
    mangled = sorted(name for name in result if name.startswith("_Z"))
    tool = shutil.which("c++filt")
    if not mangled or tool is None:
        return result
    try:
        done = subprocess.run(
            [tool], input="\n".join(mangled), capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return result
    plain = done.stdout.splitlines()
    if len(plain) == len(mangled):
        pairs = zip(mangled, plain, strict=True)
        result |= {name: f"{text} [{name}]" for name, text in pairs if text != name}
    return result
