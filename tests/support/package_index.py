"""A package index on loopback: real HTTP with pages, byte ranges and faults to order."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LoopbackIndex:
    """Files by name, served under ``/simple/<project>/`` (PEP 691) and ``/files/<name>``.

    stated: a digest that the page states instead of the true one. cut: how many answers for a
    file end after so many bytes. ranges: whether byte ranges are served. uploaded: the time of a
    file, as the page states it.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        self.stated: dict[str, str] = {}
        self.cut: dict[str, list[int]] = {}
        self.uploaded: dict[str, str] = {}
        self.ranges = True
        self.requests: list[tuple[str, str | None]] = []
        self.url = ""

    def add(self, project: str, filename: str, data: bytes) -> str:
        """Serve a file; returns its hex sha256."""
        self.files[filename] = (project, data)
        return hashlib.sha256(data).hexdigest()

    def page(self, project: str) -> dict[str, object] | None:
        """The project's page, or None when it has no file."""
        listed = [
            {
                "filename": name,
                "url": f"/files/{name}",
                "size": len(data),
                "upload-time": self.uploaded.get(name, "2026-01-01T00:00:00Z"),
                "hashes": {"sha256": self.stated.get(name) or hashlib.sha256(data).hexdigest()},
            }
            for name, (owner, data) in self.files.items()
            if owner == project
        ]
        if not listed:
            return None
        return {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": listed}


def _handler(index: LoopbackIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            index.requests.append((self.path, self.headers.get("Range")))
            if self.path.startswith("/simple/"):
                page = index.page(self.path.split("/")[2])
                if page is None:
                    self._answer(404, b"", "text/plain")
                else:
                    kind = "application/vnd.pypi.simple.v1+json"
                    self._answer(200, json.dumps(page).encode(), kind)
                return
            name = self.path.removeprefix("/files/")
            if name not in index.files:
                self._answer(404, b"", "text/plain")
                return
            data = index.files[name][1]
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            status, headers = 200, {}
            if wanted and index.ranges:
                start, end = int(wanted[1]), int(wanted[2] or len(data) - 1)
                headers = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
                status, data = 206, data[start : end + 1]
            cuts = index.cut.get(name)
            self._answer(status, data, "application/zip", headers, cuts.pop(0) if cuts else None)

        do_HEAD = do_GET

        def _answer(
            self,
            status: int,
            body: bytes,
            kind: str,
            headers: dict[str, str] | None = None,
            cut: int | None = None,
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler


@contextmanager
def loopback_index() -> Iterator[LoopbackIndex]:
    """Start an index, stop it afterwards."""
    index = LoopbackIndex()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
