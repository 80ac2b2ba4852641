"""Reading a blob from a registry: in chunks, going on by range after a fault.

The bytes are not verified here; `registry.stream.verified` does that for all stores.
"""

import re
from collections.abc import Iterator

import urllib3.exceptions

from kvreg.errors import NetworkError, NotFoundError, VerificationError
from kvreg.model.oci import Descriptor
from registry.oras_base import requests
from registry.retry import Fault, GiveUp
from registry.stream import CHUNK_BYTES
from registry.transport import Client, as_fault

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def blob_chunks(client: Client, descriptor: Descriptor) -> Iterator[bytes]:
    """The bytes of a blob as the registry sends them, at most `descriptor.size` and one chunk.

    `NotFoundError` when it is absent, `NetworkError` when the retry policy gives up; progress
    starts the count of tries again.
    """
    url = client.url(f"blobs/{descriptor.digest}")
    offset, attempt = 0, 1
    while True:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        answer = client.attempt("GET", url, headers=headers, stream=True)
        fault = as_fault(answer)
        if fault is None:
            assert isinstance(answer, requests.Response)
            before = offset
            try:
                for chunk in _body(client, answer, descriptor, offset):
                    offset += len(chunk)
                    yield chunk
                return
            except requests.RequestException as error:
                fault = Fault.of_exception(error)
                attempt = 1 if offset > before else attempt
            finally:
                answer.close()
        elif isinstance(answer, requests.Response):
            answer.close()
        decision = client.retry.judge(fault, attempt)
        if isinstance(decision, GiveUp):
            raise client.failed("GET", url, f"{decision.reason} (after {offset} bytes)")
        client.pause(decision.delay, decision.reason)
        attempt += 1


def _body(
    client: Client, answer: requests.Response, descriptor: Descriptor, offset: int
) -> Iterator[bytes]:
    """The bytes from `offset` on, whether the registry honours ranges or not."""
    if answer.status_code == 404:
        answer.close()
        raise NotFoundError(f"{client.where} has no blob {descriptor.digest}")
    if answer.status_code == 206 and offset:
        _check_range(client, answer, descriptor, offset)
        skip = 0
    elif answer.status_code == 200:
        _check_length(client, answer, descriptor)
        skip = offset
    else:
        raise client.unexpected("GET", answer, (200, 206) if offset else (200,))
    for chunk in _received(answer):
        if skip >= len(chunk):
            skip -= len(chunk)
            continue
        yield chunk[skip:] if skip else chunk
        skip = 0


def _received(answer: requests.Response) -> Iterator[bytes]:
    """The body in chunks, by the HTTP library's shortest way: the usual one copies every byte
    twice more."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        yield from answer.iter_content(CHUNK_BYTES)
        return
    try:
        yield from answer.raw.stream(CHUNK_BYTES, decode_content=False)
    except urllib3.exceptions.SSLError as error:
        raise requests.exceptions.SSLError(error) from error
    except urllib3.exceptions.HTTPError as error:
        raise requests.ConnectionError(error) from error


def _check_range(
    client: Client, answer: requests.Response, descriptor: Descriptor, offset: int
) -> None:
    found = answer.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(found)
    total = str(descriptor.size)
    if match is None or int(match.group(1)) != offset or match.group(3) not in (total, "*"):
        raise NetworkError(
            f"{client.where}: the registry answered with another range than was asked for",
            expected=f"bytes {offset}-{descriptor.size - 1}/{total}",
            found=repr(found)[:100],
        )


def _check_length(client: Client, answer: requests.Response, descriptor: Descriptor) -> None:
    """Refuse at once what cannot be the blob: an error page, or another blob."""
    found = answer.headers.get("Content-Length")
    if found is not None and found != str(descriptor.size):
        raise VerificationError(
            f"{client.where} answered something else than the blob {descriptor.digest}",
            expected=f"{descriptor.size} bytes",
            found=f"{found[:20]} bytes of {answer.headers.get('Content-Type', 'no type')[:60]}",
        )
