"""Pulling with a key: what is unsigned or signed by another is refused, wherever it lies."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvreg.cli import main
from kvreg.errors import NetworkError, VerificationError
from kvreg.home import Home
from kvreg.model.oci import MEDIA_TYPE_INDEX, MEDIA_TYPE_MANIFEST, Index
from kvreg.reference import parse_reference

pytest.importorskip("registry.store", reason="registry signs, and needs 3.11", exc_type=ImportError)
from registry.copy import copy
from registry.layout import Layout
from registry.privatekey import PrivateKey, generate_key
from registry.remote import Remote
from registry.signing import sign
from tests.support.signing import ATTACKS, write_public


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return generate_key()


@pytest.fixture
def signed(published, key: PrivateKey):  # type: ignore[no-untyped-def]
    """The usual artifact, signed in both forms."""
    sign(Layout(published.layout), published.profile.digest_tag, key)
    return published


def fresh(published):  # type: ignore[no-untyped-def]
    """The same artifact and another home."""
    return replace(published, home=Home(published.home.root.with_name("fresh")))


class TestRefused:
    def refused(self, published, keys, match, reference=None) -> VerificationError:  # type: ignore[no-untyped-def]
        with pytest.raises(VerificationError, match=match) as caught:
            published.pull(reference, keys=keys)
        assert published.left() == []  # not even a blob was fetched
        return caught.value

    def test_unsigned(self, published, key) -> None:  # type: ignore[no-untyped-def]
        error = self.refused(published, (key.public,), "is not signed")
        assert error.exit_code == 1 and key.public.fingerprint in str(error)

    def test_signed_by_another(self, signed) -> None:  # type: ignore[no-untyped-def]
        error = self.refused(signed, (generate_key().public,), "no signature of the artifact")
        assert len(error.problems) == 2

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_what_does_not_count(self, published, key, attack) -> None:  # type: ignore[no-untyped-def]
        layout = Layout(published.layout)
        subject = layout.resolve(published.profile.digest_tag)
        assert subject is not None
        ATTACKS[attack](layout, subject, key)
        self.refused(published, (key.public,), "signed|signature")
        sign(layout, subject.digest, key)
        assert published.pull(keys=(key.public,)).staged

    def test_a_registry_without_the_signature(self, signed, key, distribution) -> None:  # type: ignore[no-untyped-def]
        remote = Remote(parse_reference(f"{distribution.host}/signed/without"))
        copy(Layout(signed.layout), remote, signed.profile.digest_tag, with_referrers=False)
        self.refused(signed, (key.public,), "is not signed", remote.location)


class TestAccepted:
    def test_from_a_layout(self, signed, key) -> None:  # type: ignore[no-untyped-def]
        runtime = signed.pull(keys=(generate_key().public, key.public)).runtime
        assert runtime.signature is not None
        assert runtime.signature.key == key.public.fingerprint
        tree = json.loads((runtime.folder / "runtime.json").read_bytes())
        assert tree["signature"]["key"] == key.public.fingerprint

    @pytest.mark.parametrize("form", ["bundle", "simple"])
    def test_either_form_in_a_registry(self, published, key, distribution, form) -> None:  # type: ignore[no-untyped-def]
        layout, tag = Layout(published.layout), published.profile.digest_tag
        sign(layout, tag, key, (form,))
        remote = Remote(parse_reference(f"{distribution.host}/signed/{form}"))
        copy(layout, remote, tag)
        runtime = published.pull(remote.location, keys=(key.public,)).runtime
        assert runtime.signature is not None and runtime.signature.form == form

    def test_without_a_key_nothing_is_asked(self, signed) -> None:  # type: ignore[no-untyped-def]
        assert signed.pull().runtime.signature is None

    def test_what_was_staged_unchecked_is_checked_and_not_staged_again(self, signed, key) -> None:  # type: ignore[no-untyped-def]
        first = signed.pull()
        again = signed.pull(keys=(key.public,))
        assert (again.staged, again.runtime.folder) == (False, first.runtime.folder)
        assert again.runtime.signature is not None
        # From now on it is known; the source is not even opened.
        away = signed.layout.with_name("away")
        signed.layout.rename(away)
        assert signed.pull(keys=(key.public,)).runtime.signature == again.runtime.signature
        away.rename(signed.layout)
        with pytest.raises(VerificationError):
            signed.pull(keys=(generate_key().public,))


class TestReferrersApi:
    """A registry that has the API, in pages; Distribution has only the tag."""

    @contextmanager
    def served(self, layout: Path, link: str = "") -> Iterator[str]:
        store = Layout(layout)

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                """Nothing."""

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                kind, name = path.split("/")[-2:]
                headers = {}
                if kind == "referrers":
                    found = store.referrers(name)
                    page = int(query.removeprefix("page=") or 0)
                    if page + 1 < len(found):
                        following = link or f"{path}?page={page + 1}"
                        headers = {"Link": f'<{following}>; rel="next"'}
                    body, media = Index(found[page : page + 1]).to_bytes(), MEDIA_TYPE_INDEX
                else:
                    found = store.resolve(name) if kind == "manifests" else None
                    file = layout / "blobs/sha256" / (found.digest if found else name)[7:]
                    if not file.is_file():
                        self.send_error(404)
                        return
                    body, media = file.read_bytes(), MEDIA_TYPE_MANIFEST
                self.send_response(200)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", media)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}/team/runtimes"
        finally:
            server.shutdown()
            server.server_close()

    def test_the_last_page_counts(self, published, key) -> None:  # type: ignore[no-untyped-def]
        layout, tag = Layout(published.layout), published.profile.digest_tag
        for one in (generate_key(), generate_key(), key):
            sign(layout, tag, one, ("bundle",))
        with self.served(published.layout) as reference:
            assert published.pull(reference, keys=(key.public,)).runtime.signature is not None

    def test_a_page_that_leads_elsewhere(self, published, key) -> None:  # type: ignore[no-untyped-def]
        for _ in range(2):
            sign(Layout(published.layout), published.profile.digest_tag, generate_key())
        with (
            self.served(published.layout, "http://elsewhere.example/v2/x") as reference,
            pytest.raises(NetworkError, match="leads elsewhere"),
        ):
            published.pull(reference, keys=(key.public,))


class TestSettings:
    def pull(self, published, *more: str):  # type: ignore[no-untyped-def]
        arguments = ["pull", "demo", "--registry", f"oci-layout:{published.layout}"]
        return CliRunner().invoke(main, [*arguments, "--home", str(published.home.root), *more])

    @pytest.mark.parametrize("where", ["option", "variable", "text", "file", "inline"])
    def test_a_key_can_be_pinned(self, published, key, tmp_path, monkeypatch, where) -> None:  # type: ignore[no-untyped-def]
        public, more = write_public(key, tmp_path / "team.pub"), []
        folder = tmp_path / ".config" / "kvreg"
        folder.mkdir(parents=True)
        if where == "option":
            more = ["--verify-key", str(public)]
        elif where == "variable":
            monkeypatch.setenv("KVREG_VERIFY_KEY", str(public))
        elif where == "text":
            monkeypatch.setenv("KVREG_VERIFY_KEY", key.public.pem)
        elif where == "file":
            write_public(key, folder / "team.pub")
            (folder / "config.toml").write_text('verify-key = "team.pub"\n')
        else:
            (folder / "config.toml").write_text(f'verify-key = """\n{key.public.pem}"""\n')
        done = self.pull(published, *more)
        assert (done.exit_code, "is not signed" in done.output) == (1, True), done.output
        sign(Layout(published.layout), published.profile.digest_tag, key)
        done = self.pull(published, *more)
        assert done.exit_code == 0, done.output
        assert f"signed    by the key {key.public.fingerprint}" in done.output

    def test_a_pinned_key_also_guards_what_is_staged(self, signed, key, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        home = ["--home", str(signed.home.root)]
        assert self.pull(signed).exit_code == 0
        assert CliRunner().invoke(main, ["env", "demo", *home]).exit_code == 0
        monkeypatch.setenv("KVREG_VERIFY_KEY", key.public.pem)
        for command in (["env", "demo", *home], ["run", *home, "demo", "--", "true"]):
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 1 and "kvreg pull demo" in done.output
        assert self.pull(signed).exit_code == 0
        assert CliRunner().invoke(main, ["env", "demo", *home]).exit_code == 0

    @pytest.mark.parametrize(
        ("text", "code"),
        [("verify_key = 'x'", 2), ("verify-key = 1", 2), ("[", 2), ("verify-key = 'gone.pub'", 3)],
    )
    def test_settings_that_cannot_be_meant(self, published, tmp_path, text, code) -> None:  # type: ignore[no-untyped-def]
        folder = tmp_path / ".config" / "kvreg"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(text)
        assert self.pull(published).exit_code == code
        assert published.left() == []

    def test_a_settings_file_that_is_named_must_be_there(self, published, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.setenv("KVREG_CONFIG", str(published.home.root / "absent.toml"))
        assert self.pull(published).exit_code == 2
