"""A registry that serves one layout and misbehaves on purpose, one scripted fault at a time.

Faults are queued for manifests or blobs and used up in order, one a request; without a fault the
answer is right. All requests are recorded.
"""

import json
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kvreg.model.oci import MEDIA_TYPE_MANIFEST, Index

REPOSITORY = "team/runtimes"
TOKEN = "good-token"

Fault = Callable[["Handler", bytes, int], None]


class FaultyRegistry(ThreadingHTTPServer):
    """Serves `layout` as ``team/runtimes``. `faults` maps ``manifests`` or ``blobs`` to queues."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, layout: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.layout = layout
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.needs_token = False
        self.token_status = 200
        self.tokens_given = 0
        self.knows_ranges = True
        self.finished = threading.Event()
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, path: str, size: int) -> None:
        """Note that bytes of an answer's body have been handed to the kernel."""
        with self._lock:
            self._sent[path] += size

    def sent(self, digest: str) -> int:
        """Bytes sent so far of a blob."""
        with self._lock:
            return sum(size for path, size in self._sent.items() if path.endswith(digest))

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def reference(self) -> str:
        """The reference of the one repository."""
        return f"{self.host}/{REPOSITORY}"

    def paths(self, kind: str) -> list[str]:
        """The paths of all requests of a kind so far."""
        return [path for path, _ in self.requests if f"/{kind}/" in path]

    def digest(self, name: str) -> str | None:
        """The digest that a tag or digest means."""
        if name.startswith("sha256:"):
            return name
        found = Index.parse((self.layout / "index.json").read_bytes()).tagged(name)
        return found.digest if found else None

    def content(self, kind: str, name: str) -> bytes | None:
        """What the layout has under a digest or tag."""
        digest = self.digest(name)
        if digest is None:
            return None
        path = self.layout / "blobs/sha256" / digest.removeprefix("sha256:")
        return path.read_bytes() if path.is_file() else None


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: FaultyRegistry
    stop: int | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        """Serve a token, a manifest or a blob."""
        url = urlsplit(self.path)
        self.server.requests.append((self.path, dict(self.headers)))
        if url.path == "/token":
            self._token(parse_qs(url.query))
            return
        if self.server.needs_token and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            realm = f"http://{self.server.host}/token"
            challenge = (
                f'Bearer realm="{realm}",service="test",scope="repository:{REPOSITORY}:pull"'
            )
            self.answer(401, b"{}", {"WWW-Authenticate": challenge})
            return
        match = re.fullmatch(rf"/v2/{REPOSITORY}/(manifests|blobs)/(.+)", url.path)
        content = self.server.content(*match.groups()) if match else None
        if match is None or content is None:
            self.answer(404, b'{"errors":[{"code":"NAME_UNKNOWN"}]}')
            return
        start, self.stop = self._range()
        queue = self.server.faults[match[1]]
        if queue:
            queue.popleft()(self, content, start)
        else:
            is_manifest = match[1] == "manifests"
            # What was asked for, not what is sent: as a registry does that is itself deceived.
            digest = self.server.digest(match[2]) if is_manifest else None
            kind = MEDIA_TYPE_MANIFEST if is_manifest else None
            self.serve(content, start, kind, self.stop, digest)

    def do_POST(self) -> None:
        """A token for a refresh token."""
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length).decode()
        self.server.requests.append((self.path, {**dict(self.headers), "body": body}))
        self._token(parse_qs(body))

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.count(self.path, len(body))

    def serve(
        self,
        content: bytes,
        start: int,
        media_type: str | None = None,
        stop: int | None = None,
        digest: str | None = None,
    ) -> None:
        """Send content from `start` on (up to `stop`), as it should be."""
        stop = len(content) if stop is None else min(stop, len(content))
        part = start > 0 or stop < len(content)
        headers = {"Content-Type": media_type or "application/octet-stream"}
        if digest is not None:
            headers["Docker-Content-Digest"] = digest
        if part:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self.answer(206 if part else 200, content[start:stop], headers)

    def begin(self, content: bytes, start: int, count: int) -> None:
        """Promise what was asked for from `start` on and send `count` bytes of it."""
        stop = len(content) if self.stop is None else min(self.stop, len(content))
        part = start > 0 or stop < len(content)
        self.send_response(206 if part else 200)
        self.send_header("Content-Length", str(stop - start))
        if part:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.end_headers()
        sent = content[start : min(start + count, stop)]
        self.wfile.write(sent)
        self.wfile.flush()
        self.server.count(self.path, len(sent))

    def _token(self, query: dict[str, list[str]]) -> None:
        self.server.tokens_given += 1
        status = self.server.token_status
        self.answer(status, json.dumps({"token": TOKEN} if status == 200 else {}).encode())

    def _range(self) -> tuple[int, int | None]:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None or not self.server.knows_ranges:
            return 0, None
        return int(match[1]), int(match[2]) + 1 if match[2] else None


def status(code: int, headers: dict[str, str] | None = None) -> Fault:
    """Answer with an error status."""
    return lambda handler, content, start: handler.answer(code, b"{}", headers)


def stop_after(count: int) -> Fault:
    """Close the connection after `count` bytes of the body."""

    def fault(handler: Handler, content: bytes, start: int) -> None:
        handler.begin(content, start, count)
        handler.close_connection = True

    return fault


def stall_after(count: int) -> Fault:
    """Send `count` bytes of the body and then nothing, the connection open."""

    def fault(handler: Handler, content: bytes, start: int) -> None:
        handler.begin(content, start, count)
        handler.server.finished.wait(60)
        handler.close_connection = True

    return fault


def html() -> Fault:
    """Answer 200 with a web page."""
    page = b"<!doctype html><title>Sign in</title>"
    return lambda handler, content, start: handler.answer(
        200, page, {"Content-Type": "text/html; charset=utf-8"}
    )


def replaced(data: bytes) -> Fault:
    """Answer with other content."""
    return lambda handler, content, start: handler.serve(data, 0)


def without_length(data: bytes) -> Fault:
    """Answer with other content whose end is the end of the connection."""

    def fault(handler: Handler, content: bytes, start: int) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True

    return fault


def ignoring_range() -> Fault:
    """Answer 200 with everything, whatever range was asked for."""
    return lambda handler, content, start: handler.serve(content, 0)


def other_range() -> Fault:
    """Answer 206 with another range than was asked for."""

    def fault(handler: Handler, content: bytes, start: int) -> None:
        span = f"bytes 0-{len(content) - 1}/{len(content)}"
        handler.answer(206, content, {"Content-Range": span})

    return fault


def redirect(url: str) -> Fault:
    """Answer 307 with a location."""
    return status(307, {"Location": url})


@contextmanager
def faulty_registry(layout: Path) -> Iterator[FaultyRegistry]:
    """Run a faulty registry."""
    server = FaultyRegistry(layout)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.finished.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
