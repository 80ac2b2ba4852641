"""Which faults are worth another try, and after how long: a policy as data.

>>> policy = RetryPolicy(jitter=0.0)
>>> policy.judge(Fault.of_status(503), attempt=1)
Retry(delay=0.5, reason='answered 503 Service Unavailable')
>>> policy.judge(Fault.of_status(404), attempt=1)
GiveUp(reason='answered 404 Not Found')
"""

import email.utils
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

import urllib3.exceptions

from registry.oras_base import requests

FaultKind = Literal["status", "reset", "timeout", "refused", "name", "tls", "other"]

_TRANSIENT_KINDS: frozenset[FaultKind] = frozenset({"reset", "timeout", "refused"})
_TRANSIENT_STATUSES = frozenset({408, 429})
_LASTING_SERVER_STATUSES = frozenset({501, 505})


@dataclass(frozen=True)
class Fault:
    """One failed exchange with a registry, in words that hold no secret."""

    kind: FaultKind
    text: str
    status: int | None = None
    retry_after: float | None = None
    """Seconds that the registry asks us to wait."""

    @property
    def transient(self) -> bool:
        """Whether the same request may well succeed a little later."""
        if self.status is None:
            return self.kind in _TRANSIENT_KINDS
        if self.status in _TRANSIENT_STATUSES:
            return True
        return self.status >= 500 and self.status not in _LASTING_SERVER_STATUSES

    @classmethod
    def of_status(cls, status: int, retry_after: str | None = None) -> "Fault":
        """The fault of an answer with `status` and perhaps a ``Retry-After`` header."""
        try:
            phrase = f" {HTTPStatus(status).phrase}"
        except ValueError:
            phrase = ""
        seconds = parse_retry_after(retry_after)
        return cls("status", f"answered {status}{phrase}", status, seconds)

    @classmethod
    def of_exception(cls, error: requests.RequestException) -> "Fault":
        """The fault behind an exception of the HTTP library.

        The library's own text is not used: it can hold a signed URL.
        """
        kind = _kind(error)
        texts = {
            "tls": "TLS failed",
            "name": "the host name is unknown",
            "refused": "the connection was refused",
            "timeout": "no answer in time",
            "reset": "the connection broke",
            "other": f"the request failed ({type(error).__name__})",
        }
        reason = _tls_reason(error) if kind == "tls" else ""
        return cls(kind, texts[kind] + reason)


def _kind(error: requests.RequestException) -> FaultKind:
    causes = _causes(error)
    if isinstance(error, requests.exceptions.SSLError):
        return "tls"
    if _any(causes, urllib3.exceptions.NameResolutionError):
        return "name"
    if _any(causes, ConnectionRefusedError):
        return "refused"
    if isinstance(error, requests.Timeout) or _any(
        causes, (urllib3.exceptions.TimeoutError, TimeoutError)
    ):
        return "timeout"
    if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return "reset"
    return "other"


def _causes(error: BaseException) -> list[BaseException]:
    """`error` and what it wraps: in its cause, context, arguments and ``reason``."""
    found: list[BaseException] = []
    queue: list[object] = [error]
    while queue:
        item = queue.pop()
        if isinstance(item, BaseException) and item not in found:
            found.append(item)
            queue += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
    return found


def _any(causes: list[BaseException], kinds: type | tuple[type, ...]) -> bool:
    return any(isinstance(cause, kinds) for cause in causes)


def _tls_reason(error: BaseException) -> str:
    for cause in _causes(error):
        if message := getattr(cause, "verify_message", None):
            return f": {message}"
    return ""


def parse_retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds to wait by a ``Retry-After`` header: a count or an HTTP date.

    >>> parse_retry_after("7")
    7.0
    >>> parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=30.0)
    30.0
    >>> parse_retry_after("soon") is None
    True
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


@dataclass(frozen=True)
class Retry:
    """Try again after `delay` seconds."""

    delay: float
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Do not try again."""

    reason: str


@dataclass(frozen=True)
class RetryPolicy:
    """How often and after how long a transient fault is tried again.

    Delays grow from `base` by `factor` up to `longest` seconds, each shortened by a random part of
    at most `jitter`. A ``Retry-After`` is honoured up to `longest_asked` seconds; a registry that
    asks for more is not waited for.
    """

    attempts: int = 5
    base: float = 0.5
    factor: float = 2.0
    longest: float = 30.0
    longest_asked: float = 120.0
    jitter: float = 0.5

    def judge(
        self, fault: Fault, attempt: int, chance: Callable[[], float] = random.random
    ) -> Retry | GiveUp:
        """Decide what follows the `attempt`-th try (from 1) that ended in `fault`."""
        if not fault.transient:
            return GiveUp(fault.text)
        if attempt >= self.attempts:
            return GiveUp(f"{fault.text}, {attempt} times")
        if fault.retry_after is not None:
            if fault.retry_after > self.longest_asked:
                return GiveUp(f"{fault.text} and asks to wait {fault.retry_after:.0f} s")
            return Retry(fault.retry_after, fault.text)
        delay = min(self.longest, self.base * self.factor ** (attempt - 1))
        return Retry(delay * (1 - self.jitter * chance()), fault.text)


NO_RETRY = RetryPolicy(attempts=1)
"""Every fault is final."""
