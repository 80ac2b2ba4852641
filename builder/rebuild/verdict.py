"""The outcome of a rebuild as an in-toto statement about the artifact and its wheel.

It says what one builder found on one machine. ``identical`` means that these sources, with this
recipe and toolchain, give the published bytes; it does not say that the sources are good.
"""

from __future__ import annotations

import json
import platform
from typing import Any

from builder import __version__
from builder.key import recipe_digest
from builder.provenance import BUILDER, check_builder_id
from builder.rebuild.making import Rebuilt
from builder.recipes.model import recipe
from builder.sources import builder_digest
from kvreg.model.digest import parse_digest
from kvreg.model.oci import MEDIA_TYPE_MANIFEST
from kvreg.model.signature import STATEMENT_TYPE

PREDICATE_TYPE = "urn:kvreg:predicate:rebuild-verdict:v1"
SCHEMA = "vnd.kvreg.rebuild-verdict.v1"
FILENAME = "rebuild-verdict.json"
NOT_IDENTICAL = 6
"""Exit code of a rebuild, or a comparison, that did not give the same bytes."""


def build_verdict(rebuilt: Rebuilt, builder_id: str | None = None) -> bytes:
    """The statement as UTF-8 JSON with a closing newline.

    `builder_id` is the URI of who rebuilt. Raises UsageError when it is none.
    """
    published, comparison = rebuilt.published, rebuilt.comparison
    title = str(published.wheel.title)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": published.profile.name,
                "digest": {"sha256": parse_digest(published.descriptor.digest)},
                "mediaType": MEDIA_TYPE_MANIFEST,
            },
            {"name": title, "digest": {"sha256": parse_digest(published.wheel.digest)}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "schema": SCHEMA,
            "verdict": comparison.verdict,
            "published": {"filename": title, **comparison.a.to_dict()},
            "rebuilt": {"filename": rebuilt.wheel.name, **comparison.b.to_dict()},
            "unnamed": list(published.unnamed),
            "despite": [change.to_dict() for change in rebuilt.changes],
            # a is the published wheel, b the rebuilt one.
            "comparison": comparison.to_dict(),
            "from": _from(rebuilt),
            "environment": _environment(rebuilt),
            "builder": {"id": check_builder_id(builder_id), "version": {BUILDER: __version__}},
        },
    }
    text = json.dumps(statement, indent=1, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8") + b"\n"


def _from(rebuilt: Rebuilt) -> dict[str, Any]:
    """What it was rebuilt from; the parts in ``despite`` are not the published ones."""
    published = rebuilt.published
    made = recipe(published.profile.build.recipe)
    return {
        "profile": published.profile.digest,
        "provenance": published.provenance.digest,
        "record": published.provenance.record if published.record is not None else None,
        "signedBy": published.signature.key if published.signature else None,
        "recipe": {"name": made.name, "digest": recipe_digest(made), "named": published.recipe},
        "builder": {"digest": builder_digest(), "named": published.provenance.builder},
    }


def _environment(rebuilt: Rebuilt) -> dict[str, Any]:
    """The machine and the run; times in seconds."""
    record = rebuilt.record
    found: dict[str, Any] = {
        "startedOn": rebuilt.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "finishedOn": rebuilt.finished.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "wallSeconds": record["cost"]["wall_seconds"],
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cores": record["machine"]["cores"],
    }
    if toolchain := record.get("toolchain"):
        cache = record["compile_cache"]
        found |= {
            "toolchain": {
                "name": toolchain["name"],
                "image": toolchain["image_digest"],
                "definition": toolchain["inputs"],
                "layers": list(toolchain["layers"]),
            },
            "engine": toolchain["engine"],
            "jobs": record["jobs"]["count"],
            "network": record["network"],
            "compileCache": {
                "allowed": rebuilt.how.compile_cache,
                "used": any(cache.values()),
                "counters": dict(cache),
            },
        }
    return found
