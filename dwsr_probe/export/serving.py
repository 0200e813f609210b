"""`run --metrics`: the parent's port, from before the command starts until the last scrape after
it."""

import signal
import time

from dwsr_probe.export.server import Access, ServeError, Server
from dwsr_probe.export.sources.run import RunSource
from dwsr_probe.say import say
from dwsr_probe.signals import wait_for
from dwsr_probe.store import Store

_ROUND_S = 0.5
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


class Serving:
    Error = ServeError

    def __init__(self, address, port, access=None, linger_s=0.0, quiet=False):
        self._address, self._port, self._access, self._linger_s, self._quiet = (
            address,
            port,
            access or Access(),
            linger_s,
            quiet,
        )
        self._server = self._source = None

    def open(self, store, settings):
        """The port, before the command starts; ServeError."""
        directory = store.directory
        self._source = RunSource(lambda: Store.open(directory), settings.run, settings.board_dir)
        self._server = Server(self._source, self._address, self._port, self._access)
        if not self._quiet:
            say(f"metrics at {self._server.url}/metrics")
        if self._server.warning():
            say(self._server.warning())

    def ended(self, news):
        self._source.add_news(news)

    def start(self):
        """After the fork: a thread."""
        try:
            self._server.start()
        except ServeError as error:
            say(f"{error}. The job runs without metrics")
            self.close()

    def linger(self, look):
        """The command has ended: stay for the last scrape, or until somebody is impatient."""
        if self._server is None:
            return
        end = time.monotonic() + self._linger_s
        if self._linger_s and not self._quiet:
            say(f"the command has ended; metrics stay for {self._linger_s:g} s (Ctrl-C: leave now)")
        while (left := end - time.monotonic()) > 0:
            if wait_for(_ENDING, min(left, _ROUND_S)):
                return
            look()

    def close(self):
        if self._server is not None:
            self._server.stop()
            self._server = None
