"""Where an artifact comes from: an in-toto statement with SLSA provenance v1, from a build record.

The statement has two subjects. The artifact's manifest comes first: it is what registries,
`cosign verify-attestation` and policy engines ask about. The wheel is the second: whoever has the
file alone, from a simple index or a folder, finds it by the file's own sha256.

The same record, SBOM and artifact give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from packageurl import PackageURL

from builder import __version__
from kvreg.errors import UsageError
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import parse_digest
from kvreg.model.oci import MEDIA_TYPE_MANIFEST, MEDIA_TYPE_PROVENANCE, MEDIA_TYPE_SBOM
from kvreg.model.signature import STATEMENT_TYPE

MEDIA_TYPE = MEDIA_TYPE_PROVENANCE
MEDIA_TYPE_RECORD = "application/vnd.kvreg.build-record.v1+json"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE_COMPILE = "urn:kvreg:build-type:compile:v1"
"""Sources to wheel in a container without network; see docs/attestations.md."""
BUILD_TYPE_ADOPT = "urn:kvreg:build-type:adopt:v1"
"""A wheel that others built, taken by its hash and audited."""
BUILD_TYPE_THIN = "urn:kvreg:build-type:thin:v1"
"""A wheel that others built, from which device code for other GPUs was taken out."""
BUILDER = "kvreg-builder"
DEFAULT_BUILDER = "urn:kvreg:builder:unspecified"
"""Says that nobody vouches for the machine; a site that does names itself."""


def build_provenance(
    record: Mapping[str, Any],
    *,
    manifest_digest: str,
    artifact_name: str,
    record_bytes: bytes,
    sbom_bytes: bytes,
    builder_id: str | None = None,
) -> bytes:
    """The statement as UTF-8 JSON with a closing newline.

    `record` is a build record (`builder.record.make_record`), `record_bytes` its file as it is
    attached. `builder_id` is the URI of who runs the builder. Raises UsageError when that is none.
    """
    wheel = record["wheel"]
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": artifact_name,
                "digest": {"sha256": parse_digest(manifest_digest)},
                "mediaType": MEDIA_TYPE_MANIFEST,
            },
            {"name": wheel["filename"], "digest": {"sha256": wheel["sha256"]}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": _definition(record),
            "runDetails": {
                "builder": {
                    "id": check_builder_id(builder_id),
                    "version": {BUILDER: __version__},
                },
                "metadata": _metadata(record, record_bytes),
                "byproducts": [
                    _byproduct("record.json", MEDIA_TYPE_RECORD, record_bytes),
                    _byproduct("sbom.cdx.json", MEDIA_TYPE_SBOM, sbom_bytes),
                ],
            },
        },
    }
    text = json.dumps(statement, indent=1, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8") + b"\n"


def _definition(record: Mapping[str, Any]) -> dict[str, Any]:
    toolchain = record.get("toolchain")
    external: dict[str, Any] = {
        "profile": {"name": record["profile"]["name"], "digest": record["profile"]["digest"]},
        "recipe": record["recipe"],
    }
    if thinning := record.get("thinning"):
        return {
            "buildType": BUILD_TYPE_THIN,
            "externalParameters": {**external, "architectures": thinning["architectures"]},
            "internalParameters": {"thinning": thinning},
            "resolvedDependencies": [*_inputs(record), *_makers(record)],
        }
    if toolchain is None:
        return {
            "buildType": BUILD_TYPE_ADOPT,
            "externalParameters": external,
            "internalParameters": {},
            "resolvedDependencies": [*_inputs(record), *_makers(record)],
        }
    cache = record.get("compile_cache") or {}
    return {
        "buildType": BUILD_TYPE_COMPILE,
        "externalParameters": {**external, "toolchain": toolchain["name"]},
        "internalParameters": {
            # The container's own: it had no interface but loopback.
            "network": record["network"],
            "jobs": record["jobs"]["count"],
            "compileCache": {"used": any(cache.values()), "counters": dict(cache)},
            "environment": dict(record["environment"]),
        },
        "resolvedDependencies": [*_inputs(record), *_makers(record), *_toolchain(toolchain)],
    }


def _inputs(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for item in record["inputs"]:
        uri = _uri(item)
        if item.get("members"):
            # The wheel as a whole was never downloaded, so no one could know that it has the
            # digest that the index claims; every member that was read has one of its own.
            origin = {"wheel": item["filename"], "claimedSha256": item["sha256"]}
            for member in item["members"]:
                yield {
                    "name": member["path"],
                    "uri": f"{uri}#{_subpath(member['path'])}",
                    "digest": {"sha256": member["sha256"]},
                    "annotations": {"kind": "member", **origin},
                }
            continue
        yield {
            "name": item["filename"],
            "uri": uri,
            "digest": {"sha256": item["sha256"]},
            "annotations": {"kind": item["kind"]},
        }


def _makers(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The code that made the wheel; records of older builders do not name it."""
    if builder := record.get("builder"):
        yield {
            "name": BUILDER,
            "uri": PackageURL(type="generic", name=BUILDER, version=builder["version"]).to_string(),
            "digest": {"sha256": parse_digest(builder["digest"])},
            "annotations": {"kind": "builder"},
        }
        yield {
            "name": record["recipe"],
            "digest": {"sha256": parse_digest(builder["recipe"])},
            "annotations": {"kind": "recipe"},
        }


def _toolchain(toolchain: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    packages = [[p["name"], p["version"], p["sha256"]] for p in toolchain["packages"]]
    yield {
        "name": toolchain["name"],
        "digest": {"sha256": parse_digest(toolchain["image_digest"])},
        "annotations": {
            "kind": "toolchain-image",
            "definition": toolchain["inputs"],
            # By the layers two images compare: an image's own digest also covers when it was made.
            "layers": list(toolchain["layers"]),
            "packages": len(packages),
            "packagesDigest": "sha256:" + hashlib.sha256(canonical_json(packages)).hexdigest(),
            "versions": dict(toolchain["versions"]),
        },
    }
    base = toolchain.get("base_image") or {}
    # The engine reports the digest of the index or that of its linux/amd64 manifest.
    for digest in base.get("digests", ()):
        yield {
            "name": base["name"],
            "digest": {"sha256": parse_digest(digest)},
            "annotations": {"kind": "base-image", "oneOf": list(base["digests"])},
        }


def _metadata(record: Mapping[str, Any], record_bytes: bytes) -> dict[str, str]:
    started = datetime.fromisoformat(record["started"])
    finished = started + timedelta(seconds=round(record["cost"]["wall_seconds"]))
    return {
        # Nothing else names one run: the record has its times, costs and results.
        "invocationId": f"urn:kvreg:record:sha256:{hashlib.sha256(record_bytes).hexdigest()}",
        "startedOn": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "finishedOn": finished.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _byproduct(name: str, media_type: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"name": name, "mediaType": media_type, "digest": {"sha256": digest}}


def _uri(item: Mapping[str, Any]) -> str:
    if item["kind"] == "tree":
        return PackageURL(type="generic", name=item["name"], version=item["version"]).to_string()
    return PackageURL(
        type="pypi",
        name=item["name"],
        version=item["version"],
        qualifiers={"file_name": item["filename"]},
    ).to_string()


def _subpath(path: str) -> str:
    return PackageURL(type="generic", name="x", subpath=path).to_string().partition("#")[2]


def check_builder_id(named: str | None) -> str:
    """The builder id to write; UsageError when `named` is no URI."""
    if named is None:
        return DEFAULT_BUILDER
    scheme, colon, rest = named.partition(":")
    if not (colon and rest and scheme.isalnum() and named.isprintable() and " " not in named):
        raise UsageError(
            "a builder id is a URI",
            expected="such as https://ci.example.org/runtimes/v1",
            found=repr(named)[:200],
        )
    return named
