"""``registry attach``: a file becomes a referrer of an artifact."""

import re
from pathlib import Path

import click

from kvreg.console import emit
from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.model.oci import MEDIA_TYPE_EVIDENCE, MEDIA_TYPE_PROVENANCE, MEDIA_TYPE_SBOM
from kvreg.sweep.evidence import Evidence, read_evidence
from registry.attach import attach
from registry.commands.options import reference_argument, subcommand, with_target
from registry.store import open_store

TYPES = {
    "evidence": MEDIA_TYPE_EVIDENCE,
    "sbom": MEDIA_TYPE_SBOM,
    "provenance": MEDIA_TYPE_PROVENANCE,
}
ANNOTATION_PLAN = "vnd.kvreg.sweep.plan"
ANNOTATION_STATES = "vnd.kvreg.sweep.states"
ANNOTATION_LABEL = "vnd.kvreg.sweep.label"

_MEDIA_TYPE = re.compile(r"[a-z0-9]+/[\w.+-]+")


@subcommand(
    "attach oci-layout:dist/registry:t4x2-cu128 sweep.evidence.tar --type evidence\n"
    "attach ghcr.io/you/runtimes@sha256:… notes.txt --type text/plain"
)
@reference_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--type",
    "kind",
    required=True,
    metavar="TYPE",
    help=f"One of {', '.join(TYPES)}, or a media type.",
)
def attach_command(reference: str, file: Path, kind: str, as_json: bool) -> None:
    """Attach a file to the artifact REF as a referrer.

    Evidence of a sweep is checked: every file in it, and that it was made with exactly this
    artifact. The same file attached twice changes nothing.
    """
    media_type = TYPES.get(kind, kind)
    if _MEDIA_TYPE.fullmatch(media_type) is None:
        raise UsageError(
            "this is no type", expected=f"{', '.join(TYPES)} or a media type", found=kind
        )
    evidence = read_evidence(file) if media_type == MEDIA_TYPE_EVIDENCE else None
    parsed, target = with_target(reference)
    with open_store(parsed) as store:
        subject = store.resolve(target)
        if subject is None:
            raise NotFoundError(
                f"{store.location} has no {target}", remedy=f"see: registry ls {store.location}"
            )
        if evidence is not None and evidence.artifact != subject.digest:
            raise ContractError(
                "the sweep ran another artifact",
                expected=subject.digest,
                found=evidence.artifact or "none: another engine",
            )
        annotations = evidence_annotations(evidence) if evidence else {}
        attached = attach(store, subject, media_type, file, file.name, annotations)
    emit(attached, as_json, lambda found: f"{found.digest} attached to {subject.digest}")


def evidence_annotations(evidence: Evidence) -> dict[str, str]:
    """What lists of referrers show of a sweep."""
    states = ", ".join(f"{count} {state}" for state, count in evidence.states.items())
    label = {ANNOTATION_LABEL: evidence.label} if evidence.label else {}
    return {ANNOTATION_PLAN: evidence.plan, ANNOTATION_STATES: states, **label}
