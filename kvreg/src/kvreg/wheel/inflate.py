"""Inflating with the fastest library that is installed: isal, zlib-ng, or the standard zlib.

All of them give the same bytes; what they read is compared with RECORD in any case. They and
hashlib release the interpreter's lock, so threads are enough. ``KVREG_INFLATE`` names one to be
used instead of the fastest.
"""

import importlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from kvreg.errors import UsageError

CHUNK = 1 << 18
"""The most bytes that are handed out at once: what a core's own cache holds until it is hashed and
written, and what the allocator keeps instead of asking the kernel for zeroed pages each time."""

ENVIRONMENT = "KVREG_INFLATE"
_RAW = -15


class DamagedError(Exception):
    """Compressed bytes are not what they should be; the text says why."""


class Stream(Protocol):
    """A decompressor of raw deflate."""

    eof: bool
    unused: bytes

    def feed(self, data: bytes, most: int) -> bytes:
        """Take data and give up to `most` bytes; more of them for ``b""``, until it is empty."""
        ...


@dataclass(frozen=True)
class Inflate:
    """One library: its name, its version, how it makes a stream, and what that raises."""

    name: str
    version: str
    make: Callable[[], Stream]
    errors: tuple[type[Exception], ...]

    def chunks(self, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
        """Inflate pieces of raw deflate into `size` bytes, up to `CHUNK` at a time.

        `DamagedError` for anything else; no more than a chunk too much is made, whatever the
        pieces say.
        """
        stream, total = self.make(), 0
        for piece in pieces:
            chunk = self._feed(stream, piece, CHUNK)
            while chunk:
                total += len(chunk)
                if total > size:
                    break
                yield chunk
                chunk = b"" if stream.eof else self._feed(stream, b"", CHUNK)
            _check(stream, total, size, more=not stream.eof)
        _check(stream, total, size)

    def whole(self, data: bytes, size: int) -> bytes:
        """Inflate a small member at once; `DamagedError` as for `chunks`."""
        stream = self.make()
        found = self._feed(stream, data, size + 1)
        _check(stream, len(found), size)
        return found

    def _feed(self, stream: Stream, data: bytes, most: int) -> bytes:
        try:
            return stream.feed(data, most)
        except self.errors as error:
            raise DamagedError(f"cannot be inflated: {error}") from None

    def to_dict(self) -> dict[str, str]:
        """Name and version."""
        return {"name": self.name, "version": self.version}


def available() -> tuple[Inflate, ...]:
    """What is installed, the fastest first."""
    return tuple(found for load in _LOADERS.values() if (found := load()) is not None)


@cache
def fastest() -> Inflate:
    """The library to use; `UsageError` when ``KVREG_INFLATE`` names one that is not there."""
    wanted = os.environ.get(ENVIRONMENT)
    if not wanted:
        # No other than the one that is used is imported.
        return next(found for load in _LOADERS.values() if (found := load()) is not None)
    found = _LOADERS[wanted]() if wanted in _LOADERS else None
    if found is None:
        raise UsageError(
            f"{ENVIRONMENT} names a library that is not installed",
            expected=", ".join(item.name for item in available()),
            found=wanted,
        )
    return found


def _check(stream: Stream, total: int, size: int, *, more: bool = False) -> None:
    if total > size or (total != size and stream.eof):
        raise DamagedError(f"unpacks to {'more' if total > size else 'less'} than {size} bytes")
    if stream.unused:
        raise DamagedError("has bytes after its end")
    if not more and not stream.eof:
        raise DamagedError("ends early")


class _ZlibStream:
    """A stream of a module with zlib's interface."""

    def __init__(self, module: Any) -> None:
        self._state = module.decompressobj(_RAW)
        self._left = b""

    def feed(self, data: bytes, most: int) -> bytes:
        found: bytes = self._state.decompress(self._left + data if self._left else data, most)
        self._left = self._state.unconsumed_tail
        return found

    @property
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    def unused(self) -> bytes:
        return bytes(self._state.unused_data)


class _IgzipStream:
    """A stream of isal's own interface, which copies less than its imitation of zlib's."""

    def __init__(self, module: Any) -> None:
        self._state = module.IgzipDecompressor(flag=module.DECOMP_DEFLATE)

    def feed(self, data: bytes, most: int) -> bytes:
        found: bytes = self._state.decompress(data, most)
        return found

    @property
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    def unused(self) -> bytes:
        return bytes(self._state.unused_data)


def _isal() -> Inflate | None:
    try:
        isal = importlib.import_module("isal")
        module = importlib.import_module("isal.igzip_lib")
    except ImportError:
        return None
    errors = (module.IsalError, EOFError)
    return Inflate("isal", isal.__version__, lambda: _IgzipStream(module), errors)


def _zlib_ng() -> Inflate | None:
    try:
        package = importlib.import_module("zlib_ng")
        module = importlib.import_module("zlib_ng.zlib_ng")
    except ImportError:
        return None
    return Inflate("zlib-ng", package.__version__, lambda: _ZlibStream(module), (module.error,))


def _zlib() -> Inflate:
    return Inflate("zlib", zlib.ZLIB_RUNTIME_VERSION, lambda: _ZlibStream(zlib), (zlib.error,))


_LOADERS: dict[str, Callable[[], Inflate | None]] = {
    "isal": _isal,
    "zlib-ng": _zlib_ng,
    "zlib": _zlib,
}
