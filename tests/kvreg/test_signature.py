"""The formats of signatures, and keys: untrusted bytes are claims or faults, and nothing else."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg import publickey
from kvreg.errors import NotFoundError, UsageError, VerificationError
from kvreg.model.signature import (
    ANNOTATION_SIGNATURE,
    PREDICATE_SIGNATURE,
    envelope_message,
    is_signature_tag,
    make_bundle,
    parse_bundle,
    parse_simple,
    parse_statement,
    signature_statement,
    signature_tag,
    simple_payload,
)
from kvreg.publickey import (
    PublicKey,
    check_with_cryptography,
    check_with_openssl,
    parse_public_keys,
    read_public_keys,
)
from registry.privatekey import PrivateKey, generate_key

DIGEST = "sha256:" + "a" * 64
KEYS = (
    *("_type", "subject", "digest", "sha256", "critical", "image", "type", "predicateType"),
    *("mediaType", "dsseEnvelope", "payload", "payloadType", "signatures", "sig"),
)

# A signature that cosign 2.5.0 made, and its public key: the documented bytes.
COSIGN_PUBLIC = """\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEuCbUMXvGcPHiTCD+6BuTPL6oj5ft
dtaGswl7P9Ol9tZeHpBT4VqpLUGhBYPMq+u5AOhfZ+e1dX3hk66LhD+IOA==
-----END PUBLIC KEY-----
"""
COSIGN_PAYLOAD = (
    b'{"critical":{"identity":{"docker-reference":"127.0.0.1:5057/a/b"},"ima'
    b'ge":{"docker-manifest-digest":"sha256:0af0492494e40450b47bf48d373955ae'
    b'0175d9155511ca2f9a7f9975232d2c49"},"type":"cosign container image sign'
    b'ature"},"optional":null}'
)
COSIGN_SIGNATURE = (
    "MEUCIQDREL0OLwqd7OF5cRTZkjbW1rqo9kPk+cHfqObYeund1QIgTw5pl19r"
    "J8CURjnoGtyPY5tu4xn5v37MBZWXWPcJbzU="
)


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return generate_key()


@pytest.fixture(params=[check_with_cryptography, check_with_openssl])
def check(request: pytest.FixtureRequest) -> publickey.Check:
    return request.param


class TestFormats:
    def test_there_and_back(self) -> None:
        claim = parse_simple(simple_payload(DIGEST, "host/repo"), {ANNOTATION_SIGNATURE: "eA=="})
        assert (claim.digests, claim.signature) == ({DIGEST}, b"x")
        statement = signature_statement(DIGEST)
        claim = parse_bundle(make_bundle(statement, b"x", "hint"))
        assert (claim.digests, claim.predicate) == ({DIGEST}, PREDICATE_SIGNATURE)
        assert claim.message == envelope_message(statement)

    def test_what_cosign_made(self, check: publickey.Check) -> None:
        (public,) = parse_public_keys(COSIGN_PUBLIC, "theirs")
        claim = parse_simple(COSIGN_PAYLOAD, {ANNOTATION_SIGNATURE: COSIGN_SIGNATURE})
        assert check(public, claim.message, claim.signature)
        assert public.pem == COSIGN_PUBLIC
        assert not check(public, claim.message + b" ", claim.signature)

    def test_tags(self) -> None:
        assert is_signature_tag(signature_tag(DIGEST))
        for tag in ("t4-probe", "x.sig", DIGEST.replace(":", "-"), DIGEST + ".sig"[::-1]):
            assert not is_signature_tag(tag)

    @pytest.mark.parametrize(
        "change",
        [
            {"critical": None},
            {"critical": {"image": {"docker-manifest-digest": DIGEST}, "type": "other"}},
            {"critical": {"image": {"docker-manifest-digest": "sha512:0"}, "type": "x"}},
            {"critical": {"image": DIGEST}},
        ],
    )
    def test_malformed_payloads(self, change: dict[str, object]) -> None:
        value = json.loads(simple_payload(DIGEST, "")) | change
        with pytest.raises(VerificationError):
            parse_simple(json.dumps(value).encode(), {ANNOTATION_SIGNATURE: "eA=="})

    @pytest.mark.parametrize("text", [None, "", "***", "eA"])
    def test_malformed_annotations(self, text: str | None) -> None:
        annotations = {} if text is None else {ANNOTATION_SIGNATURE: text}
        with pytest.raises(VerificationError, match="signature annotation"):
            parse_simple(simple_payload(DIGEST, ""), annotations)

    @pytest.mark.parametrize(
        "change",
        [
            {"mediaType": "text/plain"},
            {"dsseEnvelope": None},
            {"dsseEnvelope": {"payloadType": "text/plain"}},
            {"messageSignature": {}, "dsseEnvelope": []},
        ],
    )
    def test_malformed_bundles(self, change: dict[str, object]) -> None:
        value = json.loads(make_bundle(signature_statement(DIGEST), b"x", "h")) | change
        with pytest.raises(VerificationError):
            parse_bundle(json.dumps(value).encode())

    def test_a_bundle_has_one_signature(self) -> None:
        value = json.loads(make_bundle(signature_statement(DIGEST), b"x", "h"))
        value["dsseEnvelope"]["signatures"] *= 2
        with pytest.raises(VerificationError, match="signatures"):
            parse_bundle(json.dumps(value).encode())

    @given(st.binary(max_size=200))
    def test_any_bytes(self, raw: bytes) -> None:
        for parse in (parse_bundle, parse_statement, lambda raw: parse_simple(raw, {})):
            with pytest.raises(VerificationError):
                parse(raw)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(KEYS),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        )
    )
    def test_any_json(self, value: object) -> None:
        raw = json.dumps(value).encode()
        for parse in (parse_bundle, parse_statement, lambda raw: parse_simple(raw, {})):
            with pytest.raises(VerificationError):
                parse(raw)


class TestKeys:
    def test_good_and_bad_signatures(self, check: publickey.Check, key: PrivateKey) -> None:
        signature = key.sign(b"message")
        assert check(key.public, b"message", signature)
        for message, wrong in (
            (b"other", signature),
            (b"message", signature[:-1]),
            (b"message", b""),
            (b"message", b"\x30\x06\x02\x01\x00\x02\x01\x00"),
            (b"message", signature + b"\0"),
        ):
            assert not check(key.public, message, wrong)
        assert not check(generate_key().public, b"message", signature)

    def test_no_point_of_the_curve(self, check: publickey.Check, key: PrivateKey) -> None:
        damaged = PublicKey(key.public.der[:-1] + bytes([key.public.der[-1] ^ 1]))
        with pytest.raises(VerificationError, match="damaged"):
            check(damaged, b"message", key.sign(b"message"))

    def test_several_in_a_file(self, key: PrivateKey, tmp_path: Path) -> None:
        other = generate_key().public
        path = tmp_path / "keys.pub"
        path.write_text(f"first\n{key.public.pem}\n{other.pem}{key.public.pem}")
        assert read_public_keys(path) == (key.public, other)

    def test_what_is_no_key(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError):
            read_public_keys(tmp_path / "absent")
        secret = base64.b64encode(b"private bytes").decode()
        for text in (
            "",
            "ssh-ed25519 AAAA",
            f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----",
            f"-----BEGIN PUBLIC KEY-----\n{secret}\n-----END PUBLIC KEY-----",
            "-----BEGIN PUBLIC KEY-----\n====\n-----END PUBLIC KEY-----",
        ):
            with pytest.raises(UsageError) as caught:
                parse_public_keys(text, "it")
            assert secret not in str(caught.value)

    def test_keys_of_other_kinds(self, tmp_path: Path) -> None:
        for algorithm in (["ED25519"], ["EC", "-pkeyopt", "ec_paramgen_curve:secp384r1"]):
            made = ["openssl", "genpkey", "-algorithm", *algorithm]
            private = subprocess.run(made, check=True, capture_output=True).stdout
            to_public = ["openssl", "pkey", "-pubout"]
            text = subprocess.run(to_public, input=private, check=True, capture_output=True).stdout
            with pytest.raises(UsageError, match="not supported"):
                parse_public_keys(text.decode(), "it")


class TestHosts:
    def test_nothing_heavy_is_imported_without_a_key(self) -> None:
        script = (
            "import sys, kvreg.commands.pull, kvreg.commands.run\n"
            "assert not {'cryptography', 'nacl'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

    def test_openssl_does_where_the_package_is_absent(
        self, monkeypatch: pytest.MonkeyPatch, key: PrivateKey
    ) -> None:
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ec", None)
        assert publickey.find_checker() is check_with_openssl
        assert key.public.verifies(b"m", key.sign(b"m"))
        monkeypatch.setattr(publickey.shutil, "which", lambda name: None)
        with pytest.raises(VerificationError, match="cannot check signatures") as caught:
            key.public.verifies(b"m", b"")
        assert "cryptography" in str(caught.value)
