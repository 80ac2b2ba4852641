"""Faults by seed: which requests of a run go wrong and how is a function of the seed.

A decision depends on the request's method, path and how often it was made before, so the order in
which parallel transfers happen to interleave changes nothing.
"""

import random
import re
from collections import Counter
from collections.abc import Callable

from tests.registry.proxy import (
    Action,
    Answer,
    Forward,
    Request,
    applied_then,
    applied_then_reset,
    flipped,
    flipped_on_the_way,
    partly_applied,
    reset,
    respond,
    stalled,
    truncated,
    with_header,
)

PAGE = b"<!doctype html><title>Sign in</title>"
STALL_SECONDS = 0.8

_HTML = respond(200, {"Content-Type": "text/html; charset=utf-8"}, PAGE)

_ANYWHERE: dict[str, Callable[[random.Random], Action]] = {
    "reset": lambda chance: reset,
    "applied, then reset": lambda chance: applied_then_reset,
    "applied, then 500": lambda chance: applied_then(500),
    "applied, then 502": lambda chance: applied_then(502),
    "408": lambda chance: respond(408),
    "429": lambda chance: respond(429, {"Retry-After": "1"}),
    "429 for an hour": lambda chance: respond(429, {"Retry-After": "3600"}),
    "500": lambda chance: respond(500),
    "502": lambda chance: respond(502, {"Content-Type": "text/html"}, PAGE),
    "503": lambda chance: respond(503),
    "HTML with 200": lambda chance: _HTML,
    "expired token": lambda chance: _expired,
    "stall": lambda chance: stalled(STALL_SECONDS),
}
_ANSWERS: dict[str, Callable[[random.Random], Action]] = {
    "truncation": lambda chance: truncated(chance.randrange(2_000)),
    "late truncation": lambda chance: truncated(chance.randrange(60_000)),
    "flipped byte": lambda chance: flipped,
    "other bytes": lambda chance: _other_bytes,
    "more bytes": lambda chance: _more_bytes,
}
_BLOBS: dict[str, Callable[[random.Random], Action]] = {
    "wrong Content-Range": lambda chance: _wrong_range(chance.randrange(1, 20_000)),
    "range ignored": lambda chance: _range_ignored,
}
_UPLOADS: dict[str, Callable[[random.Random], Action]] = {
    "partly applied": lambda chance: partly_applied(chance.randrange(20_000)),
    "flipped on the way": lambda chance: flipped_on_the_way,
    "other digest": lambda chance: with_header("Docker-Content-Digest", "sha256:" + "0" * 64),
}


class SeededFaults:
    """A rule for `Proxy.rules`: at most `most` faults, each at a request with some probability.

    The request number `certain` of the run fails in any case. `fired` names what went wrong.
    """

    def __init__(self, seed: int, certain: int, most: int = 4) -> None:
        self.seed = seed
        self.certain = certain
        self.most = most
        self.often = random.Random(seed).choice([0.0, 0.1, 0.3])
        self.fired: list[str] = []
        self._seen: Counter[str] = Counter()
        self._planned: dict[int, Action] = {}
        self._number = 0
        self._follow: dict[str, Action] = {}

    def takes(self, request: Request) -> bool:
        """Whether this request goes wrong. Called under the proxy's lock."""
        key = f"{request.method} {re.sub(r'/uploads/.*', '/uploads/', request.path)}"
        self._seen[key] += 1
        number, self._number = self._number, self._number + 1
        action = self._follow.pop(key, None)
        if action is None:
            if len(self.fired) >= self.most:
                return False
            chance = random.Random(f"{self.seed} {key} {self._seen[key]}")
            if number != self.certain and chance.random() >= self.often:
                return False
            name, action = _choose(request, chance)
            self.fired.append(f"{key}: {name}")
            if name in ("truncation", "late truncation") and "/blobs/" in request.path:
                # What goes on after a fault can go wrong as well.
                follow = chance.choice([None, _wrong_range(0), _range_ignored, flipped])
                if follow is not None:
                    self._follow[key] = follow
        self._planned[id(request)] = action
        return True

    def action(self, request: Request, forward: Forward) -> Answer | None:
        """Do to the request what was decided."""
        return self._planned.pop(id(request))(request, forward)


def _choose(request: Request, chance: random.Random) -> tuple[str, Action]:
    kinds = dict(_ANYWHERE)
    if request.method == "GET" and "/uploads/" not in request.path:
        kinds |= _ANSWERS
        if "/blobs/" in request.path:
            kinds |= _BLOBS
    elif request.method in ("PUT", "PATCH") and "/uploads/" in request.path:
        kinds |= _UPLOADS
    name = chance.choice(sorted(kinds))
    if name == "stall" and chance.random() < 0.5:
        # Half as many: each costs a time limit.
        name = "reset"
    return name, kinds[name](chance)


def _expired(request: Request, forward: Forward) -> Answer:
    """As a registry answers a token that it knows no more."""
    host = request.headers["Host"]
    value = f'Bearer realm="http://{host}/token",service="test",error="invalid_token"'
    return Answer(401, {"WWW-Authenticate": value})


def _other_bytes(request: Request, forward: Forward) -> Answer:
    answer = forward(request)
    answer.body = bytes(len(answer.body))
    return answer


def _more_bytes(request: Request, forward: Forward) -> Answer:
    answer = forward(request)
    answer.body += b"\n"
    return answer


def _wrong_range(shift: int) -> Action:
    """Go on from elsewhere, and say so; a request for everything is answered in part."""

    def action(request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        total = len(answer.body)
        value = f"bytes {shift}-{shift + total - 1}/{shift + total}"
        return Answer(206, {**answer.headers, "Content-Range": value}, answer.body)

    return action


def _range_ignored(request: Request, forward: Forward) -> Answer:
    request.headers.pop("Range", None)
    return forward(request)
