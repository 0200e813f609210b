"""`run --metrics`: the port of `run`'s parent, from before the command starts until the last scrape
after its end. Called by launch/."""

from __future__ import annotations

import signal
import time

from dwsr_probe.export.server import Access, ServeError, Server
from dwsr_probe.export.sources.run import RunSource
from dwsr_probe.say import say
from dwsr_probe.signals import wait_for
from dwsr_probe.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dwsr_probe.collector import News
    from dwsr_probe.settings import Settings

_ROUND_S = 0.5
_END_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


class RunMetricsPort:
    Error = ServeError

    def __init__(
        self,
        address: str,
        port: int,
        access: Access | None = None,
        linger_s: float = 0.0,
        quiet: bool = False,
    ) -> None:
        self._address, self._port, self._access, self._linger_s, self._quiet = (
            address,
            port,
            access or Access(),
            linger_s,
            quiet,
        )
        self._server: Server | None = None
        self._source: RunSource | None = None

    def open(self, store: Store, settings: Settings) -> None:
        """Opens the port, before the command starts; ServeError."""
        directory = store.directory
        assert directory is not None  # a run has one
        self._source = RunSource(lambda: Store.open(directory), settings.run, settings.board_dir)
        self._server = Server(self._source, self._address, self._port, self._access)
        if not self._quiet:
            say(f"metrics at {self._server.url}/metrics")
        if warning := self._server.warning():
            say(warning)

    def add_news(self, news: Iterable[News]) -> None:
        """Called by the collector after each round."""
        assert self._source is not None
        self._source.add_news(news)

    def start(self) -> None:
        """After the fork, because it starts a thread."""
        assert self._server is not None
        try:
            self._server.start()
        except ServeError as error:
            say(f"{error}. The job runs without metrics")
            self.close()

    def linger(self, collect: Callable[[], object]) -> None:
        """After the end of the command: serves until the last scrape, or a signal. collect: called
        twice a second."""
        if self._server is None:
            return
        end = time.monotonic() + self._linger_s
        if self._linger_s and not self._quiet:
            say(f"the command has ended; metrics stay for {self._linger_s:g} s (Ctrl-C: leave now)")
        while (left := end - time.monotonic()) > 0:
            if wait_for(_END_SIGNALS, min(left, _ROUND_S)):
                return
            collect()

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
