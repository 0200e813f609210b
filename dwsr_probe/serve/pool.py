"""A few threads that take looks for the service. Daemons: an end does not wait for them.

Two lanes: targets that are slow, or do not answer, wait for threads of their own. So they never
hold up the others, however many they are.
"""

import queue
import threading
import time

QUICK_THREADS, SLOW_THREADS = 16, 8


class Pool:
    def __init__(self, quick_threads=QUICK_THREADS, slow_threads=SLOW_THREADS):
        self._lanes, self._done = (queue.SimpleQueue(), queue.SimpleQueue()), queue.SimpleQueue()
        for number in range(quick_threads + slow_threads):
            threading.Thread(
                target=self._work,
                args=(self._lanes[number >= quick_threads],),
                name=f"dwsr-look-{number}",
                daemon=True,
            ).start()

    def submit(self, owner, function, slow=False):
        """owner gets its own back with the result of the function, or with what it raised, and
        the seconds that it took."""
        self._lanes[slow].put((owner, function))

    def results(self):
        """(owner, result, error, seconds) of everything that is done by now."""
        while True:
            try:
                yield self._done.get_nowait()
            except queue.Empty:
                return

    def has_results(self):
        return not self._done.empty()

    def _work(self, lane):
        while True:
            owner, function = lane.get()
            result, error, begin = None, None, time.monotonic()
            try:
                result = function()
            except Exception as caught:  # handed on: who asked decides
                error = caught
            self._hand_on((owner, result, error, time.monotonic() - begin))
            del owner, function, result, error  # not kept while this thread waits

    def _hand_on(self, done):
        """Whatever happens: an owner that hears nothing is never asked again."""
        while True:
            try:
                return self._done.put(done)
            except MemoryError:
                time.sleep(0.1)
