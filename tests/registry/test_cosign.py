"""Signatures between us and the real cosign, versions 2 and 3, both ways, on the real registry."""

import json
from pathlib import Path

import pytest

from kvreg.model.signature import signature_statement
from kvreg.publickey import read_public_keys
from registry.layout import Layout
from registry.privatekey import generate_key, read_private_key, write_key_pair
from registry.signing import attest, sign
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.samples import push_artifact
from tests.support.cosign import PASSWORD, Cosign, cosign
from tests.support.distribution import Distribution
from tests.support.signing import write_public

__all__ = ["cosign"]

pytestmark = pytest.mark.network


def test_cosign_accepts_what_we_sign(
    cosign: Cosign, distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:
    remote = make_remote(distribution.host)
    digest = push_artifact(remote, "demo").descriptor().digest
    key = generate_key()
    public = write_public(key, tmp_path / "our.pub")
    other = write_public(generate_key(), tmp_path / "other.pub")
    assert cosign.verify(f"{remote.location}:demo", public).returncode != 0
    sign(remote, "demo", key)
    done = cosign.verify(f"{remote.location}:demo", public)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["critical"]["image"]["docker-manifest-digest"] == digest
    assert cosign.verify(f"{remote.location}:demo", other).returncode != 0


@pytest.mark.parametrize("form", ["bundle", "simple"])
def test_cosign_accepts_each_form_alone(
    form, cosign: Cosign, distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    remote = make_remote(distribution.host)
    push_artifact(remote, "demo")
    key = generate_key()
    public = write_public(key, tmp_path / "our.pub")
    sign(remote, "demo", key, (form,))
    done = cosign.verify(f"{remote.location}:demo", public)
    # Version 2 looks for signatures in one place alone.
    expected = not (cosign.is_old and form == "bundle")
    assert (done.returncode == 0) == expected, done.stderr


def test_we_accept_what_cosign_signs_with_its_own_key(
    cosign: Cosign, distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:
    remote = make_remote(distribution.host)
    digest = push_artifact(remote, "demo").descriptor().digest
    cosign.must("generate-key-pair", "--output-key-prefix", "theirs")
    private, public = cosign.home / "theirs.key", cosign.home / "theirs.pub"
    cosign.sign(f"{remote.location}@{digest}", private)
    found = verify(remote, "demo", keys=read_public_keys(public))
    assert found.ok and found.signature is not None
    assert found.signature.form == ("simple" if cosign.is_old else "bundle")
    # Their key file signs here as well, and they accept that.
    push_artifact(remote, "second", seed=2)
    sign(remote, "second", read_private_key(private, PASSWORD.encode))
    assert cosign.verify(f"{remote.location}:second", public).returncode == 0


def test_cosign_signs_with_our_key_beside_our_signature(
    cosign: Cosign, distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:
    remote = make_remote(distribution.host)
    digest = push_artifact(remote, "demo").descriptor().digest
    ours, theirs = generate_key(), generate_key()
    private, public = write_key_pair(theirs, tmp_path / "k", PASSWORD.encode())
    sign(remote, "demo", ours)
    cosign.sign(f"{remote.location}@{digest}", private)
    for key in (ours, theirs):
        assert verify(remote, "demo", keys=(key.public,)).ok
    assert cosign.verify(f"{remote.location}:demo", public).returncode == 0
    mine = write_public(ours, tmp_path / "ours.pub")
    assert cosign.verify(f"{remote.location}:demo", mine).returncode == 0


def test_cosign_reads_a_statement_that_we_sign(
    cosign: Cosign, distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:
    remote = make_remote(distribution.host)
    digest = push_artifact(remote, "demo").descriptor().digest
    text = signature_statement(digest).decode()
    kind = "https://slsa.dev/provenance/v1"
    statement = text.replace("https://sigstore.dev/cosign/sign/v1", kind).encode()
    key = generate_key()
    public = write_public(key, tmp_path / "our.pub")
    attest(remote, "demo", statement, key)
    done = cosign.verify_attestation(f"{remote.location}:demo", public, "slsaprovenance1")
    assert done.returncode == 0, done.stderr
    other = write_public(generate_key(), tmp_path / "other.pub")
    found = cosign.verify_attestation(f"{remote.location}:demo", other, "slsaprovenance1")
    assert found.returncode != 0


def test_a_layout_that_cosign_signed_in_a_registry(
    cosign: Cosign, distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:
    from registry.copy import copy

    remote = make_remote(distribution.host)
    digest = push_artifact(remote, "demo").descriptor().digest
    private, public = write_key_pair(generate_key(), tmp_path / "k", PASSWORD.encode())
    cosign.sign(f"{remote.location}@{digest}", private)
    layout = Layout(tmp_path / "layout")
    copy(remote, layout, "demo")
    assert verify(layout, "demo", keys=read_public_keys(public)).ok
