"""A few threads that take looks for the service, so that targets that hang do not hold up the others. Daemons: an end does not wait for them."""
import queue
import threading

THREADS = 24


class Pool:
    def __init__(self, threads=THREADS):
        self._todo, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"dwsr-look-{number}", daemon=True).start()

    def submit(self, owner, function):
        """owner gets its own back with the result of the function, or with what it raised."""
        self._todo.put((owner, function))

    def results(self):
        """(owner, result, error) of everything that is done by now."""
        while True:
            try:
                yield self._done.get_nowait()
            except queue.Empty:
                return

    def has_results(self):
        return not self._done.empty()

    def _work(self):
        while True:
            owner, function = self._todo.get()
            try:
                self._done.put((owner, function(), None))
            except Exception as error:  # handed on: who asked decides
                self._done.put((owner, None, error))
