"""Registries that misbehave: what is retried, resumed, refused, and what is kept."""

import base64
import json
import time
from dataclasses import replace

import pytest

from kvreg.blobs import BlobStore
from kvreg.errors import NetworkError, NotFoundError, VerificationError
from kvreg.home import Home
from kvreg.model.digest import sha256_bytes
from kvreg.reference import parse_reference
from kvreg.sources import open_source
from kvreg.sources.authentication import parse_challenge
from kvreg.sources.credentials import Credentials, find_credentials
from kvreg.sources.remote import RegistrySource
from kvreg.sources.transport import RetryPolicy, Transport
from kvreg.transfer.journal import Journal, crc32, journal_path, recover
from tests.support import faults
from tests.support.faults import faulty_registry
from tests.support.layouts import add_blob, blob_path


class Setting:
    """A source and a blob store whose waits are recorded instead of waited."""

    def __init__(self, server, home, wheel, read_timeout=30.0):
        self.waits = []
        self.server = server
        self.transport = Transport(read_timeout=read_timeout, sleep=self.waits.append)
        self.source = RegistrySource(parse_reference(server.reference), self.transport)
        self.blobs = BlobStore(home, sleep=self.waits.append)
        self.layer = wheel
        self.content = blob_path(server.layout, wheel.digest).read_bytes()
        self.partial = home.blob(wheel.digest).with_name(wheel.digest[7:] + ".partial")

    def fetch(self):
        path = self.blobs.fetch(self.source, self.layer, lambda count: None)
        assert path.read_bytes() == self.content
        assert not self.partial.exists()

    def keep(self, data):
        """As an earlier transfer leaves it that received `data` from the beginning on."""
        self.partial.parent.mkdir(parents=True)
        self.partial.write_bytes(data.ljust(self.layer.size, b"\0"))
        assert not recover(self.partial, self.layer)
        Journal(self.partial).add(0, len(data), crc32(data))

    def held(self):
        """The ranges that an earlier transfer left."""
        return list(recover(self.partial, self.layer))

    def nothing_kept(self):
        return not list(self.blobs.home.root.glob("blobs/sha256/*"))


@pytest.fixture
def setting(faulty, published):
    return Setting(faulty, published.home, published.manifest.layers[0])


def blob_ranges(server):
    return [headers.get("Range") for path, headers in server.requests if "/blobs/" in path]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_transient_statuses_are_tried_again(setting, code):
    setting.server.faults["blobs"] += [faults.status(code)] * 2
    setting.fetch()
    assert setting.waits == [0.5, 1.0]


def test_retry_after_is_followed(setting):
    setting.server.faults["blobs"] += [faults.status(429, {"Retry-After": "7"})]
    setting.fetch()
    assert setting.waits == [7]


def test_a_wait_that_is_too_long_is_not_waited(setting):
    setting.server.faults["blobs"] += [faults.status(429, {"Retry-After": "3600"})]
    with pytest.raises(NetworkError, match="asks to wait 3600 s"):
        setting.fetch()
    assert setting.waits == []


def test_an_error_that_stays_ends(setting):
    setting.server.faults["blobs"] += [faults.status(500)] * 20
    with pytest.raises(NetworkError, match="500"):
        setting.fetch()
    assert len(setting.waits) == RetryPolicy().attempts - 1
    assert setting.nothing_kept()


@pytest.mark.parametrize("code", [400, 403, 405, 418])
def test_other_statuses_fail_at_once(setting, code):
    setting.server.faults["blobs"] += [faults.status(code)]
    with pytest.raises(NetworkError):
        setting.fetch()
    assert setting.waits == []


def test_a_transfer_that_breaks_off_goes_on_from_there(setting):
    setting.server.faults["blobs"] += [faults.stop_after(1000), faults.stop_after(500)]
    setting.fetch()
    assert blob_ranges(setting.server) == [None, "bytes=1000-", "bytes=1500-"]


def test_a_stalled_transfer_goes_on_after_the_time_limit(faulty, published):
    setting = Setting(faulty, published.home, published.manifest.layers[0], read_timeout=0.3)
    faulty.faults["blobs"] += [faults.stall_after(1000)]
    started = time.monotonic()
    setting.fetch()
    assert time.monotonic() - started < 50
    assert blob_ranges(faulty) == [None, "bytes=1000-"]


def test_a_transfer_that_brings_nothing_ends_and_keeps_what_came(setting):
    setting.server.faults["blobs"] += [faults.stop_after(1000), *[faults.stop_after(0)] * 20]
    with pytest.raises(NetworkError, match="keeps breaking off"):
        setting.fetch()
    assert setting.held() == [(0, 1000)]
    assert setting.partial.read_bytes()[:1000] == setting.content[:1000]
    setting.server.faults["blobs"].clear()
    setting.fetch()
    assert blob_ranges(setting.server)[-1] == "bytes=1000-"


def test_a_server_without_ranges_is_read_from_the_start(setting):
    setting.server.faults["blobs"] += [faults.stop_after(1000), faults.ignoring_range()]
    setting.fetch()


def test_a_server_that_sends_another_range_is_refused(setting):
    setting.server.faults["blobs"] += [faults.stop_after(1000), faults.other_range()]
    with pytest.raises(NetworkError, match="another range"):
        setting.fetch()
    assert setting.held() == [(0, 1000)]


def test_a_partial_blob_of_other_bytes_is_thrown_away(setting):
    setting.keep(b"x" * 1000)
    setting.fetch()
    assert blob_ranges(setting.server) == ["bytes=1000-", None]


def test_a_partial_blob_whose_bytes_have_changed_is_fetched_again(setting):
    setting.keep(setting.content[:1000])
    with setting.partial.open("r+b") as file:
        file.write(b"x")
    setting.fetch()
    assert blob_ranges(setting.server) == [None]


@pytest.mark.parametrize("journal", [None, b"", b"x" * 50, b"kvreg-partial 1 sha256:0 1\n0 1 0\n"])
def test_a_partial_blob_without_its_journal_counts_for_nothing(setting, journal):
    setting.keep(setting.content[:1000])
    if journal is None:
        journal_path(setting.partial).unlink()
    else:
        journal_path(setting.partial).write_bytes(journal)
    setting.fetch()
    assert blob_ranges(setting.server) == [None]


def test_a_partial_blob_that_is_too_long(setting):
    setting.keep(setting.content[:1000])
    with setting.partial.open("ab") as file:
        file.write(b"x")
    setting.fetch()
    assert blob_ranges(setting.server) == ["bytes=1000-"]


def test_416_starts_again(setting):
    setting.keep(setting.content[:1000])
    setting.server.faults["blobs"] += [faults.status(416)]
    setting.fetch()
    assert blob_ranges(setting.server) == ["bytes=1000-", None]


@pytest.mark.parametrize("make", [faults.replaced, faults.without_length])
@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[::-1]]
)
def test_other_bytes_are_refused_and_not_kept(setting, make, change):
    setting.server.faults["blobs"] += [make(change(setting.content))]
    with pytest.raises(VerificationError) as caught:
        setting.fetch()
    assert caught.value.expected and caught.value.found
    assert setting.nothing_kept()


def test_a_web_page_is_refused_and_not_kept(setting, published):
    setting.server.faults["blobs"] += [faults.html()]
    with pytest.raises(NetworkError, match="web page"):
        setting.fetch()
    assert setting.nothing_kept()
    setting.server.faults["manifests"] += [faults.html()]
    with pytest.raises(NetworkError, match="web page"):
        setting.source.manifest(published.profile.digest_tag)


def test_a_blob_in_the_home_that_rotted_is_fetched_again(setting):
    setting.fetch()
    setting.blobs.home.blob(setting.layer.digest).write_bytes(setting.content[::-1])
    setting.fetch()


def test_a_missing_blob(setting):
    absent = replace(setting.layer, digest=sha256_bytes(b"absent"))
    with pytest.raises(NotFoundError, match="lacks a blob"):
        setting.blobs.fetch(setting.source, absent, lambda count: None)
    assert setting.nothing_kept()


def test_manifests_are_compared_with_their_digest(setting, published):
    raw = published.manifest.to_bytes()
    digest = sha256_bytes(raw)
    assert setting.source.manifest(digest).raw == raw
    setting.server.faults["manifests"] += [faults.replaced(raw.replace(b"debian12", b"debian13"))]
    with pytest.raises(VerificationError, match="does not match its digest"):
        setting.source.manifest(digest)
    claim = {"Docker-Content-Digest": sha256_bytes(b"other")}
    setting.server.faults["manifests"] += [faults.status(200, claim)]
    with pytest.raises(VerificationError, match="does not match its digest"):
        setting.source.manifest(published.profile.digest_tag)
    assert setting.source.manifest("no-such-tag") is None


def test_a_manifest_that_never_ends_is_refused(setting, published):
    setting.server.faults["manifests"] += [faults.without_length(b" " * (5 << 20))]
    with pytest.raises(NetworkError, match="too long"):
        setting.source.manifest(published.profile.digest_tag)


def test_a_host_that_is_not_there_is_soon_given_up(published):
    waits = []
    transport = Transport(sleep=waits.append)
    source = RegistrySource(parse_reference("127.0.0.1:1/team/runtimes"), transport)
    with pytest.raises(NetworkError, match="cannot be reached"):
        source.manifest("any")
    assert waits == [0.5, 1.0]


def test_the_token_flow(setting, published):
    setting.server.needs_token = True
    setting.fetch()
    assert setting.source.manifest(published.profile.digest_tag)
    assert setting.server.tokens_given == 1
    (token_path, headers) = next(item for item in setting.server.requests if "/token" in item[0])
    assert "scope=repository%3Ateam%2Fruntimes%3Apull" in token_path
    assert "Authorization" not in headers


@pytest.mark.parametrize("code", [401, 403])
def test_a_token_service_that_refuses_means_absent_or_private(setting, code):
    setting.server.needs_token = True
    setting.server.token_status = code
    with pytest.raises(NetworkError, match="absent or private"):
        setting.fetch()
    assert setting.waits == []


def test_an_expired_token_is_replaced_once(setting):
    setting.server.needs_token = True
    setting.source._authenticator._header = "Bearer expired"
    setting.fetch()
    assert setting.server.tokens_given == 1


@pytest.mark.parametrize("key", ["{host}", "{host}/team", "http://{host}"])
def test_credentials_of_the_config_file_go_to_the_token_service(
    setting, tmp_path, monkeypatch, key
):
    auth = base64.b64encode(b"me:s3cret:with colon").decode()
    config = {"auths": {key.format(host=setting.server.host): {"auth": auth}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    setting.server.needs_token = True
    setting.fetch()
    sent = [headers for path, headers in setting.server.requests if "/token" in path]
    assert sent[0]["Authorization"] == f"Basic {auth}"
    # The registry itself gets the token alone.
    blobs = [headers for path, headers in setting.server.requests if "/blobs/" in path]
    assert {headers.get("Authorization") for headers in blobs} == {None, "Bearer good-token"}


def test_an_identity_token_is_exchanged(setting, tmp_path, monkeypatch):
    entry = {"auth": base64.b64encode(b"me:").decode(), "identitytoken": "refresh"}
    path = tmp_path / "auth.json"
    path.write_text(json.dumps({"auths": {setting.server.host: entry}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(path))
    setting.server.needs_token = True
    setting.fetch()
    (sent,) = [headers for path, headers in setting.server.requests if path == "/token"]
    assert "refresh_token=refresh" in sent["body"]


def test_a_credential_helper_is_asked(tmp_path, monkeypatch):
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        '#!/bin/sh\nread host\necho "{\\"Username\\":\\"$host\\",\\"Secret\\":\\"s\\"}"\n'
    )
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text('{"credsStore": "test"}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert find_credentials("host.example", "a/b") == Credentials("host.example", "s")
    (tmp_path / "config.json").write_text('{"credsStore": "absent"}')
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert find_credentials("host.example", "a/b") is None


def test_secrets_are_not_in_repr():
    assert "s3cret" not in repr(Credentials("me", "s3cret", "s3cret"))


def test_a_redirect_to_another_host_gets_no_credentials(setting, published, tmp_path):
    with faulty_registry(published.layout) as elsewhere:
        path = f"/v2/{faults.REPOSITORY}/blobs/{setting.layer.digest}"
        # 127.0.0.1 and localhost are one machine and two hosts.
        target = f"http://localhost:{elsewhere.server_address[1]}{path}"
        setting.server.needs_token = True
        setting.server.faults["blobs"] += [faults.redirect(target)]
        setting.fetch()
        ((_, headers),) = elsewhere.requests
        assert "Authorization" not in headers


def test_a_redirect_on_the_same_host_keeps_them(setting):
    setting.server.needs_token = True
    path = f"/v2/{faults.REPOSITORY}/blobs/{setting.layer.digest}"
    setting.server.faults["blobs"] += [faults.redirect(path)]
    setting.fetch()
    assert setting.server.requests[-1][1]["Authorization"] == "Bearer good-token"


def test_redirects_that_never_end_or_lead_astray(setting):
    loop = f"/v2/{faults.REPOSITORY}/blobs/{setting.layer.digest}"
    setting.server.faults["blobs"] += [faults.redirect(loop)] * 20
    with pytest.raises(NetworkError, match="redirects more than"):
        setting.fetch()
    setting.server.faults["blobs"].clear()
    setting.server.faults["blobs"] += [faults.redirect("file:///etc/passwd")]
    with pytest.raises(NetworkError, match="less secure"):
        setting.fetch()


def test_a_token_service_must_be_secure(tmp_path):
    from kvreg.sources.authentication import Authenticator

    reference = parse_reference("registry.example/team/runtimes")
    authenticator = Authenticator(reference, Transport())
    with pytest.raises(NetworkError, match="not secure"):
        authenticator.answer('Bearer realm="http://registry.example/token"')


def test_challenges_are_parsed():
    challenge = parse_challenge('Bearer realm="https://a/t",service="x y",scope="a:b,c", k=v')
    assert challenge.scheme == "bearer"
    assert challenge.parameters["scope"] == "a:b,c"
    assert challenge.parameters["k"] == "v"
    assert parse_challenge("").scheme == ""


def test_a_layout_is_read_in_place(published):
    source = open_source(parse_reference(f"oci-layout:{published.layout}"))
    layer = published.manifest.layers[0]
    path = BlobStore(Home(published.home.root)).fetch(source, layer, lambda count: None)
    assert path == blob_path(published.layout, layer.digest)
    assert not published.home.root.exists()
    with source.stream(layer, 10, layer.size) as stream:
        assert b"".join(stream.chunks) == path.read_bytes()[10:]


def test_a_spoilt_layout(published):
    reference = parse_reference(f"oci-layout:{published.layout}")
    digest = published.manifest.descriptor().digest
    path = blob_path(published.layout, digest)
    raw = path.read_bytes()
    path.write_bytes(raw + b" ")
    with pytest.raises(VerificationError, match="does not match its digest"):
        open_source(reference).manifest(published.profile.digest_tag)
    add_blob(published.layout, raw)
    (published.layout / "index.json").write_text("[]")
    with pytest.raises(VerificationError):
        open_source(reference)
    (published.layout / "oci-layout").write_text('{"imageLayoutVersion": "9"}')
    with pytest.raises(VerificationError, match="unknown version"):
        open_source(reference)
    (published.layout / "oci-layout").unlink()
    with pytest.raises(NotFoundError, match="not an OCI image layout"):
        open_source(reference)
