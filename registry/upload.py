"""Sending a blob to a registry so that a fault costs as little as possible.

A blob goes as `docker push` sends it, which every registry takes at any size: one stream, and its
digest in a request of its own at the end, so that it can be sent while it is still being hashed.
When the stream breaks, or a proxy finds it too large, the rest goes in chunks, and after each fault
the registry is asked where to go on. Chunks are small because some registries (GHCR) refuse larger
ones. What the registry cannot resume is started again, as often as the retry policy allows.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlencode

from kvreg.errors import NetworkError, VerificationError
from registry.oras_base import requests
from registry.outgoing import Needless, Upload
from registry.retry import Fault, GiveUp
from registry.transport import Answer, Client, as_fault

_OCTETS = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})")
_MAX_CHUNK = 256 * 1024 * 1024


@dataclass(frozen=True)
class UploadPolicy:
    """How a blob is cut: `stream_bytes` is the largest that is first sent in one stream (None:
    any size), `chunk_bytes` the size of a chunk otherwise."""

    stream_bytes: int | None = None
    chunk_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True)
class _Position:
    """Where an upload goes on: from `offset`, at `location`."""

    offset: int
    location: str


class BlobUpload:
    """The upload of one blob to one repository. It takes one of those that are `opened`, if any."""

    def __init__(
        self,
        client: Client,
        upload: Upload,
        policy: UploadPolicy,
        opened: list[requests.Response],
    ) -> None:
        self._client = client
        self._upload = upload
        self._size = upload.size
        self._policy = policy
        self._opened = opened
        self._in_chunks = policy.stream_bytes is not None and upload.size > policy.stream_bytes

    def run(self) -> bool:
        """Send the blob; False when the registry turned out to have it, see `Hashing`.

        `NetworkError` when it cannot be done, `VerificationError` when the source is not what its
        descriptor says or the registry stored something else.
        """
        try:
            self._try()
        except Needless:
            return False
        return True

    def _try(self) -> None:
        attempt = 1
        while True:
            started = self._start()
            try:
                fault = self._send(started)
            except Needless:
                self._client.abandon(started)
                raise
            if fault is None:
                return
            if fault.status != 413:
                self._wait(fault, attempt)
                attempt += 1
                if self.is_there():
                    # The blob was stored, only the answer was lost.
                    return

    def is_there(self) -> bool:
        """Whether the registry has the blob now."""
        answer = self._client.call("HEAD", f"blobs/{self._upload.digest}", expect=(200, 404))
        return answer.status_code == 200

    def _send(self, started: requests.Response) -> Fault | None:
        position = _Position(0, self._client.follow(started))
        chunk = self._chunk_bytes(started)
        attempt = 1
        while position.offset < self._size:
            end = min(position.offset + chunk, self._size) if self._in_chunks else self._size
            answer = self._patch(position, end)
            if isinstance(answer, requests.Response) and answer.status_code in (201, 202):
                # The whole chunk was taken. The Range header is not asked: ECR's lags behind, and
                # a registry that took less refuses the next chunk with 416.
                position, attempt = _Position(end, self._client.follow(answer)), 1
                continue
            fault = _fault(answer)
            if fault is None:
                assert isinstance(answer, requests.Response)
                if answer.status_code != 413 or end - position.offset <= chunk:
                    raise self._client.unexpected("PATCH", answer, (202,))
                self._in_chunks = True
                return Fault.of_status(413)
            self._in_chunks = True
            self._wait(fault, attempt)
            found = self._ask_position(position.location, limit=end)
            if found is None:
                return fault
            attempt = 1 if found.offset > position.offset else attempt + 1
            position = found
        return self._commit(position)

    def _patch(self, position: _Position, end: int) -> Answer:
        headers = dict(_OCTETS)
        if end - position.offset < self._size:
            headers["Content-Range"] = f"{position.offset}-{end - 1}"
        body = self._upload.window(position.offset, end)
        return self._client.attempt("PATCH", position.location, data=body, headers=headers)

    def _commit(self, position: _Position) -> Fault | None:
        self._upload.check()
        attempt = 1
        while True:
            answer = self._client.attempt(
                "PUT", self._commit_url(position.location), data=b"", headers=_OCTETS
            )
            fault = _fault(answer)
            if fault is None:
                assert isinstance(answer, requests.Response)
                self._check_commit(answer)
                return None
            self._wait(fault, attempt)
            attempt += 1
            if self.is_there():
                return None
            found = self._ask_position(position.location, limit=self._size)
            if found is None or found.offset != self._size:
                return fault
            position = found

    def _start(self) -> requests.Response:
        try:
            # Workers share the list: asking first whether it has any would be of no use.
            return self._opened.pop()
        except IndexError:
            return start_upload(self._client)

    def _chunk_bytes(self, started: requests.Response) -> int:
        """Our chunk size, or what the registry asks for at least."""
        least = started.headers.get("OCI-Chunk-Min-Length", "")
        asked = int(least) if least.isascii() and least.isdigit() else 0
        return max(self._policy.chunk_bytes, min(asked, _MAX_CHUNK))

    def _ask_position(self, location: str, limit: int) -> _Position | None:
        """Where the registry wants to go on; None when it has forgotten the upload."""
        answer = self._client.do_request(location, "GET")
        if answer.status_code != 204:
            return None
        match = _RANGE.fullmatch(answer.headers.get("Range", ""))
        if match is None:
            return None
        last = int(match.group(1))
        # "0-0" is how a registry without a byte says so, as well as one with a single byte.
        offset = last + 1 if last else 0
        if offset > limit:
            raise NetworkError(
                f"{self._client.where}: the registry reports more of an upload than was sent",
                expected=f"at most {limit} bytes",
                found=f"{offset} bytes",
                remedy="try again; another writer or a faulty proxy may be in between",
            )
        where = answer if answer.headers.get("Location") else None
        return _Position(offset, self._client.follow(where) if where else location)

    def _commit_url(self, location: str) -> str:
        separator = "&" if "?" in location else "?"
        return f"{location}{separator}{urlencode({'digest': self._upload.digest})}"

    def _check_commit(self, answer: requests.Response) -> None:
        if answer.status_code not in (201, 204):
            raise self._client.unexpected("PUT", answer, (201,))
        check_stored(self._client, answer, self._upload.digest)

    def _wait(self, fault: Fault, attempt: int) -> None:
        decision = self._client.retry.judge(fault, attempt)
        if isinstance(decision, GiveUp):
            raise self._client.failed("pushing", self._upload.title, decision.reason)
        self._client.pause(decision.delay, decision.reason)


def _fault(answer: Answer) -> Fault | None:
    """What the retry policy is to judge. Two refusals are worth another try here, though not
    elsewhere: asking for the offset or starting again cures them."""
    if isinstance(answer, requests.Response):
        if answer.status_code == 416:
            return Fault("reset", "the registry expected another offset")
        if answer.status_code == 404:
            return Fault("reset", "the registry has forgotten the upload")
    return as_fault(answer)


def start_upload(client: Client) -> requests.Response:
    """Open an upload. `NetworkError` when the registry does not let us."""
    return client.call("POST", "blobs/uploads/", expect=(202,), data=b"")


def check_stored(client: Client, answer: requests.Response, digest: str) -> None:
    """`VerificationError` when a registry says that it stored something else than `digest`."""
    found = answer.headers.get("Docker-Content-Digest", digest)
    if found != digest:
        raise VerificationError(
            f"{client.where} stored other bytes than were sent", expected=digest, found=found[:100]
        )
