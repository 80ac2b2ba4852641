"""Fetches blobs over several connections at once."""

import threading
import time
from collections.abc import Callable, Sequence

from kvreg.errors import NetworkError, VerificationError
from kvreg.model.oci import Descriptor
from kvreg.sources import BlobStream, Interrupted, Source
from kvreg.transfer.blob import Arrivals, Blob, Cancelled, Inflow
from kvreg.transfer.schedule import DEFAULT_RANGES, RangePolicy, Schedule, Segment

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0


class Download:
    """Threads that bring blobs in, from `start` until all is there or the transfer has ended.

    `stalls` is how often in a row a connection may bring nothing new.
    """

    def __init__(
        self,
        source: Source,
        blobs: Sequence[Blob],
        arrivals: Arrivals,
        *,
        policy: RangePolicy = DEFAULT_RANGES,
        stalls: int = 5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.schedule = Schedule(blobs, policy)
        self._source = source
        self._arrivals = arrivals
        self._connections = policy.connections
        self._stalls = stalls
        self._sleep = sleep
        self._answered = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin. Errors go to the `Arrivals`."""
        for number in range(self._connections):
            # Daemons: a connection that is stuck holds up neither Ctrl-C nor the interpreter's end.
            thread = threading.Thread(
                target=self._run, args=(number,), name=f"kvreg-download-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until nothing is left to fetch or an error has ended the transfer."""
        for thread in self._threads:
            while thread.is_alive() and self._arrivals.error is None:
                thread.join(0.1)

    def _run(self, number: int) -> None:
        try:
            # The first request shows what the server can and logs in; the others follow.
            if number:
                self._answered.wait()
            while self._arrivals.error is None and (segment := self.schedule.take()) is not None:
                self._fetch(segment)
        except Cancelled:
            pass
        except BaseException as error:
            self._arrivals.fail(error)
        finally:
            self._answered.set()

    def _fetch(self, segment: Segment) -> None:
        blob, stalls = segment.blob, 0
        while segment.position < segment.end:
            if self._arrivals.error is not None:
                raise Cancelled
            before = blob.received
            try:
                with self._source.stream(blob.descriptor, segment.position, segment.end) as stream:
                    self._receive(segment, stream)
            except Interrupted as error:
                stalls = 0 if blob.received > before else stalls + 1
                if stalls > self._stalls:
                    raise _broke_off(blob, error) from None
                self._sleep(min(_FIRST_DELAY * 2**stalls, _LONGEST_DELAY))
                segment.position = blob.run_end(segment.position)

    def _receive(self, segment: Segment, stream: BlobStream) -> None:
        blob = segment.blob
        if stream.offset != segment.position:
            # The server knows no ranges: this answer brings everything, the others are not asked.
            self.schedule.take_all(segment)
        self._answered.set()
        inflow = Inflow(blob, stream.offset)
        try:
            for chunk in stream.chunks:
                inflow.put(chunk)
                # At the end of the blob one more read shows that nothing follows.
                if inflow.position > segment.end or segment.end <= inflow.position < blob.size:
                    break
        finally:
            inflow.flush()
            segment.position = min(inflow.position, segment.end)
        if inflow.position == stream.offset:
            raise Interrupted("the answer was empty")
        if inflow.position > blob.size:
            raise wrong_size(blob.descriptor, f"more than {blob.size} bytes")
        if inflow.position < min(stream.end, segment.end):
            raise wrong_size(blob.descriptor, f"{inflow.position} bytes")


def wrong_size(descriptor: Descriptor, found: str) -> VerificationError:
    """A blob whose bytes are too many or too few."""
    return VerificationError(
        f"the blob {blob_name(descriptor)} has the wrong size",
        expected=f"{descriptor.size} bytes",
        found=found,
        remedy="the store is damaged or not to be trusted; try another one",
    )


def blob_name(descriptor: Descriptor) -> str:
    """What a blob is called in messages."""
    return repr(descriptor.title)[1:-1][:120] if descriptor.title else descriptor.digest


def _broke_off(blob: Blob, error: Interrupted) -> NetworkError:
    held = blob.size - blob.missing().size
    return NetworkError(
        f"the transfer of {blob_name(blob.descriptor)} keeps breaking off",
        expected=f"{blob.size} bytes",
        found=f"{held} bytes ({error})",
        remedy="try again: it goes on from what has arrived",
    )
