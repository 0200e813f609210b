"""Read the stream of records from anywhere: every record once, across restarts of the server
and, with `state`, of the reader.

    stream = Stream("http://worker:8790")
    for record in stream.follow():  # dicts, as in the record's contract; without an end
        ...

Standard library only. Programs that read many workers have one Stream each. A server is not
trusted: each request has a budget of bytes and of time, and what identifies a record is checked
before it is kept.
"""

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
from urllib.parse import quote, urlsplit

_PROCESSES_MOST, _RUNNING_MOST = 10_000, 20_000
# More is not an answer of one of us. A record has at most 6 KiB on its board, and JSON may take six
# times that.
_LINE_BYTES_MOST, _PAGE_BYTES_MOST = 64 << 10, 8 << 20
# of an answer: for each record that was asked for; for what runs
_RECORD_BYTES, _RUNNING_BYTES = 4 << 10, 8 << 20
_RECORD_S = 0.02  # to send it, on a machine that is busy otherwise
_PROCESS_MOST, _CURSOR_MOST, SEQ_MOST = 128, 1_024, 1 << 53
_AGAIN_S, _AGAIN_MOST_S = 0.5, 15.0


class StreamError(Exception):
    """The server does not answer as it should; the text says how. Trying again may help."""


class StreamRefused(StreamError):
    """It does not want to: no or a wrong password, not a port of ours. Trying again does not
    help."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status


class StreamNonsense(StreamError):
    """It sent what no port of ours sends."""


class StreamTooLong(StreamNonsense):
    """The answer exceeds its budget of bytes. Asking for fewer records may help."""


class TooLong(ValueError):
    """Raised while an answer is read, also by `keep`; becomes a StreamTooLong."""


class _Timed(io.RawIOBase):
    """A socket that is read until a deadline: its own timeout, for silence, begins anew with
    each byte."""

    def __init__(self, socket, silence_s, deadline):
        self._socket, self._silence_s, self._deadline = socket, silence_s, deadline

    def readable(self):
        return True

    def readinto(self, buffer):
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(min(left, self._silence_s))
        return self._socket.recv_into(buffer)

    def makefile(self, mode):
        """As HTTPResponse asks its socket."""
        return io.BufferedReader(self)


@dataclass
class Poll:
    records: list = field(default_factory=list)  # finished since the last poll
    running: list = field(default_factory=list)
    lost: int = 0  # gaps in the sequence numbers: right across a restart of the server
    refused: int = 0  # finished ones that could not be


class Stream:
    def __init__(
        self,
        url,
        token=None,
        basic=None,
        state=None,
        ca_file=None,
        timeout_s=30.0,
        record_s=_RECORD_S,
    ):
        """token: a bearer token. basic: "user:password". state: of an earlier Stream of the same
        URL, to go on where it was.
        timeout_s: a whole answer may take so long, plus record_s for each record asked for."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{url!r} is not the URL of a worker or exporter, such as http://host:9464"
            )
        self._address = parts.hostname, parts.port  # ValueError: not a port
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
        self._cursor, self._seen = state_of(state or {})

    @property
    def state(self):
        """JSON-able: where this reader is."""
        return {"cursor": self._cursor, "seen": dict(self._seen)}

    def poll(self, wait_s=0.0, limit=10_000, running=False, keep=None):
        """What is new, after waiting for it at most so long; StreamError. What came before an
        error is not lost: the next poll brings it.

        keep: called with each record as soon as it is read, returns what is kept of it;
        ValueError: nothing.
        """
        # told: of each process in this answer the newest seq, and how many
        found, told = Poll(), {}
        path = (
            f"/dwsr/tasks?since={quote(self._cursor)}&limit={limit}&wait={wait_s}"
            f"&running={int(running)}"
        )
        with self._asked(path, wait_s + self._timeout_s, limit * self._record_s) as answer:
            for line in _lines(answer, _RUNNING_BYTES + limit * _RECORD_BYTES):
                last = json.loads(line)
                if "cursor" in last:
                    cursor = last["cursor"]
                    break
                self._take(last, found, told, keep)
                if max(len(told), len(found.records)) > limit:
                    raise ValueError("it sent more records than were asked for")
                if len(found.running) > _RUNNING_MOST:
                    raise ValueError(f"it sent more than {_RUNNING_MOST:,} running tasks")
            else:
                raise EOFError("the answer was cut short")
            if not _is_cursor(cursor):
                raise ValueError("its cursor is not valid")
        # Only now: an answer that was cut short is asked for again.
        for process, (seq, count) in told.items():
            found.lost += seq - self._seen.pop(process, 0) - count
            self._seen[process] = seq
        while len(self._seen) > _PROCESSES_MOST:
            self._seen.pop(next(iter(self._seen)))
        self._cursor = cursor
        self.lost += found.lost
        return found

    def _take(self, record, found, told, keep):
        """One line of the answer."""
        is_running = record["state"] == "running"
        try:
            if not is_running:
                process, seq = record.get("process"), record.get("seq")
                if not _is_process(process) or not _is_seq(seq):
                    raise ValueError("a record without an identity")
                newest, count = told.get(process, (self._seen.get(process, 0), 0))
                if seq <= newest:  # a server that was restarted tells it again
                    return
                told[process] = seq, count + 1
            kept = record if keep is None else keep(record)
        except TooLong:
            raise
        except ValueError:
            found.refused += not is_running
            return
        (found.running if is_running else found.records).append(kept)

    def page(self, path):
        """The text of another page of the same server, such as /dwsr/processes; StreamError."""
        with self._asked(path, self._timeout_s) as answer:
            text = answer.read(_PAGE_BYTES_MOST + 1)
            if len(text) > _PAGE_BYTES_MOST:
                raise TooLong("the answer does not end")
            return text.decode("utf-8", "replace")

    @contextmanager
    def _asked(self, path, timeout_s, longer_s=0.0):
        """The answer, to be read; whatever goes wrong with it is a StreamError. longer_s: for an
        answer that is not silent meanwhile."""
        url, deadline = self._base + path.partition("?")[0], time.monotonic() + timeout_s + longer_s
        connection = None
        try:
            # No proxy and no redirect: workers are near, and a token is not for others.
            connection = (
                HTTPConnection(*self._address, timeout=timeout_s)
                if self._context is None
                else HTTPSConnection(*self._address, timeout=timeout_s, context=self._context)
            )
            connection.request("GET", path, headers=self._headers)
            answer = HTTPResponse(_Timed(connection.sock, timeout_s, deadline), method="GET")
            answer.begin()
            if answer.status != 200:
                kind, given = (
                    (StreamRefused, (answer.status,))
                    if 400 <= answer.status < 500
                    else (StreamError, ())
                )
                raise kind(
                    f"{url}: HTTP status {answer.status}: {_printable(answer.reason)}", *given
                )
            yield (
                gzip.GzipFile(fileobj=answer)
                if answer.getheader("Content-Encoding") == "gzip"
                else answer
            )
        except TooLong as error:
            raise StreamTooLong(f"{url}: {error}") from error
        except TimeoutError as error:
            raise StreamError(f"{url}: no whole answer in time: timed out") from error
        except MemoryError as error:
            raise StreamError(f"{url}: there is not enough memory for its answer") from error
        # before ValueError: a certificate that fails is both
        except (OSError, EOFError, HTTPException) as error:
            kind = StreamNonsense if isinstance(error, gzip.BadGzipFile) else StreamError
            raise kind(f"{url}: {_printable(str(error))}") from error
        except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            raise StreamNonsense(f"{url}: {_printable(str(error))}") from error
        finally:
            if connection is not None:
                connection.close()

    def follow(self, wait_s=10.0):
        """Records for ever, also when the server is away for a while; StreamRefused if it does
        not want to answer."""
        again_s = _AGAIN_S
        while True:
            try:
                found = self.poll(wait_s)
            except StreamRefused:
                raise
            except StreamError:
                time.sleep(again_s)
                again_s = min(2 * again_s, _AGAIN_MOST_S)
                continue
            again_s = _AGAIN_S
            yield from found.records


def state_of(kept):
    """(cursor, seen) of Stream.state as it was kept; ValueError: it is none."""
    cursor, seen = kept.get("cursor", "0"), dict(kept.get("seen", {}))
    if (
        not _is_cursor(cursor)
        or len(seen) > _PROCESSES_MOST
        or not all(_is_process(process) and _is_seq(seq) for process, seq in seen.items())
    ):
        raise ValueError("not the state of a stream")
    return cursor, seen


def _is_cursor(given):
    return isinstance(given, str) and len(given) <= _CURSOR_MOST


def _is_process(given):
    return isinstance(given, str) and len(given) <= _PROCESS_MOST


def _is_seq(given):
    return type(given) is int and 0 < given < SEQ_MOST


def _printable(text):
    """What a server wrote, for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:300])


def _lines(answer, bytes_most):
    """Of at most so many bytes in all, as they are after decompression."""
    while line := answer.readline(_LINE_BYTES_MOST):
        bytes_most -= len(line)
        if bytes_most < 0 or len(line) == _LINE_BYTES_MOST:
            raise TooLong(
                "the answer does not end"
                if bytes_most < 0
                else f"a line above {_LINE_BYTES_MOST >> 10} KiB"
            )
        yield line
