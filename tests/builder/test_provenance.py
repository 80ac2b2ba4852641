"""The provenance: what it says, by the published model, and the same bytes for the same record."""

import copy
import hashlib
import json

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from builder.provenance import PREDICATE_TYPE, build_provenance, check_builder_id
from kvreg.errors import UsageError
from kvreg.model.signature import parse_statement

MANIFEST = "sha256:" + "a" * 64
IMAGE, WHEEL = "b" * 64, "c" * 64

RECORD = {
    "schema": "vnd.kvreg.build-record.v1",
    "profile": {"name": "t4x2-cu128", "digest": "sha256:" + "1" * 64},
    "recipe": "vllm",
    "builder": {
        **{"version": "0.1.0", "digest": "sha256:" + "e1" * 32},
        "recipe": "sha256:" + "e2" * 32,
    },
    "started": "2026-11-30T13:45:09+00:00",
    "cost": {"wall_seconds": 2941.6},
    "wheel": {"filename": "vllm-0.18.1-cp312-cp312-linux_x86_64.whl", "sha256": WHEEL},
    "inputs": [
        {
            **{"name": "vllm", "version": "0.18.1", "kind": "sdist"},
            **{"filename": "vllm-0.18.1.tar.gz", "size": 5, "sha256": "2" * 64},
        },
        {
            **{"name": "vllm", "version": "0.18.1", "kind": "members"},
            **{"filename": "vllm-0.18.1-cp38-abi3-linux_x86_64.whl", "size": 9, "sha256": "3" * 64},
            "members": [
                {"path": "vllm/a b.py", "size": 1, "sha256": "4" * 64},
                {"path": "vllm/b.py", "size": 2, "sha256": "5" * 64},
            ],
        },
        {
            **{"name": "kvreg-probe", "version": "0.1.0", "kind": "tree"},
            **{"filename": "src", "size": 3, "sha256": "6" * 64},
        },
    ],
    "toolchain": {
        "name": "cuda-12.4-debian12",
        "image_digest": f"sha256:{IMAGE}",
        "inputs": "sha256:" + "7" * 64,
        "layers": ["sha256:" + "8" * 64],
        "versions": {"nvcc": "12.4.131", "gcc": "12.2.0"},
        "base_image": None,
        "packages": [{"name": "libc6", "version": "2.36-9", "sha256": "9" * 64}],
    },
    "network": "none",
    "jobs": {"count": 2, "reason": "2 cores"},
    "environment": {"SOURCE_DATE_EPOCH": "1774917780"},
    "compile_cache": {"direct_cache_hit": 60, "cache_miss": 2},
}
PULLED = {
    **RECORD["toolchain"],
    "base_image": {
        "name": "nvidia/cuda:12.8.1-devel-ubuntu22.04",
        "digests": ["sha256:" + "d" * 64, "sha256:" + "e" * 64],
    },
    "packages": [],
}
ADOPTED = {
    key: value
    for key, value in RECORD.items()
    if key not in ("toolchain", "network", "jobs", "environment", "compile_cache")
}


def build(record=RECORD, **changes):
    facts = {
        "manifest_digest": MANIFEST,
        "artifact_name": "t4x2-cu128",
        "record_bytes": b"record",
        "sbom_bytes": b"sbom",
    }
    return build_provenance(record, **(facts | changes))


@pytest.mark.parametrize("record", [RECORD, {**RECORD, "toolchain": PULLED}, ADOPTED])
def test_valid_by_the_published_model(record):
    raw = build(record, builder_id="https://ci.example.org/runtimes/v1")
    # Unknown fields and wrong types are errors to both.
    statement = json_format.Parse(raw, statement_pb2.Statement())
    Statement.copy_from_pb(statement).validate()
    predicate = json_format.MessageToJson(statement.predicate)
    parsed = json_format.Parse(predicate, provenance_pb2.Provenance())
    assert statement.predicate_type == PREDICATE_TYPE
    assert parsed.run_details.builder.id == "https://ci.example.org/runtimes/v1"


def test_it_is_about_the_artifact_and_its_wheel():
    raw = build()
    first, second = json.loads(raw)["subject"]
    assert first["digest"] == {"sha256": "a" * 64}
    assert (second["name"], second["digest"]) == (RECORD["wheel"]["filename"], {"sha256": WHEEL})
    assert parse_statement(raw) == (PREDICATE_TYPE, {MANIFEST, f"sha256:{WHEEL}"})


def test_how_it_was_built():
    predicate = json.loads(build())["predicate"]
    definition, run = predicate["buildDefinition"], predicate["runDetails"]
    assert definition["externalParameters"] == {
        "profile": RECORD["profile"],
        "recipe": "vllm",
        "toolchain": "cuda-12.4-debian12",
    }
    internal = definition["internalParameters"]
    assert (internal["network"], internal["jobs"]) == ("none", 2)
    assert internal["compileCache"]["used"] is True
    assert run["metadata"]["startedOn"] == "2026-11-30T13:45:09Z"
    assert run["metadata"]["finishedOn"] == "2026-11-30T14:34:11Z"
    byproducts = {item["name"]: item["digest"]["sha256"] for item in run["byproducts"]}
    assert byproducts == {
        "record.json": hashlib.sha256(b"record").hexdigest(),
        "sbom.cdx.json": hashlib.sha256(b"sbom").hexdigest(),
    }


@pytest.mark.parametrize("counters", [{}, {"direct_cache_hit": 0, "cache_miss": 0}])
def test_a_compile_cache_that_nothing_went_through_was_not_used(counters):
    definition = json.loads(build({**RECORD, "compile_cache": counters}))["predicate"]
    cache = definition["buildDefinition"]["internalParameters"]["compileCache"]
    assert cache == {"used": False, "counters": counters}


def test_every_input_by_its_own_digest():
    found = json.loads(build())["predicate"]["buildDefinition"]["resolvedDependencies"]
    digests = {item["digest"]["sha256"]: item for item in found}
    makers = {"e1" * 32: "builder", "e2" * 32: "recipe"}
    assert set(digests) == {"2" * 64, "4" * 64, "5" * 64, "6" * 64, IMAGE, *makers}
    assert {digest: digests[digest]["annotations"]["kind"] for digest in makers} == makers
    sdist = digests["2" * 64]
    assert sdist["uri"] == "pkg:pypi/vllm@0.18.1?file_name=vllm-0.18.1.tar.gz"
    # Of a wheel that was read in part, only what was read is a dependency.
    member = digests["4" * 64]
    assert member["uri"].endswith("linux_x86_64.whl#vllm/a%20b.py")
    assert member["annotations"]["claimedSha256"] == "3" * 64
    image = digests[IMAGE]["annotations"]
    assert image["definition"] == RECORD["toolchain"]["inputs"]
    packages = hashlib.sha256(f'[["libc6","2.36-9","{"9" * 64}"]]'.encode()).hexdigest()
    assert (image["packages"], image["packagesDigest"]) == (1, f"sha256:{packages}")


def test_records_of_older_builders_name_no_builder():
    older = {key: value for key, value in RECORD.items() if key != "builder"}
    found = json.loads(build(older))["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert not {item["annotations"]["kind"] for item in found} & {"builder", "recipe"}


def test_a_pulled_base_is_named_by_both_of_its_digests():
    raw = build({**RECORD, "toolchain": PULLED})
    found = json.loads(raw)["predicate"]["buildDefinition"]["resolvedDependencies"]
    bases = [item["digest"]["sha256"] for item in found if "oneOf" in item["annotations"]]
    assert bases == ["d" * 64, "e" * 64]


def test_an_adopted_wheel_claims_no_compile():
    definition = json.loads(build(ADOPTED))["predicate"]["buildDefinition"]
    assert definition["buildType"].endswith(":adopt:v1")
    assert "toolchain" not in definition["externalParameters"]
    assert definition["internalParameters"] == {}


def test_the_same_record_gives_the_same_bytes():
    assert build() == build(json.loads(json.dumps(copy.deepcopy(RECORD))))
    assert build() != build(manifest_digest="sha256:" + "0" * 64)


def test_without_a_name_nobody_vouches():
    run = json.loads(build())["predicate"]["runDetails"]
    assert run["builder"]["id"].endswith(":unspecified")
    for wrong in ("me", "", "http:", "a b:c", "x:\n"):
        with pytest.raises(UsageError, match="URI"):
            check_builder_id(wrong)


def test_a_thinned_wheel_names_upstreams_and_every_payload():
    thinning = {
        "upstream": {"filename": "x.whl", "size": 5, "sha256": "2" * 64},
        "architectures": ["7.5"],
        "modules": [{"path": "x/_C.so", "kept": {"sm_75": {"count": 1, "bytes": 3}}}],
    }
    definition = json.loads(build({**ADOPTED, "thinning": thinning}))["predicate"][
        "buildDefinition"
    ]
    assert definition["buildType"].endswith(":thin:v1")
    assert definition["externalParameters"]["architectures"] == ["7.5"]
    assert definition["internalParameters"]["thinning"] == thinning
    digests = {item["digest"]["sha256"] for item in definition["resolvedDependencies"]}
    assert thinning["upstream"]["sha256"] in digests
