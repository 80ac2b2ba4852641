"""The sha256 of blobs, computed while they arrive."""

import hashlib
import threading
from collections.abc import Sequence

from kvreg.transfer.blob import Arrivals, Blob

_CHUNK = 1 << 20


class Checking:
    """A thread that hashes blobs one after another, each from its beginning, as it grows."""

    def __init__(self, blobs: Sequence[Blob], arrivals: Arrivals) -> None:
        self._blobs = list(blobs)
        self._arrivals = arrivals
        self._found: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="kvreg-digest", daemon=True)

    def start(self) -> None:
        """Begin. Errors go to the `Arrivals`."""
        self._thread.start()

    def digest(self, blob: Blob) -> str:
        """Wait for the digest of the bytes that the blob's file holds.

        Raises the error that ended the transfer before it could be known.
        """
        with self._arrivals.changed:
            while blob.descriptor.digest not in self._found:
                self._arrivals.check()
                self._arrivals.changed.wait()
            return self._found[blob.descriptor.digest]

    def _run(self) -> None:
        try:
            for blob in self._blobs:
                state = hashlib.sha256()
                position = 0
                while position < blob.size:
                    data = blob.read(position, min(position + _CHUNK, blob.size))
                    state.update(data)
                    position += len(data)
                with self._arrivals.changed:
                    self._found[blob.descriptor.digest] = "sha256:" + state.hexdigest()
                    self._arrivals.changed.notify_all()
        except BaseException as error:
            self._arrivals.fail(error)
