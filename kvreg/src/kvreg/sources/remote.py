"""A registry that speaks the distribution API as a source. Read-only."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import urllib3
from urllib3.exceptions import HTTPError

from kvreg.errors import NetworkError, NotFoundError, VerificationError
from kvreg.model.digest import is_digest, parse_digest
from kvreg.model.oci import (
    MAX_MANIFEST_BYTES,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    Index,
    parse_json,
)
from kvreg.reference import RegistryReference
from kvreg.sources import BlobStream, Interrupted, RawManifest, read_small, verified_manifest
from kvreg.sources.authentication import Authenticator
from kvreg.sources.transport import TRANSIENT, Transport, display
from kvreg.sources.transport import read_small as read_small_body

_CHUNK = 1 << 20
_MAX_PAGES = 100
_NO_API = frozenset({400, 404, 405, 406, 501})
_NEXT = re.compile(r"""<([^<>]+)>\s*;\s*rel="?next"?""", re.I)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class RegistrySource:
    """Reads one repository; one client each, so that a token never serves another repository."""

    def __init__(self, reference: RegistryReference, transport: Transport) -> None:
        self.reference = reference
        self._transport = transport
        self._authenticator = Authenticator(reference, transport)
        self._base = f"{reference.base_url}/v2/{reference.repository}"

    def manifest(self, target: str) -> RawManifest | None:
        """See `Source.manifest`."""
        accept = f"{MEDIA_TYPE_MANIFEST}, {MEDIA_TYPE_INDEX}"
        response = self._get(f"{self._base}/manifests/{target}", {"Accept": accept})
        raw = read_small_body(response, MAX_MANIFEST_BYTES)
        if response.status == 404:
            return None
        self._expect(response, {200}, raw)
        claimed = response.headers.get("Docker-Content-Digest")
        return verified_manifest(raw, target, claimed if is_digest(claimed) else None)

    def manifest_digests(self) -> list[str]:
        """See `Source.manifest_digests`: a registry has no such list."""
        return []

    def local_path(self, descriptor: Descriptor) -> Path | None:
        """See `Source.local_path`."""
        return None

    def referrers(self, digest: str) -> list[Descriptor]:
        """See `Source.referrers`: by the referrers API, else by the tag schema."""
        found: list[Descriptor] = []
        url: str | None = f"{self._base}/referrers/{digest}"
        for number in range(_MAX_PAGES):
            response = self._get(str(url), {"Accept": MEDIA_TYPE_INDEX})
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
            if number == 0 and (response.status in _NO_API or kind != MEDIA_TYPE_INDEX):
                response.close()
                raw = self.manifest(f"sha256-{parse_digest(digest)}")
                return [] if raw is None else list(Index.parse(raw.raw).manifests)
            body = read_small_body(response, MAX_MANIFEST_BYTES)
            self._expect(response, {200}, body)
            found += Index.parse(body).manifests
            url = self._next_page(response, str(url))
            if url is None:
                return found
        raise NetworkError(f"{self.reference.host} sent a list of referrers that does not end")

    def read_small(self, descriptor: Descriptor) -> bytes:
        """See `Source.read_small`."""
        return read_small(self, descriptor)

    @contextmanager
    def stream(self, descriptor: Descriptor, start: int, end: int) -> Iterator[BlobStream]:
        """See `Source.stream`. A server that knows no ranges is read from the beginning."""
        url = f"{self._base}/blobs/{descriptor.digest}"
        response = self._get(url, _range_header(start, end, descriptor.size))
        if response.status == 416:
            # What we hold is not a beginning of what the server holds.
            response.close()
            response = self._get(url, {})
        whole = False
        try:
            if response.status == 404:
                raise NotFoundError(
                    f"{self.reference.host}/{self.reference.repository} lacks a blob",
                    found=descriptor.digest,
                    remedy="the artifact was published incompletely; publish it again",
                )
            self._expect(response, {200, 206})
            first, last = _span(response, descriptor, start)
            yield BlobStream(first, last, _chunks(response))
            whole = response.length_remaining == 0
        finally:
            # A connection whose answer was read to its end serves the next range; the rest of a
            # body that nobody wants is not read.
            response.release_conn() if whole else response.close()

    def _next_page(self, response: urllib3.BaseHTTPResponse, url: str) -> str | None:
        match = _NEXT.search(response.headers.get("Link", ""))
        if match is None:
            return None
        following = urljoin(url, match[1])
        # The request carries our token: it goes nowhere but to this repository.
        if not following.startswith(f"{self._base}/"):
            raise NetworkError(f"{self.reference.host} sent a link that leads elsewhere")
        return following

    def _get(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Send a request; a 401 is answered, and after that is final, as any 403 is."""
        for is_last in (False, True):
            login = self._authenticator.headers()
            response = self._transport.request("GET", url, {**headers, **login})
            if response.status == 401 and not is_last:
                challenge = response.headers.get("WWW-Authenticate")
                response.close()
                self._authenticator.answer(challenge, login)
                continue
            break
        if response.status in (401, 403):
            response.close()
            raise self._authenticator.refused()
        return response

    def _expect(
        self, response: urllib3.BaseHTTPResponse, statuses: set[int], body: bytes | None = None
    ) -> None:
        content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if response.status not in statuses:
            raise NetworkError(
                f"{self.reference.host} gave an answer that makes no sense",
                expected="status " + " or ".join(map(str, sorted(statuses))),
                found=f"status {response.status}{_error_in(body)}",
            )
        if content_type in ("text/html", "application/xhtml+xml"):
            raise NetworkError(
                f"{self.reference.host} answered with a web page",
                expected="an artifact",
                found=f"{content_type} from {display(response.url or self._base)}",
                remedy="check the address; a proxy or login page may stand in between",
            )


def _range_header(start: int, end: int, size: int) -> dict[str, str]:
    if start == 0 and end >= size:
        return {}
    return {"Range": f"bytes={start}-" if end >= size else f"bytes={start}-{end - 1}"}


def _span(
    response: urllib3.BaseHTTPResponse, descriptor: Descriptor, asked: int
) -> tuple[int, int]:
    """The range that the body is of. A blob whose stored length is wrong is refused unread."""
    length = response.headers.get("Content-Length", "")
    if response.status == 200:
        total = int(length) if length.isdigit() else descriptor.size
        first, last = 0, total
    else:
        header = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(header)
        if match is None or int(match[1]) != asked or int(match[2]) < asked:
            raise NetworkError(
                "the registry sent another range than was asked for",
                expected=f"bytes {asked}-",
                found=repr(header)[:100],
            )
        first, last = asked, int(match[2]) + 1
        total = descriptor.size if match[3] == "*" else int(match[3])
        if length.isdigit():
            last = min(last, first + int(length))
    if total != descriptor.size or last > total:
        raise VerificationError(
            f"the blob {descriptor.digest} has the wrong size",
            expected=f"{descriptor.size} bytes",
            found=f"{max(total, last)} bytes",
            remedy="the store is damaged or not to be trusted; try another one",
        )
    return first, last


def _chunks(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    try:
        # read1 hands over what has arrived: a stall then costs nothing that came before it.
        while chunk := response.read1(_CHUNK, decode_content=False):
            yield chunk
    except (*TRANSIENT, HTTPError) as error:
        raise Interrupted(str(error)) from None


def _error_in(body: bytes | None) -> str:
    """The message of a distribution API error body, if it is one."""
    try:
        errors = parse_json(body or b"", "error")["errors"]
        return f": {errors[0]['code']} {errors[0].get('message', '')}"[:200].rstrip()
    except (VerificationError, LookupError, TypeError, AttributeError):
        return ""
