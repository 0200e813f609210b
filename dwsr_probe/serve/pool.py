"""A few threads that poll targets for the service. Daemons: the end of the service does not wait
for them.

Two lanes: targets that are slow, or do not answer, wait for threads of their own. So they never
hold up the others, however many they are.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Queue = queue.SimpleQueue[Any]

QUICK_THREADS, SLOW_THREADS = 16, 8


@dataclass
class Result:
    """Of a submitted function: what it returned, or what it raised."""

    owner: Any
    value: Any
    error: Exception | None
    seconds: float


class Pool:
    """Its threads end when nobody holds it any more."""

    def __init__(
        self, quick_threads: int = QUICK_THREADS, slow_threads: int = SLOW_THREADS
    ) -> None:
        self._lanes: tuple[Queue, Queue] = queue.SimpleQueue(), queue.SimpleQueue()
        self._done: queue.SimpleQueue[Result] = queue.SimpleQueue()
        counts = quick_threads, slow_threads
        number = 0
        for lane, count in zip(self._lanes, counts, strict=True):
            for _ in range(count):
                threading.Thread(
                    target=_work,  # not a method: a thread must not hold the pool
                    args=(lane, self._done),
                    name=f"dwsr-poll-{number}",
                    daemon=True,
                ).start()
                number += 1
            weakref.finalize(self, _end, lane, count)

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


def _end(lane: Queue, threads: int) -> None:
    for _ in range(threads):
        lane.put(None)


def _work(lane: Queue, done: queue.SimpleQueue[Result]) -> None:
    while (job := lane.get()) is not None:
        owner, function = job
        value, begin = None, time.monotonic()
        error: Exception | None = None
        try:
            value = function()
        except Exception as caught:  # the reader of the results decides what it means
            error = caught
        _put(done, owner, value, error, time.monotonic() - begin)
        del owner, function, value, error, job  # not kept while this thread waits


def _put(
    done: queue.SimpleQueue[Result],
    owner: Any,
    value: Any,
    error: Exception | None,
    seconds: float,
) -> None:
    """Also when memory runs out: an owner without a result would never be polled again."""
    while True:
        try:
            return done.put(Result(owner, value, error, seconds))
        except MemoryError:
            time.sleep(0.1)
