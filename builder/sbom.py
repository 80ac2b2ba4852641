"""The bill of materials of a built wheel: CycloneDX 1.6 as JSON, the same bytes for the same facts.

What is where:

* ``metadata.component``: the wheel; inside it every shared object with its hash. Its properties
  hold the profile, its digest, and what the build left out on purpose.
* ``components``: the locked inputs (members of a wheel that was read in part are inside theirs),
  torch as the host provides it, and the toolchain image with its packages inside.
* ``dependencies``: the wheel depends on its modules, torch and the source inputs; a module on what
  was compiled into it or against: source inputs, torch, the toolchain.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType, Pedigree
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from builder import __version__
from builder.inputs import Input
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import parse_digest
from kvreg.model.profile import Omission, Profile

MEDIA_TYPE = "application/vnd.cyclonedx+json"
NAMESPACE = uuid.UUID("5b6f0c1e-3d0a-5f4b-9a55-6f8c52c4a1d6")
"""Serial numbers are name-based UUIDs in this namespace, over the facts of the document."""

_PREFIX = "vnd.kvreg:"


@dataclass(frozen=True)
class WheelFacts:
    """A wheel: `size` in bytes, `sha256` hex, modules as (path in the wheel, sha256).

    Size and hash are None in the document that becomes a part of the wheel.
    """

    filename: str
    sha256: str | None
    size: int | None
    modules: tuple[tuple[str, str], ...]


class Toolchain(Protocol):
    """What the document says of a toolchain image.

    `packages` are (type of package URL, name, version, sha256).
    """

    @property
    def name(self) -> str: ...
    @property
    def image_digest(self) -> str: ...
    @property
    def inputs(self) -> str: ...
    @property
    def cuda_version(self) -> str: ...
    @property
    def gcc(self) -> str: ...
    @property
    def glibc(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def packages(self) -> Sequence[tuple[str, str, str, str]]: ...


def build_sbom(
    *,
    profile: Profile,
    wheel: WheelFacts,
    inputs: Sequence[Input],
    toolchain: Toolchain | None,
    torch: Input | None,
    omissions: Sequence[Omission] = (),
    roles: Mapping[str, Sequence[Input]] | None = None,
    overlay: Sequence[Input] = (),
    thinning: Mapping[str, Any] | None = None,
) -> bytes:
    """The document as UTF-8 JSON with a closing newline.

    `toolchain` is None for an adopted wheel. `roles` tells which inputs are of the ``source`` lock
    and which of the ``build`` lock, as `builder.build.locked_inputs` returns them: build inputs
    are marked as excluded from the result; without it no input is. `overlay` are wheels that are
    shipped beside this one. `thinning` are the facts of a thinned wheel (`builder.thin_wheel`): the
    wheel then names its ancestor, and its modules what was kept and removed. The timestamp is the
    profile's ``source_date_epoch``. A `wheel` without a hash makes the document that goes into it.
    Raises ContractError for a profile whose lock files are missing.
    """
    used_to_build = {item.filename for item in (roles or {}).get("build", ())}
    if torch is not None and torch not in inputs:
        inputs = (*inputs, torch)
    root = _wheel(profile, wheel, omissions, thinning)
    modules = list(root.components)
    parts = {item: _input(item, item.filename in used_to_build, torch) for item in inputs}
    beside = [_overlay(item) for item in overlay]
    sources = [part for item, part in parts.items() if item.filename not in used_to_build]
    hosted = [part for item, part in parts.items() if item == torch]
    embedded = wheel.sha256 is None
    image = [_toolchain(toolchain, embedded)] if toolchain is not None else []
    compiled = _unique([*sources, *hosted, *image])
    dependencies = [
        _dependency(root, _unique([*modules, *sources, *hosted, *beside])),
        # An adopted wheel's modules were compiled elsewhere, from what nobody here has seen.
        *(_dependency(module, compiled if image else hosted) for module in modules),
        *(_dependency(part, ()) for part in (*parts.values(), *beside, *image)),
    ]
    bom = Bom(
        serial_number=uuid.uuid5(
            NAMESPACE,
            _identity(profile, wheel, (*inputs, *overlay), toolchain, omissions, thinning).hex(),
        ),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(profile.build.source_date_epoch, UTC),
            component=root,
            tools=ToolRepository(
                components=[
                    Component(
                        name="kvreg-builder",
                        version=__version__,
                        type=ComponentType.APPLICATION,
                        bom_ref="tool:kvreg-builder",
                    )
                ]
            ),
        ),
        components=[*parts.values(), *beside, *image],
        dependencies=dependencies,
    )
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    # The library's key order is not promised, and its output is one line.
    return (
        json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    )


def _wheel(
    profile: Profile,
    wheel: WheelFacts,
    omissions: Iterable[Omission],
    thinning: Mapping[str, Any] | None,
) -> Component:
    thinned = {item["path"]: item for item in (thinning or {}).get("modules", ())}
    runtime, build = profile.runtime, profile.build
    properties = {
        "filename": wheel.filename,
        "size": "" if wheel.size is None else str(wheel.size),
        "profile": profile.name,
        "profile-digest": _profile_digest(profile, wheel),
        "recipe": build.recipe,
        "role": runtime.role,
        "compute-capabilities": ",".join(build.compute_capabilities),
        "ptx": str(build.ptx).lower(),
        "upstream-tag": runtime.upstream_tag,
        "upstream-commit": runtime.upstream_commit,
    }
    properties |= {f"omission:{item.name}": item.reason for item in omissions}
    return Component(
        name=runtime.package,
        version=runtime.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"wheel:{wheel.filename}",
        purl=_pypi(runtime.package, runtime.version, wheel.filename),
        hashes=[] if wheel.sha256 is None else [_sha256(wheel.sha256)],
        properties=_properties(properties),
        components=[
            Component(
                name=path,
                type=ComponentType.FILE,
                bom_ref=f"module:{path}",
                hashes=[_sha256(sha256)],
                properties=_properties({"kind": "shared-object"} | _thinned(thinned.get(path))),
            )
            for path, sha256 in wheel.modules
        ],
        pedigree=_pedigree(runtime.package, thinning) if thinning else None,
    )


def _thinned(item: Mapping[str, Any] | None) -> dict[str, str]:
    if item is None:
        return {}
    return {
        "upstream-sha256": item["before"]["sha256"],
        "kept": _payloads(item["kept"]),
        "removed": _payloads(item["removed"]),
        "emptied": item.get("emptied", ""),
    }


def _payloads(entries: Mapping[str, Mapping[str, int]]) -> str:
    texts = [f"{item['count']} {name}: {item['bytes']} bytes" for name, item in entries.items()]
    return ", ".join(texts) or "nothing"


def _pedigree(package: str, thinning: Mapping[str, Any]) -> Pedigree:
    upstream = thinning["upstream"]
    version = upstream["filename"].split("-")[1]
    dropped = [item["path"] for item in thinning["dropped"]]
    notes = f"device code for {', '.join(thinning['architectures'])} alone"
    return Pedigree(
        ancestors=[
            Component(
                name=package,
                version=version,
                type=ComponentType.LIBRARY,
                bom_ref=f"ancestor:{upstream['filename']}",
                purl=_pypi(package, version, upstream["filename"]),
                hashes=[_sha256(upstream["sha256"])],
            )
        ],
        notes=notes + (f"; left out: {', '.join(dropped)}" if dropped else ""),
    )


def _input(item: Input, used_to_build: bool, torch: Input | None) -> Component:
    is_host = item == torch
    properties = {
        "filename": item.filename,
        "size": str(item.size),
        "input-kind": item.kind,
        "provided-by": "host" if is_host else "",
        "use": "compiled against, not included"
        if is_host
        else "build"
        if used_to_build
        else "source",
    }
    # Torch is needed at run time, but by the host's own copy.
    scope = ComponentScope.EXCLUDED if used_to_build and not is_host else ComponentScope.REQUIRED
    return Component(
        name=item.name,
        version=item.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"input:{item.kind}:{item.filename}",
        purl=(
            PackageURL(type="generic", name=item.name, version=item.version)
            if item.kind == "tree"
            else _pypi(item.name, item.version, item.filename)
        ),
        scope=scope,
        hashes=[_sha256(item.sha256)],
        properties=_properties(properties),
        components=[
            Component(
                name=member.path,
                type=ComponentType.FILE,
                bom_ref=f"member:{item.filename}:{member.path}",
                hashes=[_sha256(member.sha256)],
                properties=_properties({"size": str(member.size)}),
            )
            for member in item.members
        ],
    )


def _overlay(item: Input) -> Component:
    return Component(
        name=item.name,
        version=item.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"overlay:{item.filename}",
        purl=_pypi(item.name, item.version, item.filename),
        scope=ComponentScope.REQUIRED,
        hashes=[_sha256(item.sha256)],
        properties=_properties(
            {"filename": item.filename, "size": str(item.size), "use": "shipped beside the wheel"}
        ),
    )


def _toolchain(toolchain: Toolchain, embedded: bool) -> Component:
    distribution = "ubuntu" if "ubuntu" in toolchain.name else "debian"
    properties = {
        "definition": toolchain.inputs,
        "cuda": toolchain.cuda_version,
        "gcc": toolchain.gcc,
        "glibc": toolchain.glibc,
    }
    return Component(
        name=toolchain.name,
        version=_image(toolchain, embedded),
        type=ComponentType.CONTAINER,
        bom_ref=f"toolchain:{toolchain.name}",
        scope=ComponentScope.EXCLUDED,
        hashes=[] if embedded else [_sha256(parse_digest(toolchain.image_digest))],
        properties=_properties(
            properties if embedded else properties | {"python": toolchain.python}
        ),
        components=[
            Component(
                name=name,
                version=version,
                type=ComponentType.LIBRARY,
                bom_ref=f"package:{name}:{version}",
                purl=PackageURL(
                    type=origin,
                    namespace=distribution if origin == "deb" else None,
                    name=name,
                    version=version,
                ),
                hashes=[_sha256(sha256)] if sha256 else [],
            )
            for origin, name, version, sha256 in dict.fromkeys(
                map(tuple, () if embedded else toolchain.packages)
            )
        ],
    )


def _profile_digest(profile: Profile, wheel: WheelFacts) -> str:
    # Inside the wheel: only of what the build saw, so that a new overlay leaves the wheel as it is.
    return profile.build_digest if wheel.sha256 is None else profile.digest


def _identity(
    profile: Profile,
    wheel: WheelFacts,
    inputs: Iterable[Input],
    toolchain: Toolchain | None,
    omissions: Iterable[Omission],
    thinning: Mapping[str, Any] | None,
) -> bytes:
    """Everything that the document is made of, in one canonical form."""
    return canonical_json(
        {
            "builder": __version__,
            "profile": _profile_digest(profile, wheel),
            "wheel": {**asdict(wheel), "modules": [list(module) for module in wheel.modules]},
            "inputs": sorted(f"{item.kind}:{item.filename}:{item.sha256}" for item in inputs),
            "toolchain": _image(toolchain, wheel.sha256 is None) if toolchain else None,
            "omissions": sorted([item.name, item.reason] for item in omissions),
            # Only where there is any: documents of other wheels keep their serial number.
            **({"thinning": thinning} if thinning else {}),
        }
    )


def _image(toolchain: Toolchain, embedded: bool) -> str:
    return toolchain.inputs if embedded else toolchain.image_digest


def _dependency(component: Component, parts: Iterable[Component]) -> Dependency:
    return Dependency(component.bom_ref, [Dependency(part.bom_ref) for part in parts])


def _unique(components: Iterable[Component]) -> list[Component]:
    return list({str(part.bom_ref): part for part in components}.values())


def _properties(values: Mapping[str, str]) -> list[Property]:
    return [Property(name=_PREFIX + name, value=value) for name, value in values.items() if value]


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _pypi(name: str, version: str, filename: str) -> PackageURL:
    return PackageURL(type="pypi", name=name, version=version, qualifiers={"file_name": filename})
