"""The HTTP side of a source: /metrics, /dwsr/tasks, /dwsr/processes, and small things beside them.
The same handlers serve a Dask worker's port and our own.

Read-only: GET and HEAD. Task names are data: they leave here as JSON or in Prometheus' text
format, never as HTML.
"""

import asyncio
import gzip
import json
import re
import time

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from dwsr_probe.live.wire import processes_text, running_lines

LIMIT_DEFAULT, LIMIT_MOST, WAIT_MOST_S = 10_000, 100_000, 60.0
POLL_S = 0.05  # how often a waiting reader's source is looked at
# lines between two looks at other clients, and what is held for each one that does not read
BATCH = 250
WRITE_S = 30.0  # for a client to take what was written
NO_SUCH_HOST = (
    "this port does not answer to that host name; allow it with --allow-host or"
    " DWSR_PROBE_ALLOW_HOSTS"
)
# a setting of the application: the port closes, who waits gets what there is
ENDING = "dwsr_probe_ending"


class Handler(RequestHandler):
    SUPPORTED_METHODS = ("GET", "HEAD")

    def initialize(self, source, hosts, guard=None, target=None):
        self.source, self.hosts, self.guard, self.target = source, hosts, guard, target

    async def prepare(self):
        self.request.connection.stream.answering = True
        if not await self.hosts.admits(self.request.headers.get("Host")):
            raise HTTPError(403, reason=NO_SUCH_HOST)
        if self.guard is not None and not self.guard.admits(self.request):
            raise HTTPError(401)

    def on_finish(self):
        self.request.connection.stream.answering = False

    def set_default_headers(self):
        self.set_header("Server", "dwsr-probe")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def write_error(self, status_code, **_):
        if status_code == 401:
            self.set_header("WWW-Authenticate", self.guard.challenge)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {self._reason}\n")

    def takes_gzip(self):
        return any(
            re.fullmatch(r"\s*gzip\s*(;\s*q=(1|0\.\d*[1-9])\d*\s*)?", word)
            for word in self.request.headers.get("Accept-Encoding", "").split(",")
        )

    async def taken(self, written):
        """Until the client has taken it. One that does not read loses its connection: what waits
        for it must not stay."""
        try:
            await asyncio.wait_for(written, WRITE_S)
        except asyncio.TimeoutError:
            self.request.connection.stream.close()
            raise StreamClosedError from None

    def number(self, name, otherwise, least, most):
        text = self.get_query_argument(name, None)
        if text is None:
            return otherwise
        try:
            value = type(otherwise)(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise HTTPError(400, reason=f"{name} is a number from {least} to {most}")
        return value

    async def head(self, *args, **kwargs):
        await self.get(*args, **kwargs)


class Metrics(Handler):
    def initialize(self, source, *args, **options):
        super().initialize(source, *args, **options)
        # a run that nobody scrapes does without prometheus_client
        from dwsr_probe.export.exposition import registry

        self.registry = registry(source)

    async def get(self):
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(self.request.headers.get("Accept", ""))
        with self.source.locked():
            text = encode(self.registry)
        self.set_header("Content-Type", content_type)
        if self.takes_gzip():
            self.set_header("Content-Encoding", "gzip")
            text = gzip.compress(text, 1)
        try:
            await self.taken(self.finish(text))
        except StreamClosedError:
            pass


class Tasks(Handler):
    """NDJSON: records, with running=1 those that run, then {"cursor": ..., "lost": ...}: where
    to go on, and how many were lost since."""

    async def get(self):
        since = self.get_query_argument("since", "0")
        limit = self.number("limit", LIMIT_DEFAULT, 1, LIMIT_MOST)
        wait = self.number("wait", 0.0, 0.0, WAIT_MOST_S)
        running = self.get_query_argument("running", "0") == "1"
        self.set_header("Content-Type", "application/x-ndjson")
        self._packer = None
        if self.takes_gzip():
            import zlib

            self.set_header("Content-Encoding", "gzip")
            self._packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        try:
            since, lost = await self.stream(since, limit, time.monotonic() + wait)
            last = running_lines(self.source.living().processes) if running else []
            await self.send([*last, json.dumps({"cursor": since, "lost": lost})], end=True)
        # the reader has gone, and asks for the same again when it comes back
        except StreamClosedError:
            pass

    async def stream(self, since, limit, deadline):
        lost = sent = 0
        while True:
            # asked before the last read
            over = (
                self.settings.get(ENDING)
                or self.request.connection.stream.closed()
                or time.monotonic() >= deadline
            )
            batch = self.source.read(since, min(BATCH, limit - sent))
            since, lost, sent = batch.cursor, lost + batch.lost, sent + len(batch.lines)
            if batch.lines:
                await self.send(batch.lines)
            if sent >= limit or (not batch.more and (sent or over)):
                return since, lost
            # Also when the write was taken at once: an await that need not wait does not let others
            # in.
            await asyncio.sleep(0 if batch.lines else POLL_S)

    async def send(self, lines, end=False):
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        if self._packer:
            data = self._packer.compress(data) + (self._packer.flush() if end else b"")
        self.write(data)
        await self.taken(self.flush())  # a slow reader is waited for: nothing piles up here


class Processes(Handler):
    """JSON: the living processes behind the port, as live/wire.py writes them."""

    async def get(self):
        self.set_header("Content-Type", "application/json")
        self.finish(processes_text(self.source.living()) + "\n")


class Discovery(Handler):
    """Prometheus' HTTP service discovery: this exporter, and the ports of Dask workers on this
    machine."""

    async def get(self):
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(targets(self.source, self.target, self.request.protocol)))


def targets(source, target, scheme):
    """target: how this exporter is reached."""
    found = [{"targets": [target], "labels": {"dwsr_kind": "exporter", "__scheme__": scheme}}]
    for worker in source.worker_ports():
        found.append(
            {
                "targets": [worker["http"]],
                "labels": {"dwsr_kind": "worker", "dwsr_worker": str(worker.get("name") or "")},
            }
        )
    return found


class Index(Handler):
    TEXT = """dwsr-probe: memory of tasks, live.

/metrics                                            for Prometheus: text, or OpenMetrics on request
/dwsr/tasks?since=CURSOR&limit=N&wait=S&running=1   records as NDJSON; the last has the cursor
/dwsr/processes                                     living processes as JSON
/sd                                                 of an exporter: targets, for Prometheus
/-/healthy
"""

    async def get(self):
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.TEXT)


class NotFound(Handler):
    async def get(self):
        raise HTTPError(404)


class Healthy(Handler):
    async def get(self):
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("ok\n")
