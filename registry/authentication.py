"""Answering a registry's challenge: Basic, Bearer tokens, and their renewal when they expire.

oras-py sends an expired token again and again; this backend takes its place. A refusal that no
token can cure is reported at once: the repository is absent or private.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvreg.errors import NetworkError
from kvreg.reference import is_loopback
from registry.credentials import Credentials
from registry.oras_base import TokenAuth, requests
from registry.refusal import error_text
from registry.text import printable

_SCHEME = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9._~+-]*)(?=\s|,|$)")
_PARAMETER = re.compile(
    r"\s*,?\s*([A-Za-z][A-Za-z0-9._~-]*)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]+))"
)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_DEFAULT_SECONDS = 60
"""How long a token lasts when the server does not say (distribution's token specification)."""
_EARLY_SECONDS = 5


@dataclass(frozen=True)
class Challenge:
    """One challenge of a ``WWW-Authenticate`` header; scheme and parameter names in lower case."""

    scheme: str
    parameters: dict[str, str] = field(default_factory=dict)


def parse_challenges(header: str) -> list[Challenge]:
    """The challenges of a ``WWW-Authenticate`` header; what cannot be read ends the list.

    >>> parse_challenges('Bearer realm="https://r.example/token",scope="repository:a:pull,push"')
    [Challenge(scheme='bearer', parameters={'realm': 'https://r.example/token', \
'scope': 'repository:a:pull,push'})]
    """
    challenges: list[Challenge] = []
    position = 0
    while position < len(header):
        if challenges and (match := _PARAMETER.match(header, position)):
            quoted, bare = match.group(2), match.group(3)
            value = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            challenges[-1].parameters.setdefault(match.group(1).lower(), value)
        elif match := _SCHEME.match(header, position):
            challenges.append(Challenge(match.group(1).lower()))
        else:
            break
        position = match.end()
    return challenges


@dataclass(frozen=True)
class _Token:
    authorization: str = field(repr=False)
    expires: float | None
    challenge: Challenge | None = None


Fetch = Callable[..., requests.Response]


class Authentication(TokenAuth):
    """oras-py's authentication interface for one repository.

    `fetch(method, url, headers=..., params=..., data=...)` sends the requests to a token server.
    """

    def __init__(
        self,
        repository: str,
        host: str,
        *,
        plain_http: bool,
        fetch: Fetch,
        find: Callable[[], Credentials | None],
    ) -> None:
        super().__init__()
        self._where = f"{host}/{repository}"
        self._host = host
        self._plain_http = plain_http
        self._fetch = fetch
        self._find = find
        self._credentials: Credentials | None = None
        self._searched = False
        self._held: _Token | None = None

    def learn_from(self, other: "Authentication") -> None:
        """Take over the token and the credentials of another client of the same repository."""
        self._credentials, self._searched = other._credentials, other._searched
        self._held = other._held

    @property
    def token(self) -> str | None:
        """What oras-py asks to know whether `get_auth_header` has something to send."""
        return self._held.authorization if self._held else None

    @token.setter
    def token(self, value: str | None) -> None:
        """oras-py resets its token; ours is renewed by `authenticate_request` alone."""

    def get_auth_header(self) -> dict[str, str]:
        """The header for the next request; a token that is about to expire is renewed first."""
        held = self._held
        if held and held.challenge and time.monotonic() >= (held.expires or 0):
            self._held = self._bearer(held.challenge)
        return {"Authorization": self._held.authorization} if self._held else {}

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, str], refresh: bool = False
    ) -> tuple[dict[str, str], bool]:
        """Headers that answer the challenge of a 401 or 403; `NetworkError` when nothing can."""
        challenges = parse_challenges(original.headers.get("WWW-Authenticate", ""))
        sent = original.request.headers.get("Authorization")
        # oras-py asks again with `refresh` after a second refusal: the new token was no cure.
        if refresh or (original.status_code == 403 and (sent or not challenges)):
            raise self.refusal(original)
        original.close()
        self._held = self._answer(challenges, sent, original)
        return {**headers, "Authorization": self._held.authorization}, True

    def refusal(self, response: requests.Response) -> NetworkError:
        """The error for a registry that says no to who we are."""
        if self._credentials is None:
            who, remedy = "anonymous access", "log in with `docker login`, or set"
        else:
            who = f"access with the credentials of {self._credentials.origin}"
            remedy = "check the name and what you may do there; log in again, or set"
        found = f"{response.status_code} {printable(response.reason or '')}{error_text(response)}"
        response.close()
        return NetworkError(
            f"{self._where} is absent or private",
            expected=f"a repository that allows {who}",
            found=found,
            remedy=f"{remedy} KVREG_REGISTRY_USERNAME and KVREG_REGISTRY_PASSWORD",
        )

    def _answer(
        self, challenges: list[Challenge], sent: str | None, response: requests.Response
    ) -> _Token:
        by_scheme = {challenge.scheme: challenge for challenge in reversed(challenges)}
        if bearer := by_scheme.get("bearer"):
            return self._bearer(bearer)
        credentials = self._find_once()
        usable = credentials is not None and not credentials.is_identity_token
        if "basic" in by_scheme and usable and sent != credentials.basic:
            return _Token(credentials.basic, None)
        raise self.refusal(response)

    def _bearer(self, challenge: Challenge) -> _Token:
        realm = challenge.parameters.get("realm", "")
        try:
            parts = urlsplit(realm)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            usable = False
        if not usable:
            raise self._nonsense("a realm that is a URL", realm)
        if parts.scheme == "http" and not self._plain_http:
            raise self._nonsense("a token server that speaks https like the registry", realm)
        credentials = self._find_once()
        if credentials:
            self._refuse_plain(realm)
        asked = time.monotonic()
        response = self._request_token(realm, challenge, credentials)
        if response.status_code in (400, 401, 403, 404):
            raise self.refusal(response)
        if response.status_code != 200:
            raise self._nonsense("200", f"{response.status_code} from the token server")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        return self._read(answer, challenge, asked)

    def _request_token(
        self, realm: str, challenge: Challenge, credentials: Credentials | None
    ) -> requests.Response:
        service = challenge.parameters.get("service")
        scopes = challenge.parameters.get("scope", "").split()
        if credentials and credentials.is_identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": credentials.secret,
                "client_id": "kvreg-registry",
                "scope": " ".join(scopes),
                "service": service or "",
            }
            return self._fetch("POST", realm, data=form)
        parameters = [("service", service)] if service else []
        parameters += [("scope", scope) for scope in scopes]
        headers = {"Authorization": credentials.basic} if credentials else {}
        return self._fetch("GET", realm, headers=headers, params=parameters)

    def _read(self, answer: Any, challenge: Challenge, asked: float) -> _Token:
        table = answer if isinstance(answer, dict) else {}
        token = table.get("token") or table.get("access_token")
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            raise self._nonsense("a JSON object with a token", "something else")
        seconds = table.get("expires_in")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
            seconds = _DEFAULT_SECONDS
        early = min(_EARLY_SECONDS, seconds / 2)
        return _Token(f"Bearer {token}", asked + seconds - early, challenge)

    def _find_once(self) -> Credentials | None:
        if not self._searched:
            self._credentials, self._searched = self._find(), True
        return self._credentials

    def _refuse_plain(self, url: str) -> None:
        """Credentials over plain HTTP go to this machine, or to the host the user wrote."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        if parts.scheme == "http" and host != self._host and not is_loopback(host):
            raise self._nonsense("a token server on the registry's host, or https", url)

    def _nonsense(self, expected: str, found: str) -> NetworkError:
        clean = printable(found.partition("?")[0])
        return NetworkError(
            f"{self._where} cannot be asked for a token", expected=expected, found=clean
        )
