"""What a wheel is read from: a file, or a blob that is still arriving."""

import os
import threading
from pathlib import Path
from typing import BinaryIO, Protocol


class Content(Protocol):
    """The bytes of a wheel, some of which may not be there yet."""

    @property
    def changed(self) -> threading.Condition:
        """Notified when more bytes are there, or nothing more will be."""
        ...

    def has(self, start: int, end: int) -> bool:
        """Whether a range is there."""
        ...

    def check(self) -> None:
        """Raise the error after which no more will come, if there is one."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range, as soon as they are there."""
        ...

    def read_some(self, start: int, end: int) -> bytes:
        """At least one byte of a range, as soon as some are there."""
        ...

    def reader(self) -> BinaryIO:
        """The content as a file."""
        ...

    def abort(self) -> None:
        """Let no more come: whoever waits gets an error."""
        ...


class FileContent:
    """A file all of which is there."""

    def __init__(self, path: Path) -> None:
        self._changed = threading.Condition()
        self._file = path.open("rb")

    @property
    def changed(self) -> threading.Condition:
        """See `Content.changed`."""
        return self._changed

    def has(self, start: int, end: int) -> bool:
        """See `Content.has`."""
        return True

    def check(self) -> None:
        """See `Content.check`."""

    def read(self, start: int, end: int) -> bytes:
        """See `Content.read`."""
        return self.read_some(start, end)

    def read_some(self, start: int, end: int) -> bytes:
        """See `Content.read_some`."""
        return os.pread(self._file.fileno(), end - start, start)

    def reader(self) -> BinaryIO:
        """See `Content.reader`."""
        return self._file

    def abort(self) -> None:
        """See `Content.abort`."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
