"""The HTTP side of a source: /metrics, /dwsr/tasks, /dwsr/processes, and small things beside them.
The same handlers serve a Dask worker's port and our own.

Read-only: GET and HEAD. Task names are data: they leave here as JSON or in Prometheus' text
format, never as HTML.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from dwsr_probe.live.wire import processes_text, running_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from dwsr_probe.export.hosts import Hosts
    from dwsr_probe.export.server import Guard
    from dwsr_probe.export.sources.source import Source

LIMIT_DEFAULT, LIMIT_MOST, WAIT_MOST_S = 10_000, 100_000, 60.0
POLL_S = 0.05  # how often the source is read for a client that waits
# lines after which other clients have their turn; as many wait for a client that does not read
BATCH_LINES = 250
WRITE_TIMEOUT_S = 30.0  # for a client to receive what was written
NO_SUCH_HOST = (
    "this port does not answer to that host name; allow it with --allow-host or"
    " DWSR_PROBE_ALLOW_HOSTS"
)
# a setting of the application: the port closes, and waiting clients get what there is
CLOSING_SETTING = "dwsr_probe_ending"


class BaseHandler(RequestHandler):
    """hosts: names that the port answers to. guard: passwords; None: open. target: how Prometheus
    reaches the port."""

    SUPPORTED_METHODS: tuple[str, ...] = ("GET", "HEAD")

    def initialize(
        self, source: Any, hosts: Hosts, guard: Guard | None = None, target: str | None = None
    ) -> None:
        self.source, self.hosts, self.guard, self.target = source, hosts, guard, target

    async def prepare(self) -> None:
        self.request.connection.stream.answering = True
        if not await self.hosts.admits(self.request.headers.get("Host")):
            raise HTTPError(403, reason=NO_SUCH_HOST)
        if self.guard is not None and not self.guard.admits(self.request):
            raise HTTPError(401)

    def on_finish(self) -> None:
        self.request.connection.stream.answering = False

    def set_default_headers(self) -> None:
        self.set_header("Server", "dwsr-probe")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def write_error(self, status_code: int, **_: Any) -> None:
        if status_code == 401 and self.guard is not None:
            self.set_header("WWW-Authenticate", self.guard.challenge)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {self._reason}\n")

    def accepts_gzip(self) -> bool:
        return any(
            re.fullmatch(r"\s*gzip\s*(;\s*q=(1|0\.\d*[1-9])\d*\s*)?", word)
            for word in self.request.headers.get("Accept-Encoding", "").split(",")
        )

    async def wait_until_sent(self, written: Awaitable[None]) -> None:
        """Waits until the client has received what was written. A client that does not read loses
        its connection: nothing piles up here."""
        try:
            await asyncio.wait_for(written, WRITE_TIMEOUT_S)
        except asyncio.TimeoutError:
            self.request.connection.stream.close()
            raise StreamClosedError from None

    def int_argument(self, name: str, default: int, least: int, most: int) -> int:
        return int(self._number_argument(name, int, default, least, most))

    def float_argument(self, name: str, default: float, least: float, most: float) -> float:
        return self._number_argument(name, float, default, least, most)

    def _number_argument(
        self, name: str, parse: type[int] | type[float], default: float, least: float, most: float
    ) -> float:
        """A number of the query; HTTP status 400 if it is none in this range."""
        text = self.get_query_argument(name, None)
        if text is None:
            return default
        try:
            value = parse(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise HTTPError(400, reason=f"{name} is a number from {least} to {most}")
        return value

    async def get(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    async def head(self, *args: Any, **kwargs: Any) -> None:
        await self.get(*args, **kwargs)


class MetricsHandler(BaseHandler):
    def initialize(self, source: Any, *args: Any, **options: Any) -> None:
        super().initialize(source, *args, **options)
        # a run that nobody scrapes does without prometheus_client
        from dwsr_probe.export.exposition import registry

        self.registry = registry(source)

    async def get(self) -> None:
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(self.request.headers.get("Accept", ""))
        with self.source.locked():
            text = encode(self.registry)
        self.set_header("Content-Type", content_type)
        if self.accepts_gzip():
            self.set_header("Content-Encoding", "gzip")
            text = gzip.compress(text, 1)
        try:
            await self.wait_until_sent(self.finish(text))
        except StreamClosedError:
            pass


class TasksHandler(BaseHandler):
    """NDJSON: finished records, with running=1 then the running tasks, last {"cursor": ...,
    "lost": ...}: where to go on, and how many records were lost since."""

    source: Source

    async def get(self) -> None:
        since = self.get_query_argument("since", "0")
        limit = self.int_argument("limit", LIMIT_DEFAULT, 1, LIMIT_MOST)
        wait = self.float_argument("wait", 0.0, 0.0, WAIT_MOST_S)
        running = self.get_query_argument("running", "0") == "1"
        self.set_header("Content-Type", "application/x-ndjson")
        self._packer: Any = None
        if self.accepts_gzip():
            import zlib

            self.set_header("Content-Encoding", "gzip")
            self._packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        try:
            since, lost = await self.stream(since, limit, time.monotonic() + wait)
            last = running_lines(self.source.living().processes) if running else []
            await self.send([*last, json.dumps({"cursor": since, "lost": lost})], end=True)
        # the client has gone, and requests the same again when it comes back
        except StreamClosedError:
            pass

    async def stream(self, since: str, limit: int, deadline: float) -> tuple[str, int]:
        """Sends records until there are `limit` of them, no more, or (if there are none) the
        deadline. Returns the cursor behind them, and how many were lost."""
        lost = sent = 0
        while True:
            # before the read: what ends meanwhile is in the last read
            stop_waiting = (
                self.settings.get(CLOSING_SETTING)
                or self.request.connection.stream.closed()
                or time.monotonic() >= deadline
            )
            batch = self.source.read(since, min(BATCH_LINES, limit - sent))
            since, lost, sent = batch.cursor, lost + batch.lost, sent + len(batch.lines)
            if batch.lines:
                await self.send(batch.lines)
            if sent >= limit or (not batch.more and (sent or stop_waiting)):
                return since, lost
            # Also when the write was complete at once: an await that need not wait does not let
            # others in.
            await asyncio.sleep(0 if batch.lines else POLL_S)

    async def send(self, lines: list[str], end: bool = False) -> None:
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        if self._packer:
            data = self._packer.compress(data) + (self._packer.flush() if end else b"")
        self.write(data)
        await self.wait_until_sent(self.flush())


class ProcessesHandler(BaseHandler):
    """JSON: the living processes behind the port, as live/wire.py writes them."""

    source: Source

    async def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(processes_text(self.source.living()) + "\n")


class DiscoveryHandler(BaseHandler):
    """Prometheus' HTTP service discovery: this exporter, and the ports of Dask workers on this
    machine."""

    source: Source

    async def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(target_groups(self.source, self.target, self.request.protocol)))


def target_groups(source: Source, target: str | None, scheme: str) -> list[dict[str, Any]]:
    """For Prometheus. target: host and port of this exporter."""
    found = [{"targets": [target], "labels": {"dwsr_kind": "exporter", "__scheme__": scheme}}]
    for worker in source.worker_ports():
        found.append(
            {
                "targets": [worker["http"]],
                "labels": {"dwsr_kind": "worker", "dwsr_worker": str(worker.get("name") or "")},
            }
        )
    return found


class IndexHandler(BaseHandler):
    TEXT = """dwsr-probe: memory of tasks, live.

/metrics                                            for Prometheus: text, or OpenMetrics on request
/dwsr/tasks?since=CURSOR&limit=N&wait=S&running=1   records as NDJSON; the last has the cursor
/dwsr/processes                                     living processes as JSON
/sd                                                 of an exporter: targets, for Prometheus
/-/healthy
"""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.TEXT)


class NotFoundHandler(BaseHandler):
    async def get(self) -> None:
        raise HTTPError(404)


class HealthyHandler(BaseHandler):
    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("ok\n")
