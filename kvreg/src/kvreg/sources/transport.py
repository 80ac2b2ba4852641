"""HTTP for one registry: time limits, retries by policy, redirects that leak no credentials."""

import email.utils
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
)

from kvreg import __version__
from kvreg.errors import NetworkError

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
# Connections that are kept for the next request to the same host.
_KEPT = 8

TRANSIENT = (ReadTimeoutError, ProtocolError)
"""What a connection that was up can suffer; worth another attempt."""
UNREACHABLE = (NewConnectionError, ConnectTimeoutError, ProxyError)
"""What a connection that never came up can suffer; soon given up, as it may be a typing error."""


@dataclass(frozen=True)
class RetryPolicy:
    """When a request is sent again, and after how many seconds."""

    attempts: int = 6
    connect_attempts: int = 3
    statuses: frozenset[int] = frozenset({408, 429, 500, 502, 503, 504})
    first_delay: float = 0.5
    longest_delay: float = 30.0

    def delay(self, attempt: int, retry_after: float | None = None) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1); None means give up."""
        if attempt >= self.attempts:
            return None
        if retry_after is not None:
            return retry_after if retry_after <= self.longest_delay else None
        return min(self.first_delay * 2.0 ** (attempt - 1), self.longest_delay)


class Transport:
    """Sends GET (and, for tokens, POST) requests; every answer that is not transient is returned.
    Safe to use from several threads.

    `read_timeout` is how long a read may bring nothing, in seconds.
    """

    def __init__(
        self,
        *,
        policy: RetryPolicy | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.policy = policy or RetryPolicy()
        self.sleep = sleep
        self._timeout = urllib3.Timeout(connect=connect_timeout, read=read_timeout)
        self._pools: dict[str | None, urllib3.PoolManager] = {}

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return the streaming response, redirects followed.

        Raises `NetworkError` when the policy gives up. The caller reads or closes the response.
        """
        current, sent = url, dict(headers or {})
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._attempts(method, current, sent, fields)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return response
            response.close()
            target = urljoin(current, location)
            sent = _headers_for_redirect(current, target, sent)
            current = target
        raise NetworkError(f"{display(url)} redirects more than {_MAX_REDIRECTS} times")

    def _attempts(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        fields: Mapping[str, str] | None,
    ) -> urllib3.BaseHTTPResponse:
        attempt = 0
        while True:
            attempt += 1
            retry_after = None
            try:
                response = self._send(method, url, headers, fields)
            except UNREACHABLE as error:
                reason = f"cannot be reached: {_reason(error)}"
                delay = self.policy.delay(attempt)
                if attempt >= self.policy.connect_attempts:
                    delay = None
            except TRANSIENT as error:
                reason = f"broke off: {_reason(error)}"
                delay = self.policy.delay(attempt)
            except HTTPError as error:
                # TLS failures and malformed URLs do not go away by themselves.
                raise NetworkError(f"{display(url)} failed: {_reason(error)}") from None
            else:
                if response.status not in self.policy.statuses:
                    return response
                reason = f"answered {response.status} {response.reason or ''}".rstrip()
                retry_after = _retry_after(response.headers.get("Retry-After"))
                response.close()
                delay = self.policy.delay(attempt, retry_after)
            if delay is None:
                raise _gave_up(url, reason, attempt, retry_after)
            self.sleep(delay)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        fields: Mapping[str, str] | None,
    ) -> urllib3.BaseHTTPResponse:
        return self._pool(url).request(
            method,
            url,
            body=urlencode(fields) if fields else None,
            headers={
                "User-Agent": f"kvreg/{__version__}",
                # A blob is hashed as it is stored: no transfer compression.
                "Accept-Encoding": "identity",
                **({"Content-Type": "application/x-www-form-urlencoded"} if fields else {}),
                **headers,
            },
            timeout=self._timeout,
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = getproxies().get(parts.scheme)
        if proxy is not None and proxy_bypass(parts.netloc):
            proxy = None
        if proxy not in self._pools:
            kind = urllib3.ProxyManager(proxy, maxsize=_KEPT) if proxy else None
            # Two threads may come here at once: both use the one that was first.
            self._pools.setdefault(proxy, kind or urllib3.PoolManager(maxsize=_KEPT))
        return self._pools[proxy]


def read_small(response: urllib3.BaseHTTPResponse, limit: int) -> bytes:
    """Read a whole small body; `NetworkError` when it is longer than `limit` bytes or breaks."""
    parts: list[bytes] = []
    left = limit + 1
    try:
        while left > 0 and (chunk := response.read(left)):
            parts.append(chunk)
            left -= len(chunk)
    except HTTPError as error:
        raise NetworkError(f"an answer broke off: {_reason(error)}") from None
    finally:
        response.close() if left <= 0 else response.release_conn()
    if left <= 0:
        raise NetworkError("an answer is too long", expected=f"at most {limit} bytes")
    return b"".join(parts)


def display(url: str) -> str:
    """A URL for messages: without its query, which may hold a signature."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _headers_for_redirect(current: str, target: str, headers: Mapping[str, str]) -> dict[str, str]:
    old, new = _origin(current), _origin(target)
    if new[0] not in ("http", "https") or (old[0] == "https" and new[0] != "https"):
        raise NetworkError(
            f"{display(current)} redirects to a less secure address", found=display(target)
        )
    if old == new:
        return dict(headers)
    return {key: value for key, value in headers.items() if key.lower() != "authorization"}


def _retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _gave_up(url: str, reason: str, attempts: int, retry_after: float | None) -> NetworkError:
    wait = f" and asks to wait {retry_after:.0f} s" if retry_after else ""
    return NetworkError(
        f"{display(url)} {reason}{wait}",
        found=f"the same after {attempts} attempts" if attempts > 1 else None,
        remedy="check the address and the connection, then try again: what was verified is kept",
    )


def _reason(error: HTTPError) -> str:
    # urllib3 puts the pool or connection object first: "<...>: reason"
    text = str(error)
    return text.partition(": ")[2] if text.startswith(("<", "HTTP")) and ": " in text else text
