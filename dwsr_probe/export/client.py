"""Read the stream of records from anywhere: every record once, across restarts of the server
and, with `state`, of the reader.

    stream = Stream("http://worker:8790")
    for record in stream.follow():  # dicts, as in the record's contract; without an end
        ...

Standard library only. A program that reads many workers has one Stream for each. A server is not
trusted: each request has a budget of bytes and of time, and the identity of a record is checked
before the record is kept.
"""

from __future__ import annotations

import gzip
import io
import json
import ssl
import time
import zlib
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from socket import socket as Socket

_PROCESSES_MOST, _RUNNING_MOST = 10_000, 20_000
# No port of ours sends more. A record has at most 6 KiB on its board, and JSON may take six times
# that.
_LINE_BYTES_MOST, _PAGE_BYTES_MOST = 64 << 10, 8 << 20
# The budget of an answer: for each record that was requested, and for all running tasks
_RECORD_BYTES, _RUNNING_BYTES = 4 << 10, 8 << 20
_RECORD_S = 0.02  # to send one record, on a busy machine
_PROCESS_CHARS_MOST, _CURSOR_CHARS_MOST, SEQ_MOST = 128, 1_024, 1 << 53
_RETRY_S, _RETRY_MOST_S = 0.5, 15.0


class StreamError(Exception):
    """The server does not answer as it should; the text says why. Trying again may help."""


class StreamRefused(StreamError):
    """HTTP status 4xx: no or a wrong password, or not a port of ours. Trying again does not
    help."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class StreamInvalid(StreamError):
    """The server sent what no port of ours sends."""


class StreamOverBudget(StreamInvalid):
    """The answer exceeds its budget of bytes. A request for fewer records may succeed."""


class OverBudget(ValueError):
    """Raised while an answer is read, by this module or by `keep`. _request converts it into a
    StreamOverBudget."""


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline. The socket's own timeout begins anew with each byte."""

    def __init__(self, socket: Socket, silence_s: float, deadline: float) -> None:
        self._socket, self._silence_s, self._deadline = socket, silence_s, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(min(left, self._silence_s))
        return self._socket.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """HTTPResponse calls this method of its socket."""
        return io.BufferedReader(self)


@dataclass
class Poll:
    # finished since the last poll: dicts, or what `keep` made of them
    records: list[Any] = field(default_factory=list)
    running: list[Any] = field(default_factory=list)
    lost: int = 0  # gaps in the sequence numbers: right across a restart of the server
    refused: int = 0  # finished records that are not valid


class Stream:
    def __init__(
        self,
        url: str,
        token: str | None = None,
        basic: str | None = None,
        state: dict[str, Any] | None = None,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        record_s: float = _RECORD_S,
    ) -> None:
        """token: a bearer token. basic: "user:password". state: of an earlier Stream of the same
        URL, to go on where it was. timeout_s: a whole answer may take so long, plus record_s for
        each record requested. ValueError: not a URL, or not a state."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{url!r} is not the URL of a worker or exporter, such as http://host:9464"
            )
        self._hostname, self._port = parts.hostname, parts.port  # ValueError: not a port
        self.host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{self.host}"
        self.url = f"{self._base}/dwsr/tasks"
        self.lost = 0  # in all
        self._context = (
            ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        )
        self._timeout_s, self._record_s = timeout_s, record_s
        self._headers = {"Accept-Encoding": "gzip", "Connection": "close"}
        if token:
            # http.client writes Latin-1: UTF-8 arrives
            self._headers["Authorization"] = f"Bearer {token}".encode().decode("latin-1")
        elif basic:
            self._headers["Authorization"] = "Basic " + b64encode(basic.encode()).decode()
        self._cursor, self._seen = parse_state(state or {})

    @property
    def state(self) -> dict[str, Any]:
        """Where this reader is, for JSON."""
        return {"cursor": self._cursor, "seen": dict(self._seen)}

    def poll(
        self,
        wait_s: float = 0.0,
        limit: int = 10_000,
        running: bool = False,
        keep: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Poll:
        """What is new, after waiting for it at most wait_s; StreamError. Records that came before
        an error are not lost: the next poll brings them.

        keep: called with each record as soon as it is read, returns what is kept of it. If it
        raises ValueError, the record is left out.
        """
        # of each process in this answer: the newest seq, and the number of records
        found, progress = Poll(), dict[str, tuple[int, int]]()
        path = (
            f"/dwsr/tasks?since={quote(self._cursor)}&limit={limit}&wait={wait_s}"
            f"&running={int(running)}"
        )
        with self._request(path, wait_s + self._timeout_s, limit * self._record_s) as answer:
            for line in _lines(answer, _RUNNING_BYTES + limit * _RECORD_BYTES):
                parsed = json.loads(line)
                if "cursor" in parsed:  # the last line
                    cursor = parsed["cursor"]
                    break
                self._add(parsed, found, progress, keep)
                if max(len(progress), len(found.records)) > limit:
                    raise ValueError("it sent more records than were asked for")
                if len(found.running) > _RUNNING_MOST:
                    raise ValueError(f"it sent more than {_RUNNING_MOST:,} running tasks")
            else:
                raise EOFError("the answer was cut short")
            if not _is_cursor(cursor):
                raise ValueError("its cursor is not valid")
        # Only now: an answer that was cut short is requested again.
        for process, (seq, count) in progress.items():
            found.lost += seq - self._seen.pop(process, 0) - count
            self._seen[process] = seq
        while len(self._seen) > _PROCESSES_MOST:
            self._seen.pop(next(iter(self._seen)))
        self._cursor = cursor
        self.lost += found.lost
        return found

    def _add(
        self,
        record: dict[str, Any],
        found: Poll,
        progress: dict[str, tuple[int, int]],
        keep: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        """Adds one line of the answer to `found`."""
        is_running = record["state"] == "running"
        try:
            if not is_running:
                process: Any = record.get("process")
                seq: Any = record.get("seq")
                if not _is_process(process) or not _is_seq(seq):
                    raise ValueError("a record without an identity")
                newest, count = progress.get(process, (self._seen.get(process, 0), 0))
                if seq <= newest:  # a server that was restarted sends it again
                    return
                progress[process] = seq, count + 1
            kept = record if keep is None else keep(record)
        except OverBudget:
            raise
        except ValueError:
            found.refused += not is_running
            return
        (found.running if is_running else found.records).append(kept)

    def page(self, path: str) -> str:
        """The text of another page of the same server, such as /dwsr/processes; StreamError."""
        with self._request(path, self._timeout_s) as answer:
            text = answer.read(_PAGE_BYTES_MOST + 1)
            if len(text) > _PAGE_BYTES_MOST:
                raise OverBudget("the answer does not end")
            return text.decode("utf-8", "replace")

    @contextmanager
    def _request(self, path: str, timeout_s: float, extra_s: float = 0.0) -> Iterator[IO[bytes]]:
        """The answer, to be read; whatever fails is a StreamError. timeout_s: the
        longest time without a byte. extra_s: added to timeout_s for the whole answer."""
        url, deadline = self._base + path.partition("?")[0], time.monotonic() + timeout_s + extra_s
        connection: HTTPConnection | None = None
        try:
            # No proxy and no redirect: workers are near, and a token is not for others.
            connection = (
                HTTPConnection(self._hostname, self._port, timeout=timeout_s)
                if self._context is None
                else HTTPSConnection(
                    self._hostname, self._port, timeout=timeout_s, context=self._context
                )
            )
            connection.request("GET", path, headers=self._headers)
            reader: Any = _DeadlineReader(connection.sock, timeout_s, deadline)
            answer = HTTPResponse(reader, method="GET")
            answer.begin()
            if answer.status != 200:
                text = f"{url}: HTTP status {answer.status}: {_printable(answer.reason)}"
                if 400 <= answer.status < 500:
                    raise StreamRefused(text, answer.status)
                raise StreamError(text)
            packed = answer.getheader("Content-Encoding") == "gzip"
            body: Any = gzip.GzipFile(fileobj=answer) if packed else answer
            yield body
        except OverBudget as error:
            raise StreamOverBudget(f"{url}: {error}") from error
        except TimeoutError as error:
            raise StreamError(f"{url}: no whole answer in time: timed out") from error
        except MemoryError as error:
            raise StreamError(f"{url}: there is not enough memory for its answer") from error
        # before ValueError: a certificate that fails is both
        except (OSError, EOFError, HTTPException) as error:
            kind = StreamInvalid if isinstance(error, gzip.BadGzipFile) else StreamError
            raise kind(f"{url}: {_printable(str(error))}") from error
        except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            raise StreamInvalid(f"{url}: {_printable(str(error))}") from error
        finally:
            if connection is not None:
                connection.close()

    def follow(self, wait_s: float = 10.0) -> Iterator[dict[str, Any]]:
        """Records without end, also when the server is away for a while; StreamRefused if the
        server refuses to answer."""
        retry_s = _RETRY_S
        while True:
            try:
                found = self.poll(wait_s)
            except StreamRefused:
                raise
            except StreamError:
                time.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MOST_S)
                continue
            retry_s = _RETRY_S
            yield from found.records


def parse_state(kept: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """(cursor, newest seq by process) of a saved Stream.state; ValueError: not a state."""
    cursor, seen = kept.get("cursor", "0"), dict(kept.get("seen", {}))
    if (
        not _is_cursor(cursor)
        or len(seen) > _PROCESSES_MOST
        or not all(_is_process(process) and _is_seq(seq) for process, seq in seen.items())
    ):
        raise ValueError("not the state of a stream")
    return cursor, seen


def _is_cursor(given: Any) -> bool:
    return isinstance(given, str) and len(given) <= _CURSOR_CHARS_MOST


def _is_process(given: Any) -> bool:
    return isinstance(given, str) and len(given) <= _PROCESS_CHARS_MOST


def _is_seq(given: Any) -> bool:
    return type(given) is int and 0 < given < SEQ_MOST


def _printable(text: str) -> str:
    """A server's text, safe for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:300])


def _lines(answer: IO[bytes], bytes_most: int) -> Iterator[bytes]:
    """The lines of an answer of at most so many bytes after decompression; OverBudget."""
    while line := answer.readline(_LINE_BYTES_MOST):
        bytes_most -= len(line)
        if bytes_most < 0 or len(line) == _LINE_BYTES_MOST:
            raise OverBudget(
                "the answer does not end"
                if bytes_most < 0
                else f"a line above {_LINE_BYTES_MOST >> 10} KiB"
            )
        yield line
