"""A port of our own, in a thread of its own: for `run --metrics`, `export` and `predict serve`.
Never in the job's process.

Loopback unless another address is given. Slow clients hold nothing but their own connection:
headers have a deadline, connections are limited, and at the limit the oldest connection that is
not being answered is closed.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from ipaddress import ip_address

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from dwsr_probe.export import handlers
from dwsr_probe.export.hosts import Hosts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from dwsr_probe.export.sources.source import MetricsSource

CONNECTIONS_MOST = 256
HEADER_TIMEOUT_S = 10.0
SHUTDOWN_GRACE_S = 0.5  # for answers that are being given when the port closes
HEADER_BYTES_MOST, BODY_BYTES_MOST = 16 << 10, 16 << 10
ROUTES = (
    ("/", handlers.IndexHandler),
    ("/metrics", handlers.MetricsHandler),
    ("/dwsr/tasks", handlers.TasksHandler),
    ("/dwsr/processes", handlers.ProcessesHandler),
    ("/-/healthy", handlers.HealthyHandler),
)


class ServeError(Exception):
    """The port cannot be opened as requested; the text says why and what to do."""


@dataclass(frozen=True)
class Access:
    """Who may read a port. Paths are files named by the user."""

    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    basic_file: str | None = None
    allow_hosts: tuple[str, ...] = ()  # names, beside this machine's own

    def tls_context(self) -> ssl.SSLContext | None:
        """For TLS; None: without. ServeError if the files cannot be used."""
        if not self.cert and not self.key:
            return None
        if not self.cert:
            raise ServeError("a TLS key needs its certificate: --tls-cert FILE")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = self.cert if self.key is None else f"{self.cert} with the key {self.key}"
        try:
            for path in filter(None, (self.cert, self.key)):
                os.stat(path)  # OpenSSL does not say which; not opened: it may be a pipe
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise ServeError(
                f"cannot use the TLS certificate {files}: {error}; it must be PEM, with its key (no"
                " password) in it or in --tls-key FILE"
            ) from error
        except OSError as error:
            raise ServeError(f"cannot use the TLS certificate {files}: {error}") from error
        return context

    def guard(self) -> Guard | None:
        accepted = []
        if self.token_file:
            accepted.append("Bearer " + read_secret(self.token_file, "the token"))
        if self.basic_file:
            pair = read_secret(self.basic_file, "user:password")
            if ":" not in pair:
                raise ServeError(f"{self.basic_file} must hold one line, user:password")
            accepted.append("Basic " + base64.b64encode(pair.encode()).decode())
        return Guard(accepted) if accepted else None


def _no_password() -> str:
    """Without it OpenSSL would prompt at the terminal."""
    return ""


def read_secret(path: str, what: str) -> str:
    """The first line of a file; ServeError. what: a name for it in messages."""
    try:
        with open(path, encoding="utf-8") as f:
            text = f.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"cannot read {what} in {path}: {error}") from error
    if not text:
        raise ServeError(f"{path} is empty; its first line must be {what}")
    return text


class Guard:
    """The passwords of a port. accepted: values of the Authorization header."""

    def __init__(self, accepted: Iterable[str]) -> None:
        accepted = list(accepted)
        self._accepted = [text.encode() for text in accepted]
        self.challenge = ", ".join(
            sorted(
                {
                    text.split()[0] + (' realm="dwsr-probe"' if text.startswith("Basic") else "")
                    for text in accepted
                }
            )
        )

    def admits(self, request: Any) -> bool:
        kind, _, secret = request.headers.get("Authorization", "").partition(" ")
        # as it came; the kind in any case
        given = f"{kind.capitalize()} {secret.strip()}".encode("latin-1", "replace")
        # all are compared, so that the time taken says nothing
        return any([hmac.compare_digest(given, accepted) for accepted in self._accepted])


class _LimitedServer(HTTPServer):
    """Limits connections. A new connection closes the oldest one that waits for its client; if all
    are being answered, the oldest."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._streams: dict[Any, None] = {}  # in order of arrival

    def handle_stream(self, stream: Any, address: Any) -> None:
        while len(self._streams) >= CONNECTIONS_MOST:
            waiting = next((s for s in self._streams if not s.answering), next(iter(self._streams)))
            self._streams.pop(waiting)
            waiting.close()
        stream.answering = False  # set by the handlers
        self._streams[stream] = None
        super().handle_stream(stream, address)

    def on_close(self, server_conn: Any) -> None:
        # not by a close callback: Tornado's connections replace it
        self._streams.pop(server_conn.stream, None)
        super().on_close(server_conn)

    def answering(self) -> bool:
        return any(stream.answering for stream in self._streams)

    def close_streams(self) -> None:
        for stream in list(self._streams):
            stream.close()


def parse_address(text: str) -> tuple[str, int]:
    """[ADDR:]PORT → (address, port); ValueError."""
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise ValueError(text)
    number = int(port)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return address.strip("[]") or "127.0.0.1", number


class Server:
    """The port is opened at once, so that errors are reported before the job starts; it is served
    from `start` to `stop`."""

    def __init__(
        self,
        source: MetricsSource,
        address: str,
        port: int,
        access: Access | None = None,
        discovery: bool = False,
        advertise: str | None = None,
        routes: Sequence[tuple[str, type]] = ROUTES,
        body_bytes_most: int = BODY_BYTES_MOST,
    ) -> None:
        access = access or Access()
        self._context, guard = access.tls_context(), access.guard()
        try:
            self._sockets = bind_sockets(port, address, backlog=1024)
        except (OSError, UnicodeError) as error:
            raise ServeError(
                f"cannot listen on {address}:{port}: {getattr(error, 'strerror', None) or error};"
                " choose another port, or 0 for any that is free"
            ) from error
        self.address, self.port = address, self._sockets[0].getsockname()[1]
        hosts = Hosts([*access.allow_hosts, address, (advertise or "").rpartition(":")[0]])
        common = {
            "source": source,
            "hosts": hosts,
            "guard": guard,
            "target": advertise or f"{socket.gethostname()}:{self.port}",
        }
        routes = [*routes, *([("/sd", handlers.DiscoveryHandler)] if discovery else [])]
        self._application = Application(
            [(path, handler, common) for path, handler in routes],
            log_function=lambda handler: None,
            default_handler_class=handlers.NotFoundHandler,
            default_handler_args=common,
        )
        self._source, self._body_bytes_most = source, body_bytes_most
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self.secured, self._stopping = guard is not None, False

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self._context else 'http'}://{host}:{self.port}"

    def warning(self) -> str | None:
        """One line for the user if the port is open to other machines; None: it is not."""
        if all(ip_address(s.getsockname()[0]).is_loopback for s in self._sockets):
            return None
        readers = "whoever has the token or password" if self.secured else "anybody who reaches it"
        return (
            f"{self.url} is open to other machines: {readers} can read task names, keys, shapes,"
            " users and memory figures (no data)"
        )

    def start(self) -> None:
        """ServeError if there is no thread or no descriptor left for it."""
        ready = threading.Event()
        try:
            thread = threading.Thread(
                target=self._serve, args=(ready,), name="dwsr-serve", daemon=True
            )
            thread.start()
        except RuntimeError as error:
            raise ServeError(f"cannot serve {self.url}: {error}") from error
        ready.wait()
        if self._failure is not None:
            raise ServeError(f"cannot serve {self.url}: {self._failure}") from self._failure
        self._thread = thread

    def _serve(self, ready: threading.Event) -> None:
        # a scanner must not fill the job's terminal
        for name in ("tornado.access", "tornado.application", "tornado.general"):
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        try:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._begin())
        except Exception as error:
            self._failure = error
            return
        finally:
            ready.set()
        while not self._stopping:
            try:
                self._loop.run_forever()
            except MemoryError:  # of one request, in the loop's own code; the port goes on
                pass
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _begin(self) -> None:
        self._server = _LimitedServer(
            self._application,
            ssl_options=self._context,
            idle_connection_timeout=HEADER_TIMEOUT_S,
            max_header_size=HEADER_BYTES_MOST,
            max_body_size=self._body_bytes_most,
            body_timeout=HEADER_TIMEOUT_S,
        )
        self._server.add_sockets(self._sockets)

    async def _end(self) -> None:
        self._server.stop()
        self._application.settings[handlers.CLOSING_SETTING] = True
        deadline = self._loop.time() + SHUTDOWN_GRACE_S
        while self._server.answering() and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._server.close_streams()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._source.close()  # in the thread that opened it

    def stop(self) -> None:
        if self._thread is not None:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2)
            self._thread = None
        for s in self._sockets:
            s.close()
