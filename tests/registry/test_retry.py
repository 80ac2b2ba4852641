"""The retry policy as data."""

import pytest
import requests
import urllib3.exceptions
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.retry import NO_RETRY, Fault, GiveUp, Retry, RetryPolicy, parse_retry_after


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 520])
def test_worth_another_try(status: int) -> None:
    assert isinstance(RetryPolicy().judge(Fault.of_status(status), 1), Retry)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 416, 501, 505])
def test_final(status: int) -> None:
    decision = RetryPolicy().judge(Fault.of_status(status), 1)
    assert isinstance(decision, GiveUp)
    assert str(status) in decision.reason


def test_retry_after_is_honoured_within_reason() -> None:
    policy = RetryPolicy(longest_asked=60)
    assert policy.judge(Fault.of_status(429, "7"), 1) == Retry(
        7.0, "answered 429 Too Many Requests"
    )
    decision = policy.judge(Fault.of_status(503, "3600"), 1)
    assert isinstance(decision, GiveUp)
    assert "3600 s" in decision.reason


@settings(deadline=None)
@given(st.integers(1, 40), st.floats(0, 1))
def test_delays_are_bounded(attempt: int, chance: float) -> None:
    policy = RetryPolicy(attempts=50, longest=30)
    decision = policy.judge(Fault("reset", "the connection broke"), attempt, lambda: chance)
    assert isinstance(decision, Retry)
    assert 0 <= decision.delay <= 30


def test_attempts_are_counted() -> None:
    fault = Fault.of_status(503)
    assert isinstance(RetryPolicy(attempts=3).judge(fault, 2), Retry)
    assert RetryPolicy(attempts=3).judge(fault, 3) == GiveUp(
        "answered 503 Service Unavailable, 3 times"
    )
    assert isinstance(NO_RETRY.judge(fault, 1), GiveUp)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_retry_after_can_be_read(value: str) -> None:
    seconds = parse_retry_after(value)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("error", "kind", "transient"),
    [
        (requests.ConnectTimeout(), "timeout", True),
        (requests.ReadTimeout(), "timeout", True),
        (requests.exceptions.SSLError(), "tls", False),
        (requests.ConnectionError(ConnectionResetError()), "reset", True),
        (requests.ConnectionError(ConnectionRefusedError()), "refused", True),
        (requests.exceptions.ChunkedEncodingError(), "reset", True),
        (requests.TooManyRedirects(), "other", False),
        (requests.exceptions.InvalidURL(), "other", False),
        (
            requests.ConnectionError(urllib3.exceptions.ReadTimeoutError(None, "/x", "slow")),  # type: ignore[arg-type]
            "timeout",
            True,
        ),
    ],
)
def test_exceptions(error: requests.RequestException, kind: str, transient: bool) -> None:
    fault = Fault.of_exception(error)
    assert (fault.kind, fault.transient) == (kind, transient)


def test_an_unknown_host_is_named_so_at_once() -> None:
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get("http://no-such-host.invalid/?signature=secret", timeout=5)
    fault = Fault.of_exception(caught.value)
    assert (fault.kind, fault.transient) == ("name", False)
    assert "secret" not in fault.text
