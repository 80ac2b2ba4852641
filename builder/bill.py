"""The bill of materials of a recorded wheel, and putting it into the wheel (PEP 770)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.build import locked_inputs
from builder.inputs import Input
from builder.record import toolchain_facts
from builder.wheelfile import embed_sbom
from kvreg.model.profile import Profile


def embed_bill(wheel: Path, profile: Profile, folder: Path, record: dict[str, Any]) -> str | None:
    """Put its bill into a wheel that was made here; its path there, None when nothing changed."""
    if toolchain_facts(record) is None and "thinning" not in record:
        return None
    document = bill_of_materials(profile, folder, record, embedded=True)
    done = embed_sbom(wheel, document, profile.build.source_date_epoch)
    return done.path if done.changed else None


def bill_of_materials(
    profile: Profile, folder: Path, record: dict[str, Any], *, embedded: bool
) -> bytes:
    """The bill of materials of a recorded wheel: for the artifact, or for the wheel itself."""
    from builder.overlay_lock import overlay_inputs
    from builder.sbom import WheelFacts, build_sbom

    roles = locked_inputs(profile, folder)
    inputs = tuple(item for role in roles.values() for item in role)
    facts = record["wheel"]
    return build_sbom(
        profile=profile,
        wheel=WheelFacts(
            facts["filename"],
            None if embedded else facts["sha256"],
            None if embedded else facts["size"],
            tuple((m["path"], m["sha256"]) for m in facts["modules"]),
        ),
        inputs=inputs,
        toolchain=toolchain_facts(record),
        torch=locked_torch(inputs),
        omissions=profile.build.omissions,
        roles=roles,
        overlay=() if embedded else overlay_inputs(profile, folder),
        thinning=record.get("thinning"),
    )


def locked_torch(inputs: tuple[Input, ...]) -> Input | None:
    """The torch wheel among inputs."""
    return next((i for i in inputs if (i.name, i.kind) == ("torch", "wheel")), None)
