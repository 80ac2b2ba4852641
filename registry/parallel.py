"""Several transfers at once between the same stores, with one outcome."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from registry.store import Store
from registry.stream import Progress

WORKERS = 4
"""Enough to hide the round trips of small blobs; more would only share the same line."""

_FAREWELL_SECONDS = 2.0

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Stopped(Exception):
    """Another transfer has failed: this one is of no use any more."""


def in_parallel(
    work: Callable[..., Result],
    items: Sequence[Item],
    *stores: Store,
    progress: Progress | None = None,
    workers: int = WORKERS,
) -> list[Result]:
    """``work(item, progress, *stores)`` for every item, at most `workers` at once; the results in
    the order of `items`.

    Each worker has stores of its own, twins of `stores`, and a progress that may be called from
    any of them. The first error ends the others at their next chunk and is raised.
    """
    if len(items) <= 1 or workers <= 1:
        return [work(item, progress, *stores) for item in items]
    run = _Run(work, items, stores, progress)
    return run.results(min(workers, len(items)))


class _Run:
    def __init__(
        self,
        work: Callable[..., Result],
        items: Sequence[Item],
        stores: Sequence[Store],
        progress: Progress | None,
    ) -> None:
        self._work = work
        self._stores = stores
        self._shown = progress
        self._lock = threading.Lock()
        self._left: Iterator[tuple[int, Item]] = iter(enumerate(items))
        self._found: dict[int, Result] = {}
        self._error: BaseException | None = None
        self._stop = threading.Event()

    def results(self, workers: int) -> list[Result]:
        # Daemons: an interrupted command does not wait for the time limit of a dead connection.
        threads = [threading.Thread(target=self._worker, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                # In steps, so that an interrupt is noticed at once on every platform.
                while thread.is_alive() and self._error is None:
                    thread.join(0.5)
        finally:
            if any(thread.is_alive() for thread in threads):
                self._stop.set()
                for thread in threads:
                    thread.join(_FAREWELL_SECONDS)
        if self._error is not None:
            raise self._error
        return [self._found[number] for number in sorted(self._found)]

    def _worker(self) -> None:
        try:
            with ExitStack() as stack:
                twins = [stack.enter_context(store.twin()) for store in self._stores]
                while (taken := self._next()) is not None:
                    number, item = taken
                    self._found[number] = self._work(item, self._progress, *twins)
        except _Stopped:
            pass
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._stop.set()

    def _next(self) -> tuple[int, Item] | None:
        with self._lock:
            return None if self._stop.is_set() else next(self._left, None)

    def _progress(self, count: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        if self._shown is not None:
            with self._lock:
                self._shown(count)
