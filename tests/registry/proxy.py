"""A proxy in front of a real registry that does on purpose what networks and registries do.

Rules decide by method and path which requests go wrong, how, and how often. Besides faults, the
proxy can give the registry what the installed one lacks: upload URLs that stay valid after a lost
answer, the referrers API, and bearer tokens that expire.
"""

import http.client
import json
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@dataclass
class Answer:
    """What goes back to the client."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    truncate: int | None = None


@dataclass
class Request:
    """What came from the client, with its body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Forward = Callable[[Request], Answer]
Action = Callable[[Request, Forward], Answer | None]
"""Answers a request, perhaps by forwarding it; None resets the connection."""


def respond(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Action:
    """Answer without asking the registry."""
    return lambda request, forward: Answer(status, dict(headers or {}), body)


def applied_then(status: int) -> Action:
    """Let the registry do it and answer something else."""

    def action(request: Request, forward: Forward) -> Answer:
        forward(request)
        return Answer(status)

    return action


def reset(request: Request, forward: Forward) -> None:
    """Reset the connection before the registry hears of the request."""


def applied_then_reset(request: Request, forward: Forward) -> None:
    """Let the registry do it and reset the connection."""
    forward(request)


def partly_applied(count: int) -> Action:
    """Give the registry only the first `count` bytes of the body, and reset the connection."""

    def action(request: Request, forward: Forward) -> None:
        headers = {k: v for k, v in request.headers.items() if k.lower() != "content-range"}
        forward(Request(request.method, request.path, headers, request.body[:count]))

    return action


def truncated(count: int) -> Action:
    """Close the connection after `count` bytes of the answer's body."""

    def action(request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        answer.truncate = count
        return answer

    return action


def flipped(request: Request, forward: Forward) -> Answer:
    """Change one byte of the answer's body."""
    answer = forward(request)
    if answer.body:
        middle = len(answer.body) // 2
        changed = bytes([answer.body[middle] ^ 0x01])
        answer.body = answer.body[:middle] + changed + answer.body[middle + 1 :]
    return answer


def flipped_on_the_way(request: Request, forward: Forward) -> Answer:
    """Change one byte of the request's body."""
    body = bytearray(request.body)
    if body:
        body[len(body) // 2] ^= 0x01
    return forward(Request(request.method, request.path, request.headers, bytes(body)))


def with_header(name: str, value: str | None) -> Action:
    """Replace a header of the answer, or drop it."""

    def action(request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        answer.headers = {k: v for k, v in answer.headers.items() if k.lower() != name.lower()}
        if value is not None:
            answer.headers[name] = value
        return answer

    return action


def stalled(seconds: float) -> Action:
    """Let the client wait, then answer as the registry does."""

    def action(request: Request, forward: Forward) -> Answer:
        time.sleep(seconds)
        return forward(request)

    return action


@dataclass
class Rule:
    """The next `times` requests of a method whose path matches, after `skip`, get `action`."""

    method: str
    pattern: str
    action: Action
    times: int = 1
    skip: int = 0

    def takes(self, request: Request) -> bool:
        if self.times == 0 or request.method != self.method:
            return False
        if re.search(self.pattern, request.path) is None:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Proxy:
    """A running proxy. `log` holds (method, path without query, status or "reset")."""

    upstream: str
    host: str = ""
    rules: list[Rule] = field(default_factory=list)
    log: list[tuple[str, str, object]] = field(default_factory=list)
    sticky_uploads: bool = False
    referrers_api: bool = False
    token_uses: int | None = None
    token_answer: Answer | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    authorizations: list[str | None] = field(default_factory=list)
    token_requests: list[Request] = field(default_factory=list)
    _uploads: dict[str, str] = field(default_factory=dict)
    _referrers: dict[str, list[dict]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(
        self, method: str, pattern: str, action: Action, times: int = 1, skip: int = 0
    ) -> None:
        """Add a rule."""
        self.rules.append(Rule(method, pattern, action, times, skip))

    def count(self, method: str, pattern: str = "") -> int:
        """How many requests of a method and path were made."""
        return sum(m == method and re.search(pattern, p) is not None for m, p, _ in self.log)

    def serve(self, request: Request) -> Answer | None:
        with self._lock:
            rule = next((rule for rule in self.rules if rule.takes(request)), None)
        if urlsplit(request.path).path == "/token":
            self.token_requests.append(request)
            return rule.action(request, self._token) if rule else self._token(request)
        self.authorizations.append(request.headers.get("Authorization"))
        if self.token_uses is not None and (refusal := self._challenge(request)):
            return refusal
        return rule.action(request, self._forward) if rule else self._forward(request)

    def _token(self, request: Request) -> Answer:
        if self.token_answer is not None:
            return self.token_answer
        token = secrets.token_hex(8)
        self.tokens[token] = self.token_uses or 0
        body = json.dumps({"token": token, "expires_in": 300}).encode()
        return Answer(200, {"Content-Type": "application/json"}, body)

    def _challenge(self, request: Request) -> Answer | None:
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.tokens.get(token, 0) > 0:
            self.tokens[token] -= 1
            return None
        repository = re.match(r"/v2/(.+?)/(blobs|manifests|tags|referrers)/", request.path)
        scope = f"repository:{repository.group(1)}:pull,push" if repository else ""
        value = f'Bearer realm="http://{self.host}/token",service="test",scope="{scope}"'
        return Answer(401, {"WWW-Authenticate": value})

    def _forward(self, request: Request) -> Answer:
        parts = urlsplit(request.path)
        if self.referrers_api and (match := re.search(r"/referrers/(sha256:\w+)$", parts.path)):
            return self._list_referrers(match.group(1), parse_qs(parts.query))
        path = request.path
        if self.sticky_uploads and (match := re.search(r"/uploads/sticky-(\w+)", path)):
            path = self._uploads[match.group(1)]
            if "digest=" in parts.query:
                path += f"&{parts.query}"
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_HEADERS}
        if request.headers.get("Authorization", "").startswith("Bearer"):
            headers.pop("Authorization")
        # With the proxy's own name the registry makes URLs that lead back to the proxy.
        connection.request(
            request.method, path, request.body or None, {**headers, "Host": self.host}
        )
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        if request.method == "HEAD":
            answer.headers["X-Length"] = answer.headers.get("Content-Length", "0")
        if self.sticky_uploads and "/uploads/" in answer.headers.get("Location", ""):
            self._stick(answer, request)
        if self.referrers_api and request.method == "PUT" and "/manifests/" in path:
            self._note_subject(answer, request)
        return answer

    def _stick(self, answer: Answer, request: Request) -> None:
        target = urlsplit(answer.headers["Location"])
        match = re.search(r"/uploads/sticky-(\w+)", request.path)
        name = match.group(1) if match else secrets.token_hex(6)
        self._uploads[name] = f"{target.path}?{target.query}"
        answer.headers["Location"] = re.sub(r"/uploads/.*", f"/uploads/sticky-{name}", target.path)

    def _note_subject(self, answer: Answer, request: Request) -> None:
        manifest = json.loads(request.body)
        if answer.status != 201 or "subject" not in manifest:
            return
        digest = answer.headers["Docker-Content-Digest"]
        entry = {
            "mediaType": manifest["mediaType"],
            "digest": digest,
            "size": len(request.body),
            "artifactType": manifest.get("artifactType", manifest["config"]["mediaType"]),
            **({"annotations": found} if (found := manifest.get("annotations")) else {}),
        }
        subject = manifest["subject"]["digest"]
        listed = self._referrers.setdefault(subject, [])
        if entry not in listed:
            listed.append(entry)
        answer.headers["OCI-Subject"] = subject

    def _list_referrers(self, subject: str, query: dict[str, list[str]]) -> Answer:
        """One referrer a page, so that paging is exercised."""
        listed = self._referrers.get(subject, [])
        start = int(query.get("last", ["0"])[0])
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": listed[start : start + 1],
        }
        headers = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
        if start + 1 < len(listed):
            headers["Link"] = f'<?last={start + 1}>; rel="next"'
        return Answer(200, headers, json.dumps(index).encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        request = Request(self.command, self.path, dict(self.headers.items()), body)
        answer = self.server.proxy.serve(request)
        path = urlsplit(self.path).path
        self.server.proxy.log.append((self.command, path, answer.status if answer else "reset"))
        if answer is None:
            self._reset()
            return
        self.send_response(answer.status)
        length = answer.headers.get("X-Length") or str(len(answer.body))
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_HEADERS | {"date", "server", "x-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if answer.truncate is not None:
            self.wfile.write(answer.body[: answer.truncate])
            self.close_connection = True
        else:
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _reset(self) -> None:
        # Lingering for no time makes the kernel send RST, as a lost peer does.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()

    def log_message(self, *arguments: object) -> None:
        """The proxy keeps its own log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


@contextmanager
def running_proxy(upstream: str, **options: object) -> Iterator[Proxy]:
    """Run a proxy in front of the registry at `upstream` (``host:port``)."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.proxy = Proxy(upstream, f"127.0.0.1:{server.server_port}", **options)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
