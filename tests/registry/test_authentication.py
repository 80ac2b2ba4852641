"""Who we are: challenges, tokens that expire, refusals, and no secret in any text."""

import base64
import json
import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.errors import NetworkError, UsageError
from registry.authentication import Challenge, parse_challenges
from registry.credentials import Credentials, environment_is_ambiguous, find_credentials
from registry.upload import UploadPolicy
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Answer, Proxy, respond
from tests.registry.samples import blob, push_artifact, read
from tests.support.distribution import PASSWORD, USER, Distribution

SECRET = "hunter2-very-secret"


def test_basic(distribution_with_login: Distribution, make_remote: MakeRemote) -> None:
    host = distribution_with_login.host
    remote = make_remote(host, credentials=Credentials(USER, PASSWORD))
    manifest = push_artifact(remote, "one")
    assert remote.fetch_manifest(manifest.descriptor().digest) == manifest.to_bytes()
    assert remote.list_tags() == ("one",)


@pytest.mark.parametrize("credentials", [None, Credentials(USER, SECRET)])
def test_a_refusal_is_reported_at_once(
    credentials: Credentials | None, distribution_with_login: Distribution, make_remote: MakeRemote
) -> None:
    remote = make_remote(distribution_with_login.host, credentials=credentials)
    begun = time.monotonic()
    with pytest.raises(NetworkError, match="absent or private") as caught:
        remote.resolve("one")
    assert time.monotonic() - begun < 2
    assert remote.slept == []  # type: ignore[attr-defined]
    assert "KVREG_REGISTRY_USERNAME" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_token_that_expires_in_the_middle(proxy: Proxy, make_remote: MakeRemote) -> None:
    """Each token serves three requests; a push in chunks needs many more."""
    proxy.token_uses = 3
    data, descriptor = blob(95_000)
    upload = UploadPolicy(stream_bytes=0, chunk_bytes=10_000)
    remote = make_remote(proxy.host, credentials=Credentials(USER, SECRET), upload=upload)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data
    assert len(proxy.token_requests) >= 4
    sent = {request.headers.get("Authorization") for request in proxy.token_requests}
    assert sent == {"Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()}


def test_an_expired_token_at_a_large_body(proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.token_uses = 2  # HEAD and POST; the PUT with the body is refused once
    data, descriptor = blob(300_000)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data


def test_an_anonymous_token(proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.token_uses = 100
    push_artifact(make_remote(proxy.host), "one")
    assert len(proxy.token_requests) == 1
    request = proxy.token_requests[0]
    assert "Authorization" not in request.headers
    assert "scope=repository%3Ateam%2Fruntimes" in request.path
    assert "service=test" in request.path


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_the_token_server(status: int, proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.token_uses = 1
    proxy.token_answer = Answer(status)
    remote = make_remote(proxy.host)
    with pytest.raises(NetworkError, match="absent or private"):
        remote.resolve("one")
    assert remote.slept == []  # type: ignore[attr-defined]
    assert len(proxy.token_requests) == 1


def test_a_token_server_that_recovers(proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.token_uses = 9
    proxy.fail("GET", "/token", respond(503), times=2)
    assert make_remote(proxy.host).resolve("one") is None


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"token": "a\\r\\nb"}', b'{"token":7}']
)
def test_a_token_server_that_makes_no_sense(
    body: bytes, proxy: Proxy, make_remote: MakeRemote
) -> None:
    proxy.token_uses = 1
    proxy.token_answer = Answer(200, {}, body)
    with pytest.raises(NetworkError, match="cannot be asked for a token"):
        make_remote(proxy.host).resolve("one")


def test_a_forbidden_repository_is_not_tried_again(proxy: Proxy, make_remote: MakeRemote) -> None:
    body = b'{"errors":[{"code":"DENIED","message":"permission_denied: write_package"}]}'
    proxy.fail("GET", "manifests", respond(403, {}, body), times=9)
    with pytest.raises(NetworkError, match="absent or private") as caught:
        make_remote(proxy.host).resolve("one")
    assert "DENIED: permission_denied: write_package" in str(caught.value.found)
    assert proxy.count("GET") == 1


def test_an_identity_token_is_exchanged(proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.token_uses = 100
    remote = make_remote(proxy.host, credentials=Credentials("", SECRET, True))
    assert remote.resolve("one") is None
    (request,) = proxy.token_requests
    assert request.method == "POST"
    assert b"grant_type=refresh_token" in request.body
    assert SECRET.encode() in request.body
    assert SECRET not in request.path


@pytest.mark.parametrize("realm", ["", "token", "http://[::1", "ftp://x/token", "http:///token"])
def test_a_realm_that_is_no_url(realm: str, proxy: Proxy, make_remote: MakeRemote) -> None:
    challenge = f'Bearer realm="{realm}",service="x"'
    proxy.fail("GET", "manifests", respond(401, {"WWW-Authenticate": challenge}))
    with pytest.raises(NetworkError, match="cannot be asked for a token"):
        make_remote(proxy.host).resolve("one")


def test_credentials_go_to_no_other_host_in_the_clear(
    proxy: Proxy, make_remote: MakeRemote
) -> None:
    challenge = 'Bearer realm="http://collector.example/token",service="x"'
    proxy.fail("GET", "manifests", respond(401, {"WWW-Authenticate": challenge}))
    with pytest.raises(NetworkError, match="cannot be asked for a token"):
        make_remote(proxy.host, credentials=Credentials(USER, SECRET)).resolve("one")


def test_the_token_does_not_follow_a_location_to_another_host(
    proxy: Proxy, distribution: Distribution, make_remote: MakeRemote
) -> None:
    """The registry behind the proxy is another host: it gets the bytes and no token."""
    from tests.registry.proxy import running_proxy

    proxy.token_uses = 100
    with running_proxy(distribution.host) as other:

        def elsewhere(request, forward):  # type: ignore[no-untyped-def]
            answer = forward(request)
            location = answer.headers["Location"]
            answer.headers["Location"] = location.replace(proxy.host, other.host)
            return answer

        proxy.fail("POST", "uploads", elsewhere)
        data, descriptor = blob(5000)
        remote = make_remote(proxy.host, credentials=Credentials(USER, SECRET))
        remote.push_blob(data, descriptor)
        assert read(remote, descriptor) == data
        assert other.count("PUT") == 1
        assert set(other.authorizations) == {None}


def test_netrc_does_not_replace_the_token(
    proxy: Proxy, make_remote: MakeRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login other password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    proxy.token_uses = 100
    assert make_remote(proxy.host).resolve("one") is None
    assert all(not (value or "").startswith("Basic") for value in proxy.authorizations)


def test_no_proxy_for_this_machine(
    distribution: Distribution, make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert make_remote(distribution.host).resolve("one") is None


def test_nothing_secret_is_logged(
    proxy: Proxy, make_remote: MakeRemote, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy.token_uses = 2
    proxy.fail("GET", "/token", respond(503, {"Retry-After": "5"}))
    proxy.fail("PUT", "uploads", respond(503))
    credentials = Credentials(USER, SECRET)
    push_artifact(make_remote(proxy.host, credentials=credentials), "one")
    assert "trying again" in caplog.text
    for secret in (SECRET, credentials.basic.split()[1], *proxy.tokens):
        assert secret not in caplog.text
    # The HTTP library's debug log shows whole URLs; ours never does.
    ours = [record.getMessage() for record in caplog.records if record.name == "registry"]
    assert ours
    assert not any("_state" in line for line in ours)
    assert SECRET not in repr(credentials)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_challenge_can_be_read(header: str) -> None:
    for challenge in parse_challenges(header):
        assert challenge.scheme == challenge.scheme.lower()


def test_challenges() -> None:
    header = 'Basic realm="a \\"b\\"", Bearer realm="https://t/", scope="x:y:pull,push", error=bad'
    assert parse_challenges(header) == [
        Challenge("basic", {"realm": 'a "b"'}),
        Challenge("bearer", {"realm": "https://t/", "scope": "x:y:pull,push", "error": "bad"}),
    ]
    assert parse_challenges("Negotiate, Basic realm=x") == [
        Challenge("negotiate"),
        Challenge("basic", {"realm": "x"}),
    ]
    assert parse_challenges("") == []


class TestFindCredentials:
    def write(self, folder: Path, config: object) -> dict[str, str]:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return {"DOCKER_CONFIG": str(folder), "PATH": os.environ["PATH"]}

    def helper(self, folder: Path, name: str, script: str) -> str:
        program = folder / f"docker-credential-{name}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    def test_none(self, tmp_path: Path) -> None:
        assert find_credentials("r.example", environment={"HOME": str(tmp_path)}) is None

    def test_environment(self) -> None:
        environment = {"KVREG_REGISTRY_USERNAME": "u", "KVREG_REGISTRY_PASSWORD": SECRET}
        found = find_credentials("r.example", environment=environment)
        assert found == Credentials("u", SECRET, origin="KVREG_REGISTRY_USERNAME")
        environment["KVREG_REGISTRY_HOST"] = "ghcr.io"
        assert find_credentials("r.example", environment=environment) is None
        assert find_credentials("ghcr.io", environment=environment) is not None

    def test_half_of_them(self) -> None:
        with pytest.raises(UsageError, match="one half"):
            find_credentials("r.example", environment={"KVREG_REGISTRY_USERNAME": "u"})

    def test_two_hosts_are_ambiguous(self) -> None:
        environment = {"KVREG_REGISTRY_PASSWORD": SECRET}
        assert environment_is_ambiguous({"a.example", "b.example"}, environment)
        assert not environment_is_ambiguous({"a.example"}, environment)
        assert not environment_is_ambiguous(
            {"a.example", "b.example"}, {**environment, "KVREG_REGISTRY_HOST": "a.example"}
        )

    @pytest.mark.parametrize(
        "key", ["r.example:5000", "https://r.example:5000", "https://r.example:5000/v2/"]
    )
    def test_docker_config(self, key: str, tmp_path: Path) -> None:
        auth = base64.b64encode(b"u:p:w").decode()
        environment = self.write(tmp_path, {"auths": {key: {"auth": auth}}})
        found = find_credentials("r.example:5000", "a/b", environment)
        assert found is not None
        assert (found.username, found.secret) == ("u", "p:w")
        assert find_credentials("r.example", "a/b", environment) is None

    def test_the_most_exact_entry_wins(self, tmp_path: Path) -> None:
        auths = {
            "r.example": {"username": "host", "password": "1"},
            "r.example/team": {"username": "team", "password": "2"},
        }
        environment = self.write(tmp_path, {"auths": auths})
        names = {
            repository: find_credentials("r.example", repository, environment).username  # type: ignore[union-attr]
            for repository in ("team/a", "teams/a")
        }
        assert names == {"team/a": "team", "teams/a": "host"}

    def test_identity_token(self, tmp_path: Path) -> None:
        entry = {"auth": base64.b64encode(b"u:").decode(), "identitytoken": SECRET}
        environment = self.write(tmp_path, {"auths": {"r.example": entry}})
        found = find_credentials("r.example", environment=environment)
        assert found is not None
        assert found.is_identity_token

    @pytest.mark.parametrize("form", ["credsStore", "credHelpers"])
    def test_helper(self, form: str, tmp_path: Path) -> None:
        value = "test" if form == "credsStore" else {"r.example": "test"}
        environment = self.write(tmp_path, {form: value, "auths": {"r.example": {}}})
        script = f'read host; echo "{{\\"Username\\":\\"$host\\",\\"Secret\\":\\"{SECRET}\\"}}"'
        environment["PATH"] = self.helper(tmp_path, "test", script)
        found = find_credentials("r.example", environment=environment)
        assert found is not None
        assert (found.username, found.secret) == ("r.example", SECRET)

    def test_helper_without_an_entry(self, tmp_path: Path) -> None:
        environment = self.write(tmp_path, {"credsStore": "test"})
        script = "echo credentials not found in native keychain; exit 1"
        environment["PATH"] = self.helper(tmp_path, "test", script)
        assert find_credentials("r.example", environment=environment) is None

    @pytest.mark.parametrize("script", ["exit 3", f"echo {SECRET}", "echo '{}'"])
    def test_helper_that_fails(self, script: str, tmp_path: Path) -> None:
        environment = self.write(tmp_path, {"credsStore": "test"})
        environment["PATH"] = self.helper(tmp_path, "test", script)
        with pytest.raises(UsageError, match="docker-credential-test") as caught:
            find_credentials("r.example", environment=environment)
        assert SECRET not in str(caught.value)

    def test_helper_that_is_absent_or_absurd(self, tmp_path: Path) -> None:
        environment = self.write(tmp_path, {"credsStore": "absent-helper"})
        with pytest.raises(UsageError, match="not installed"):
            find_credentials("r.example", environment=environment)
        environment = self.write(tmp_path, {"credsStore": "../../bin/sh"})
        with pytest.raises(UsageError, match="cannot be meant"):
            find_credentials("r.example", environment=environment)

    @pytest.mark.parametrize("text", ["{", "[]", '{"auths": {"r.example": {"auth": "%%%"}}}'])
    def test_a_broken_config(self, text: str, tmp_path: Path) -> None:
        environment = self.write(tmp_path, {})
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UsageError, match="cannot be used"):
            find_credentials("r.example", environment=environment)
