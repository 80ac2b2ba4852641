"""One repository's HTTP: oras-py's request, with timeouts, one retry policy and clear errors.

Every request goes through `oras.provider.Registry.do_request` without that method's own retry
loop (which sleeps for minutes on a refusal and gives up on 503). A client belongs to one
repository, because oras-py keeps one token a client.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from requests.adapters import HTTPAdapter

from kvreg.errors import NetworkError
from kvreg.model.oci import MAX_MANIFEST_BYTES
from kvreg.reference import RegistryReference
from registry import __version__
from registry.authentication import Authentication
from registry.credentials import Credentials, find_credentials
from registry.oras_base import Registry, request_once, requests
from registry.refusal import error_text
from registry.retry import Fault, GiveUp, RetryPolicy
from registry.text import printable

_log = logging.getLogger("registry")

_SOCKET_BLOCK = 256 * 1024
"""Each must be taken within the time limit for connecting: 256 KiB in 15 s is 17 KiB/s."""
_API_HOSTS = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
_MAX_BODY_BYTES = MAX_MANIFEST_BYTES + 1

Answer = requests.Response | Fault


@dataclass(frozen=True)
class Timeouts:
    """Seconds without a sign of life before a request counts as failed.

    `connect` also bounds each block that is sent; `commit` is for the requests after which a
    registry flushes, hashes or moves a whole blob before it answers.
    """

    connect: float = 15.0
    read: float = 60.0
    commit: float = 600.0


class _Adapter(HTTPAdapter):
    """Larger blocks on the wire, and none of the library's own retries."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=_SOCKET_BLOCK, **kwargs)


class _Session(requests.Session):
    """A session that keeps our token from other hosts and that never waits for ever."""

    def __init__(self, origin: tuple[str, str], timeouts: Timeouts) -> None:
        super().__init__()
        self._origin = origin
        self._timeouts = timeouts
        self.max_redirects = 10
        # Without this, a ~/.netrc entry would silently replace the Authorization header.
        self.auth = _keep
        # A proxy is never the way to this machine.
        named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        self._no_proxy = ",".join(filter(None, (named, "localhost", "127.0.0.0/8", "::1")))
        self.headers.update(
            {"User-Agent": f"kvreg-registry/{__version__}", "Accept-Encoding": "identity"}
        )
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(max_retries=0))

    def request(self, method: str, url: str, **options: Any) -> requests.Response:  # type: ignore[override]
        """A request to the registry, or, without our token, to where it sent us."""
        if origin_of(url) != self._origin and options.get("headers"):
            options["headers"] = {
                name: value
                for name, value in options["headers"].items()
                if name.lower() != "authorization"
            }
        return self.request_elsewhere(method, url, **options)

    def request_elsewhere(self, method: str, url: str, **options: Any) -> requests.Response:
        """A request with the headers as they are, for token servers."""
        if hasattr(body := options.get("data"), "rewind"):
            body.rewind()
        commits = method in ("PATCH", "PUT")
        wait = self._timeouts.commit if commits else self._timeouts.read
        options.setdefault("timeout", (self._timeouts.connect, wait))
        options.setdefault("proxies", {"no_proxy": self._no_proxy})
        return super().request(method, url, **options)


def _keep(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class Client(Registry):
    """The requests of one repository.

    `sleep` and `find` (the credentials) are arguments so that tests need neither time nor a home
    directory.
    """

    def __init__(
        self,
        reference: RegistryReference,
        *,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        sleep: Callable[[float], None] = time.sleep,
        find: Callable[[], Credentials | None] | None = None,
    ) -> None:
        super().__init__(hostname=reference.host, insecure=reference.plain_http)
        self._reference = reference
        self._timeouts = timeouts or Timeouts()
        self._find = find
        self.host = reference.host
        self.repository = reference.repository
        self.where = f"{reference.host}/{reference.repository}"
        self.retry = retry or RetryPolicy()
        self.sleep = sleep
        base = f"{self.prefix}://{_API_HOSTS.get(reference.host, reference.host)}"
        self._base = f"{base}/v2/{reference.repository}/"
        self.session.close()
        self.session = _Session(origin_of(base), self._timeouts)
        self.auth = Authentication(
            reference.repository,
            reference.host,
            plain_http=reference.plain_http,
            fetch=self._ask_token_server,
            find=find or (lambda: find_credentials(reference.host, reference.repository)),
        )

    def twin(self) -> "Client":
        """A client of the same repository for another thread, with the token that this one has."""
        other = Client(
            self._reference,
            retry=self.retry,
            timeouts=self._timeouts,
            sleep=self.sleep,
            find=self._find,
        )
        other.auth.learn_from(self.auth)
        return other

    def url(self, path: str) -> str:
        """The URL of `path` below ``/v2/<repository>/``."""
        return self._base + path

    def attempt(
        self,
        method: str,
        url: str,
        *,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> Answer:
        """One request, with an answered challenge if there is one. An answer of any status, or
        the fault that prevented one; `NetworkError` when the registry refuses us."""
        try:
            response: requests.Response = request_once(
                self, url, method, data=data, headers=dict(headers or {}), stream=True
            )
            if not stream:
                self._load(response)
        except requests.RequestException as error:
            return Fault.of_exception(error)
        if response.status_code in (401, 403):
            raise self.auth.refusal(response)
        return response

    def do_request(  # type: ignore[override]
        self,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        stream: bool = False,
    ) -> requests.Response:
        """A request that is tried again by the policy; `NetworkError` when none was answered.

        The answer can have any status: what the policy gave up on is for the caller to judge.
        """
        if json is not None:
            raise TypeError("bytes are sent as they are; serialise first")
        return self._retrying(
            method,
            url,
            lambda: self.attempt(method, url, data=data, headers=headers, stream=stream),
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        expect: Iterable[int] = (200,),
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """`do_request` for a path of the repository or a URL; `NetworkError` unless the status is
        one of `expect`."""
        url = path if "://" in path else self.url(path)
        response = self.do_request(url, method, data=data, headers=headers)
        if response.status_code not in expect:
            raise self.unexpected(method, response, expect)
        return response

    def unexpected(
        self, method: str, response: requests.Response, expect: Iterable[int] = ()
    ) -> NetworkError:
        """The error for an answer of the wrong status, with what the registry says about it."""
        found = f"{response.status_code} {printable(response.reason or '')}{error_text(response)}"
        response.close()
        request_path = urlsplit(response.request.url or "").path
        return NetworkError(
            f"{self.where}: {method} {printable(request_path)} was refused",
            expected=" or ".join(str(status) for status in expect) or None,
            found=found,
        )

    def failed(self, method: str, url: str, reason: str) -> NetworkError:
        """The error for a request that was given up."""
        return NetworkError(
            f"{self.where}: {method} {printable(urlsplit(url).path)} failed: {reason}",
            remedy="check the host, the network and the registry, and run the same command again",
        )

    def follow(self, response: requests.Response) -> str:
        """The absolute URL of an answer's Location; `NetworkError` when it leads astray."""
        value = response.headers.get("Location")
        base = urlsplit(self._base)
        try:
            target = urljoin(response.url or self._base, value or "")
            parts = urlsplit(target)
            usable = value and parts.scheme in ("http", "https") and parts.hostname
            origin_of(target)
        except ValueError:
            usable = False
        if not usable:
            raise self._astray("a URL", value)
        if base.scheme == "https" and parts.scheme == "http":
            # A registry behind a TLS proxy often believes that it speaks plain HTTP.
            if parts.hostname != base.hostname:
                raise self._astray("https, as the registry itself", target)
            target = parts._replace(scheme="https").geturl()
        return target

    def next_page(self, response: requests.Response) -> str | None:
        """The URL of the next page of a list, None after the last; `NetworkError` when the link
        leads to another host or back to the same page."""
        link = response.links.get("next", {}).get("url")
        if not link:
            return None
        try:
            target = urljoin(response.url, link)
            same_host = origin_of(target) == origin_of(self._base)
        except ValueError:
            same_host = False
        if not same_host or target == response.url:
            raise NetworkError(
                f"{self.where}: the registry sent a list that does not end or leads elsewhere",
                found=printable(link.partition("?")[0]),
            )
        return target

    def abandon(self, started: requests.Response) -> None:
        """Leave an upload; a registry that does not mind the request tidies up later."""
        with contextlib.suppress(NetworkError):
            self.attempt("DELETE", self.follow(started))

    def close(self) -> None:
        """Close the connections."""
        self.session.close()

    def _load(self, response: requests.Response) -> None:
        """Read the body that the library would read, but not without end."""
        body = bytearray()
        for chunk in response.iter_content(_SOCKET_BLOCK):
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                response.close()
                raise NetworkError(
                    f"{self.where}: an answer is too large",
                    expected=f"at most {MAX_MANIFEST_BYTES} bytes",
                    found=f"{response.headers.get('Content-Length', 'more')} bytes",
                )
        # Where the library itself keeps a body that was read: `content`, `text` and `json` use it.
        response._content = bytes(body)

    def _astray(self, expected: str, found: str | None) -> NetworkError:
        shown = printable((found or "nothing").partition("?")[0])
        return NetworkError(
            f"{self.where}: the registry sent a Location that cannot be followed",
            expected=expected,
            found=shown,
        )

    def _ask_token_server(self, method: str, url: str, **options: Any) -> requests.Response:
        def once() -> Answer:
            try:
                return self.session.request_elsewhere(method, url, allow_redirects=False, **options)
            except requests.RequestException as error:
                return Fault.of_exception(error)

        return self._retrying(method, url, once)

    def _retrying(self, method: str, url: str, once: Callable[[], Answer]) -> requests.Response:
        attempt = 1
        while True:
            answer = once()
            fault = as_fault(answer)
            if fault is None:
                assert isinstance(answer, requests.Response)
                return answer
            decision = self.retry.judge(fault, attempt)
            if isinstance(decision, GiveUp):
                raise self.failed(method, url, decision.reason)
            if isinstance(answer, requests.Response):
                answer.close()
            self.pause(decision.delay, decision.reason)
            attempt += 1

    def pause(self, delay: float, reason: str) -> None:
        """Wait before another try, and say so when it takes long enough to be noticed."""
        level = logging.WARNING if delay >= 2 else logging.DEBUG
        _log.log(level, "%s %s; trying again in %.1f s", self.where, reason, delay)
        self.sleep(delay)


def as_fault(answer: Answer) -> Fault | None:
    """The fault that an answer is, or None for one that needs no other try."""
    if isinstance(answer, Fault):
        return answer
    fault = Fault.of_status(answer.status_code, answer.headers.get("Retry-After"))
    return fault if fault.transient else None


def origin_of(url: str) -> tuple[str, str]:
    """Scheme and host with its port, so that a default port makes no difference.

    >>> origin_of("https://Ghcr.io/v2/") == origin_of("https://ghcr.io:443/x")
    True
    """
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return parts.scheme, f"{(parts.hostname or '').lower()}:{port}"
