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

_CHUNK = 1 << 18
_MAX_PAGES = 100
_NO_API = frozenset({400, 404, 405, 406, 501})
_NEXT = re.compile(r"""<([^<>]+)>\s*;\s*rel="?next"?""", re.I)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


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
    def stream(self, descriptor: Descriptor, offset: int) -> Iterator[BlobStream]:
        """See `Source.stream`. A server that knows no ranges is read from the start."""
        url = f"{self._base}/blobs/{descriptor.digest}"
        response = self._get(url, {"Range": f"bytes={offset}-"} if offset else {})
        if response.status == 416:
            # What we hold is not a beginning of what the server holds.
            response.close()
            offset = 0
            response = self._get(url, {})
        try:
            if response.status == 404:
                raise NotFoundError(
                    f"{self.reference.host}/{self.reference.repository} lacks a blob",
                    found=descriptor.digest,
                    remedy="the artifact was published incompletely; publish it again",
                )
            self._expect(response, {200, 206})
            start = _start(response, offset)
            _check_length(response, descriptor, start)
            yield BlobStream(start, _chunks(response))
        finally:
            # The rest of a body that nobody wants is not read to its end.
            response.close()

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
            response = self._transport.request(
                "GET", url, {**headers, **self._authenticator.headers()}
            )
            if response.status == 401 and not is_last:
                challenge = response.headers.get("WWW-Authenticate")
                response.close()
                self._authenticator.answer(challenge)
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


def _start(response: urllib3.BaseHTTPResponse, asked: int) -> int:
    """The offset at which the body starts."""
    if response.status == 200:
        return 0
    header = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(header)
    if match is None or int(match[1]) != asked:
        raise NetworkError(
            "the registry sent another range than was asked for",
            expected=f"bytes {asked}-",
            found=repr(header),
        )
    return asked


def _check_length(response: urllib3.BaseHTTPResponse, descriptor: Descriptor, start: int) -> None:
    """Refuse a blob whose stored length is wrong before it is read."""
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and start + int(length) != descriptor.size:
        raise VerificationError(
            f"the blob {descriptor.digest} has the wrong size",
            expected=f"{descriptor.size} bytes",
            found=f"{start + int(length)} bytes",
            remedy="the store is damaged or not to be trusted; try another one",
        )


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
