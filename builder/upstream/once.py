"""Answers that many threads ask for and one finds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Once(Generic[Answer]):
    """Each key is worked out by the first thread that asks; the others wait for what it finds.

    >>> once, calls = Once(), []
    >>> [once("key", lambda: calls.append(1) or len(calls)) for _ in range(3)]
    [1, 1, 1]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[Hashable, Future[Answer]] = {}

    def __call__(self, key: Hashable, find: Callable[[], Answer]) -> Answer:
        """The answer to `key`; what `find` raises is raised for everyone who asks."""
        with self._lock:
            mine = key not in self._answers
            answer = self._answers.setdefault(key, Future())
        if mine:
            try:
                answer.set_result(find())
            except BaseException as error:
                answer.set_exception(error)
        return answer.result()
