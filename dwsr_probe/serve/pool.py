"""A few threads that poll targets for the service. Daemons: the end of the service does not wait
for them.

Two lanes: targets that are slow, or do not answer, wait for threads of their own. So they never
hold up the others, however many they are.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

QUICK_THREADS, SLOW_THREADS = 16, 8


@dataclass
class Result:
    """Of a submitted function: what it returned, or what it raised."""

    owner: Any
    value: Any
    error: Exception | None
    seconds: float


class Pool:
    def __init__(
        self, quick_threads: int = QUICK_THREADS, slow_threads: int = SLOW_THREADS
    ) -> None:
        self._lanes: tuple[queue.SimpleQueue[Any], ...] = queue.SimpleQueue(), queue.SimpleQueue()
        self._done: queue.SimpleQueue[Result] = queue.SimpleQueue()
        for number in range(quick_threads + slow_threads):
            threading.Thread(
                target=self._work,
                args=(self._lanes[number >= quick_threads],),
                name=f"dwsr-poll-{number}",
                daemon=True,
            ).start()

    def submit(self, owner: Any, function: Callable[[], Any], slow: bool = False) -> None:
        """Calls the function in a thread of its lane; its Result has this owner."""
        self._lanes[slow].put((owner, function))

    def results(self) -> Iterator[Result]:
        """Everything that is done by now."""
        while True:
            try:
                yield self._done.get_nowait()
            except queue.Empty:
                return

    def has_results(self) -> bool:
        return not self._done.empty()

    def _work(self, lane: queue.SimpleQueue[Any]) -> None:
        while True:
            owner, function = lane.get()
            value, begin = None, time.monotonic()
            error: Exception | None = None
            try:
                value = function()
            except Exception as caught:  # the reader of the results decides what it means
                error = caught
            self._put(owner, value, error, time.monotonic() - begin)
            del owner, function, value, error  # not kept while this thread waits

    def _put(self, owner: Any, value: Any, error: Exception | None, seconds: float) -> None:
        """Also when memory runs out: an owner without a result would never be polled again."""
        while True:
            try:
                return self._done.put(Result(owner, value, error, seconds))
            except MemoryError:
                time.sleep(0.1)
