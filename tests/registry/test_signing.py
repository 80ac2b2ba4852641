"""Signing and verifying with a key pair: what counts, what does not, and what errors do not say."""

import json
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvreg.errors import NotFoundError, StorageError, UsageError, VerificationError
from kvreg.model.oci import Descriptor
from kvreg.model.signature import signature_statement, signature_tag
from registry.cli import main
from registry.copy import copy
from registry.layout import Layout
from registry.privatekey import PrivateKey, generate_key, read_private_key, write_key_pair
from registry.signatures import simple_layers
from registry.signing import attest, sign
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.samples import push_artifact
from tests.support.distribution import Distribution
from tests.support.signing import ATTACKS, write_public

SECRET = "hunter2-hunter2"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "store")


@pytest.fixture
def subject(layout: Layout) -> Descriptor:
    return push_artifact(layout, "demo").descriptor()


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return generate_key()


class TestSigning:
    def test_signed_is_verified_by_that_key_alone(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        done = sign(layout, "demo", key)
        assert set(done.added) == {"bundle", "simple"}
        found = verify(layout, "demo", keys=(key.public,))
        assert found.ok and found.signature is not None
        assert found.signature.key == key.public.fingerprint
        with pytest.raises(VerificationError, match="no signature of the artifact"):
            verify(layout, "demo", keys=(generate_key().public,))

    @pytest.mark.parametrize("form", ["bundle", "simple"])
    def test_either_form_is_enough(self, layout, subject, key, form) -> None:  # type: ignore[no-untyped-def]
        sign(layout, "demo", key, (form,))
        found = verify(layout, "demo", keys=(generate_key().public, key.public)).signature
        assert found is not None and found.form == form

    def test_unsigned_is_refused(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(VerificationError, match="is not signed") as caught:
            verify(layout, "demo", keys=(key.public,))
        assert key.public.fingerprint in str(caught.value)

    def test_signing_twice_changes_nothing(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        sign(layout, "demo", key)
        before = (layout.path / "index.json").read_bytes()
        assert sign(layout, subject.digest, key).added == ()
        assert (layout.path / "index.json").read_bytes() == before

    def test_signers_keep_each_others_signatures(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        other = generate_key()
        sign(layout, "demo", key)
        sign(layout, "demo", other)
        assert len(simple_layers(layout, signature_tag(subject.digest))) == 2
        for one in (key, other):
            assert verify(layout, "demo", keys=(one.public,)).ok

    def test_the_same_bundle_everywhere(  # type: ignore[no-untyped-def]
        self, layout, subject, key, make_remote, distribution
    ) -> None:
        remote = make_remote(distribution.host)
        push_artifact(remote, "demo")
        forms = [sign(store, "demo", key).forms for store in (layout, remote)]
        assert forms[0]["bundle"] == forms[1]["bundle"]

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_what_does_not_count(self, layout, subject, key, attack) -> None:  # type: ignore[no-untyped-def]
        ATTACKS[attack](layout, subject, key)
        with pytest.raises(VerificationError):
            verify(layout, "demo", keys=(key.public,))
        # And it hides no good signature, whichever was there first.
        sign(layout, "demo", key)
        assert verify(layout, "demo", with_referrers=False, keys=(key.public,)).ok

    def test_nothing_to_sign(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(NotFoundError):
            sign(layout, "absent", key)

    def test_a_bad_blob_of_a_signature_is_found(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        sign(layout, "demo", key)
        (layer,) = simple_layers(layout, signature_tag(subject.digest))
        path = layout.blob_path(layer)
        assert path is not None
        path.write_bytes(b"x" * layer.size)
        found = verify(layout, "demo", keys=(key.public,))
        assert [item.status for item in found.judgements].count("corrupt") == 1


class TestAttesting:
    def statement(self, subject: Descriptor) -> bytes:
        text = signature_statement(subject.digest).decode()
        return text.replace("https://sigstore.dev/cosign/sign/v1", "https://x.org/p").encode()

    def test_a_signed_statement_is_no_signature(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        attest(layout, "demo", self.statement(subject), key)
        with pytest.raises(VerificationError, match="is not signed"):
            verify(layout, "demo", keys=(key.public,))

    def test_about_something_else(self, layout, subject, key) -> None:  # type: ignore[no-untyped-def]
        text = self.statement(subject).replace(subject.digest[7:].encode(), b"0" * 64)
        with pytest.raises(UsageError, match="not about"):
            attest(layout, "demo", text, key)
        with pytest.raises(VerificationError):
            attest(layout, "demo", b"{}", key)
        with pytest.raises(UsageError, match="is a signature itself"):
            attest(layout, "demo", signature_statement(subject.digest), key)


class TestCopies:
    def test_signatures_travel_both_ways(
        self, layout, subject, key, make_remote: MakeRemote, distribution: Distribution, tmp_path
    ) -> None:  # type: ignore[no-untyped-def]
        sign(layout, "demo", key)
        remote = make_remote(distribution.host)
        copy(layout, remote, "demo")
        assert verify(remote, "demo", keys=(key.public,)).ok
        back = Layout(tmp_path / "back")
        copy(remote, back, "demo")
        assert verify(back, "demo", keys=(key.public,)).ok
        tag = signature_tag(subject.digest)
        assert back.resolve(tag) == layout.resolve(tag)

    def test_a_copy_keeps_what_the_destination_has(self, layout, subject, key, tmp_path) -> None:  # type: ignore[no-untyped-def]
        other, there = generate_key(), Layout(tmp_path / "there")
        copy(layout, there, "demo")
        sign(there, "demo", other, ("simple",))
        sign(layout, "demo", key, ("simple",))
        for _ in range(2):
            copy(layout, there, "demo")
            assert len(simple_layers(there, signature_tag(subject.digest))) == 2
        for one in (key, other):
            assert verify(there, "demo", keys=(one.public,)).ok


class TestKeys:
    def test_written_and_read(self, key: PrivateKey, tmp_path: Path) -> None:
        private, public = write_key_pair(key, tmp_path / "k", SECRET.encode())
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert read_private_key(private, lambda: SECRET.encode()) == key
        assert public.read_text() == key.public.pem
        with pytest.raises(StorageError, match="there already"):
            write_key_pair(key, tmp_path / "k", b"")

    def test_plain_pem(self, tmp_path: Path) -> None:
        for name, extra in (("sec1.pem", []), ("pkcs8.pem", ["-outform", "PEM"])):
            path = tmp_path / name
            made = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"]
            text = subprocess.run(made, check=True, capture_output=True).stdout
            if extra:
                convert = ["openssl", "pkcs8", "-topk8", "-nocrypt"]
                text = subprocess.run(convert, input=text, check=True, capture_output=True).stdout
            path.write_bytes(text)
            key = read_private_key(path, lambda: pytest.fail("no password is needed"))
            assert key.public.verifies(b"m", key.sign(b"m"))

    def test_errors_repeat_neither_key_nor_password(self, key: PrivateKey, tmp_path: Path) -> None:
        private, _ = write_key_pair(key, tmp_path / "k", SECRET.encode())
        text = private.read_text()
        body = "".join(text.splitlines()[1:-1])
        spoilt = {
            "cut": text[: len(text) // 2],
            "flipped": text.replace(body[100:110], body[100:110][::-1]),
            "no pem": SECRET,
            "another": "-----BEGIN PRIVATE KEY-----\n" + body[:64] + "\n-----END PRIVATE KEY-----",
        }
        for name, content in spoilt.items():
            path = tmp_path / name
            path.write_text(content)
            with pytest.raises(UsageError) as caught:
                read_private_key(path, lambda: SECRET.encode())
            said = f"{caught.value} {caught.value.to_dict()} {caught.value.__cause__}"
            assert SECRET not in said
            assert not any(body[i : i + 16] in said for i in range(0, len(body) - 16, 8))
        with pytest.raises(UsageError, match="password does not open") as caught:
            read_private_key(private, lambda: b"wrong-password")
        assert "wrong-password" not in str(caught.value)
        assert "sign" not in repr(key) and body[:10] not in repr(key)

    def test_other_kinds_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "rsa.pem"
        made = ["openssl", "genpkey", "-algorithm", "ED25519", "-out", str(path)]
        subprocess.run(made, check=True, capture_output=True)
        with pytest.raises(UsageError, match="not a private key that can sign"):
            read_private_key(path, lambda: b"")
        with pytest.raises(NotFoundError):
            read_private_key(tmp_path / "absent", lambda: b"")


class TestCommands:
    def test_the_whole_way(self, layout, subject, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.setenv("COSIGN_PASSWORD", SECRET)
        run = CliRunner().invoke
        prefix, reference = tmp_path / "team", f"{layout.location}:demo"
        made = run(main, ["keygen", "--output-prefix", str(prefix), "--json"])
        assert made.exit_code == 0, made.output
        before = run(main, ["verify", reference, "--key", f"{prefix}.pub"])
        assert before.exit_code == 1 and "is not signed" in before.output
        signed = run(main, ["sign", reference, "--key", f"{prefix}.key", "--json"])
        assert signed.exit_code == 0, signed.output
        assert json.loads(signed.output)["key"] == json.loads(made.output)["key"]
        after = run(main, ["verify", reference, "--key", f"{prefix}.pub", "--json"])
        assert json.loads(after.output)["signature"]["key"] == json.loads(made.output)["key"]
        wrong = run(main, ["verify", reference, "--key", f"{prefix}.key"])
        assert wrong.exit_code == 2 and "not a public key" in wrong.output
        assert SECRET not in made.output + signed.output + after.output + wrong.output

    def test_no_password_and_no_terminal(self, layout, subject, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
        done = CliRunner().invoke(main, ["keygen", "--output-prefix", str(tmp_path / "k")])
        assert done.exit_code == 2 and "COSIGN_PASSWORD" in done.output
        assert not (tmp_path / "k.key").exists()

    def test_a_store_is_no_artifact(self, layout, key, tmp_path) -> None:  # type: ignore[no-untyped-def]
        private, _ = write_key_pair(key, tmp_path / "k", b"")
        done = CliRunner().invoke(main, ["sign", layout.location, "--key", str(private)])
        assert done.exit_code == 2

    def test_a_public_key_may_be_of_several(self, layout, subject, key, tmp_path) -> None:  # type: ignore[no-untyped-def]
        sign(layout, "demo", key)
        path = write_public(generate_key(), tmp_path / "keys.pub")
        path.write_text(path.read_text() + key.public.pem)
        command = ["verify", f"{layout.location}:demo", "--key", str(path)]
        assert CliRunner().invoke(main, command).exit_code == 0
