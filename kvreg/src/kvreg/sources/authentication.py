"""Answers to the challenges of registries: Basic, and the bearer token flow.

A token is asked for once; a token that was refused is dropped and replaced once. What cannot be
cured by a token fails at once instead of being tried again.
"""

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from kvreg.errors import NetworkError
from kvreg.reference import RegistryReference, is_loopback
from kvreg.sources.credentials import Credentials, find_credentials
from kvreg.sources.transport import Transport, display, read_small

_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_MAX_TOKEN_BYTES = 1 << 20
_CLIENT = "kvreg"


@dataclass(frozen=True)
class Challenge:
    """One parsed ``WWW-Authenticate`` header: its scheme, lower case, and its parameters."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenge(header: str) -> Challenge:
    """Read a challenge; unknown schemes are returned as they are.

    >>> parse_challenge('Bearer realm="https://auth.example/token",service="r"').parameters
    {'realm': 'https://auth.example/token', 'service': 'r'}
    """
    scheme, _, rest = header.strip().partition(" ")
    parameters = {
        match[1].lower(): re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        for match in _PARAMETER.finditer(rest)
    }
    return Challenge(scheme.lower(), parameters)


class Authenticator:
    """The ``Authorization`` header for one repository, kept until it is refused.

    Safe to use from several threads: those whose token was refused together get one new token.
    """

    def __init__(self, reference: RegistryReference, transport: Transport) -> None:
        self._reference = reference
        self._transport = transport
        self._header: str | None = None
        self._credentials: Credentials | None = None
        self._looked = False
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        """What to send with a request."""
        return {} if self._header is None else {"Authorization": self._header}

    def answer(self, header: str | None, sent: Mapping[str, str] | None = None) -> None:
        """Take up the challenge of a 401 to what was `sent`; `NetworkError` if it cannot be met."""
        with self._lock:
            if sent is None or sent == self.headers():
                self._answer(parse_challenge(header or ""))

    def _answer(self, challenge: Challenge) -> None:
        if challenge.scheme == "bearer":
            self._header = "Bearer " + self._token(challenge.parameters)
            return
        credentials = self._find()
        if challenge.scheme == "basic" and credentials is not None and self._header is None:
            self._header = credentials.basic()
            return
        raise self.refused()

    def refused(self) -> NetworkError:
        """The error for a repository that this login (or none) may not read."""
        who = "the credentials that were found" if self._find() else "an anonymous client"
        return NetworkError(
            f"{self._reference.host}/{self._reference.repository} is absent or private",
            found=f"the registry refuses {who}",
            remedy="check the name; log in with your container tool if it is private",
        )

    def _find(self) -> Credentials | None:
        if not self._looked:
            self._credentials = find_credentials(self._reference.host, self._reference.repository)
            self._looked = True
        return self._credentials

    def _token(self, parameters: Mapping[str, str]) -> str:
        realm = parameters.get("realm", "")
        self._check_realm(realm)
        query = {
            "service": parameters.get("service", ""),
            "scope": parameters.get("scope") or f"repository:{self._reference.repository}:pull",
        }
        query = {key: value for key, value in query.items() if value}
        credentials = self._find()
        if credentials is not None and credentials.identity_token:
            fields = {
                **query,
                "grant_type": "refresh_token",
                "refresh_token": credentials.identity_token,
                "client_id": _CLIENT,
            }
            response = self._transport.request("POST", realm, fields=fields)
        else:
            headers = {"Authorization": credentials.basic()} if credentials is not None else {}
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            response = self._transport.request("GET", url, headers)
        body = read_small(response, _MAX_TOKEN_BYTES)
        if response.status in (401, 403, 404):
            raise self.refused()
        return _token_in(body, realm, response.status)

    def _check_realm(self, realm: str) -> None:
        parts = urlsplit(realm)
        secure = parts.scheme == "https" or (
            parts.scheme == "http" and (self._reference.plain_http or is_loopback(parts.netloc))
        )
        if not secure or not parts.hostname:
            raise NetworkError(
                f"{self._reference.host} names a token service that is not secure",
                expected="an https address",
                found=display(realm) or "none",
            )


def _token_in(body: bytes, realm: str, status: int) -> str:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if status == 200 and isinstance(answer, dict):
        token = answer.get("token") or answer.get("access_token")
        # No spaces or line ends: it goes into a header.
        if isinstance(token, str) and re.fullmatch(r"[\x21-\x7e]+", token):
            return token
    raise NetworkError(
        f"the token service {display(realm)} gave no token", found=f"status {status}"
    )
