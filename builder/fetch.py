"""Fetch: every locked input into the input cache, in parallel, resumable, verified by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3

from builder.cache import CHUNK, InputCache, storage_errors
from builder.index import TIMEOUT, IndexFile, PackageIndex
from builder.inputs import Input
from kvreg.errors import NetworkError, VerificationError

WORKERS = 6
ATTEMPTS = 5

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Fetched:
    """What a fetch did: inputs that were there, that were downloaded, and bytes transferred."""

    present: int
    downloaded: int
    transferred_bytes: int


def missing(inputs: Iterable[Input], cache: InputCache) -> list[Input]:
    """The inputs of which the cache lacks at least one file."""
    return [i for i in inputs if not all(cache.has(digest) for digest in i.digests())]


def bytes_missing(inputs: Iterable[Input], cache: InputCache) -> int:
    """Bytes that a fetch would transfer, partial downloads taken off."""
    total = 0
    for item in missing(inputs, cache):
        if item.kind == "members":
            total += sum(m.size for m in item.members if not cache.has(m.sha256))
        else:
            partial = cache.partial(item.sha256)
            total += item.size - (partial.stat().st_size if partial.exists() else 0)
    return total


def fetch(
    inputs: Iterable[Input], cache: InputCache, index: PackageIndex, advance: Advance
) -> Fetched:
    """Bring every input into the cache; `advance` is called with bytes as they arrive.

    All downloads are tried before the first error is raised, so that a second run has less to
    do. Raises VerificationError (a wrong hash names file, expected and found), NotFoundError,
    NetworkError, StorageError.
    """
    wanted = list(inputs)
    todo = missing(wanted, cache)
    transferred = [0]

    def count(number: int) -> None:
        transferred[0] += number
        advance(number)

    with ThreadPoolExecutor(WORKERS) as pool:
        # Largest first: the longest download decides when the last one ends.
        jobs = [
            pool.submit(_fetch_one, item, cache, index, count)
            for item in sorted(todo, key=lambda i: -i.size)
        ]
    errors = [error for job in jobs if (error := job.exception()) is not None]
    if errors:
        raise errors[0]
    return Fetched(len(wanted) - len(todo), len(todo), transferred[0])


def _fetch_one(item: Input, cache: InputCache, index: PackageIndex, advance: Advance) -> None:
    file = index.find(item.name, item.filename, item.sha256)
    if item.kind == "members":
        _fetch_members(item, file, cache, index, advance)
    else:
        _fetch_file(item, file, cache, index, advance)


def _fetch_members(
    item: Input, file: IndexFile, cache: InputCache, index: PackageIndex, advance: Advance
) -> None:
    wanted = {m.path: m for m in item.members if not cache.has(m.sha256)}
    with index.open_zip(file) as archive:
        # In the order of the archive, so that neighbours share one range request.
        for info in sorted(archive.infolist(), key=lambda i: i.header_offset):
            member = wanted.get(info.filename)
            if member is None:
                continue
            data = archive.read(info)
            found = hashlib.sha256(data).hexdigest()
            if found != member.sha256:
                raise VerificationError(
                    f"{info.filename} in {item.filename} does not have the locked digest",
                    expected=f"sha256:{member.sha256}",
                    found=f"sha256:{found}",
                )
            cache.put_bytes(data, member.sha256)
            advance(len(data))
            del wanted[info.filename]
    if wanted:
        raise VerificationError(
            f"{item.filename} lacks members that the lock names",
            expected=", ".join(sorted(wanted)[:5]),
            found="no such members",
        )


def _fetch_file(
    item: Input, file: IndexFile, cache: InputCache, index: PackageIndex, advance: Advance
) -> None:
    partial = cache.partial(item.sha256)
    with storage_errors("make folder", partial.parent):
        partial.parent.mkdir(parents=True, exist_ok=True)
    fault = ""
    for _ in range(ATTEMPTS):
        try:
            _download(file, partial, item, index, advance)
            break
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            fault = f"{type(error).__name__} after {_size(partial)} bytes"
    else:
        raise NetworkError(
            f"{item.filename} could not be downloaded in {ATTEMPTS} attempts",
            expected=f"{item.size} bytes",
            found=fault,
            remedy="run the command again: it goes on from the bytes that are there",
        )
    try:
        cache.put(partial, item.sha256, move=True)
    except VerificationError as error:
        partial.unlink()
        raise VerificationError(
            f"{item.filename} does not have the locked digest",
            expected=f"sha256:{item.sha256}",
            found=error.found,
            remedy="the index or something between changed the bytes; nothing was kept",
        ) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download(
    file: IndexFile, partial: Path, item: Input, index: PackageIndex, advance: Advance
) -> None:
    have = _size(partial)
    if have > item.size:
        partial.unlink()
        have = 0
    if have == item.size:
        return
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with index.session.get(file.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code not in (200, 206):
            raise NetworkError(
                f"the index refused {item.filename}",
                expected="status 200 or 206",
                found=f"status {response.status_code}",
            )
        if response.status_code == 200:
            partial.unlink(missing_ok=True)  # the server sends all of it, not the rest
        # read1 hands out what has arrived, so that a connection that breaks loses none of it.
        while chunk := response.raw.read1(CHUNK):
            # Only the write: a broken connection is an OSError too, and not the disk's fault.
            with storage_errors("write", partial), partial.open("ab") as handle:
                handle.write(chunk)
            advance(len(chunk))
    if _size(partial) < item.size:
        raise requests.ConnectionError("the connection ended early")
