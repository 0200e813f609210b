"""Read the stream of records from anywhere: every record once, across restarts of the server and, with `state`, of the reader.

    stream = Stream("http://worker:8790")
    for record in stream.follow():          # dicts, as in the record's contract; for ever
        ...

Standard library only. Programs that read many workers have one Stream each.
"""
import gzip
import json
import ssl
import time
import urllib.error
import urllib.request
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import quote, urlsplit

_PROCESSES_MOST = 10_000
_LINE_BYTES_MOST, _RUNNING_MOST, _PAGE_BYTES_MOST = 1 << 20, 100_000, 8 << 20  # more is not an answer of one of us
_AGAIN_S, _AGAIN_MOST_S = 0.5, 15.0


class StreamError(Exception):
    """The server does not answer as it should; the text says how. Trying again may help."""


class StreamRefused(StreamError):
    """It does not want to: no or a wrong password, not a port of ours. Trying again does not help."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """It would take the token along, to wherever."""

    def redirect_request(self, *_):
        return None


@dataclass
class Poll:
    records: list = field(default_factory=list)  # finished since the last poll
    running: list = field(default_factory=list)
    lost: int = 0  # by what is missing between them: also right when a restarted server begins anew


class Stream:
    def __init__(self, url, token=None, basic=None, state=None, ca_file=None, timeout_s=30.0):
        """token: a bearer token. basic: "user:password". state: of an earlier Stream of the same URL, to go on where it was."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"{url!r} is not the URL of a worker or exporter, such as http://host:9464")
        self.host, self._base = parts.netloc, f"{parts.scheme}://{parts.netloc}"
        self.url = f"{self._base}/dwsr/tasks"
        self.lost = 0  # in all
        context = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        # No proxy: workers are near, and a token is not for others.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect, urllib.request.HTTPSHandler(context=context)).open
        self._timeout_s = timeout_s
        self._headers = {"Accept-Encoding": "gzip"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}".encode().decode("latin-1")  # http.client writes Latin-1: UTF-8 arrives
        elif basic:
            import base64
            self._headers["Authorization"] = "Basic " + base64.b64encode(basic.encode()).decode()
        state = state or {}
        self._cursor, self._seen = state.get("cursor", "0"), dict(state.get("seen", {}))

    @property
    def state(self):
        """JSON-able: where this reader is."""
        return {"cursor": self._cursor, "seen": dict(self._seen)}

    def poll(self, wait_s=0.0, limit=10_000, running=False):
        """What is new, after waiting for it at most so long; StreamError. What came before an error is not lost: the next poll brings it."""
        found, told, last = Poll(), {}, None  # told: the newest of each process in this answer
        with self._asked(f"{self.url}?since={quote(self._cursor)}&limit={limit}&wait={wait_s}&running={int(running)}", wait_s + self._timeout_s) as answer:
            for count, line in enumerate(iter(lambda: answer.readline(_LINE_BYTES_MOST), b"")):
                last = json.loads(line)
                if "cursor" in last:
                    break
                if count > limit + _RUNNING_MOST:
                    raise ValueError("the answer does not end")
                if last["state"] == "running":
                    found.running.append(last)
                elif last["seq"] > told.get(last["process"], self._seen.get(last["process"], 0)):  # a server that was restarted tells it again
                    told[last["process"]] = last["seq"]
                    found.records.append(last)
            if not isinstance(last, dict) or "cursor" not in last:
                raise ValueError("the answer was cut short")
        # Only now: an answer that was cut short is asked for again.
        for record in found.records:
            process, seq = record["process"], record["seq"]
            found.lost += seq - self._seen.pop(process, 0) - 1
            self._seen[process] = seq
        while len(self._seen) > _PROCESSES_MOST:
            self._seen.pop(next(iter(self._seen)))
        self._cursor = last["cursor"]
        self.lost += found.lost
        return found

    def page(self, path):
        """The text of another page of the same server, such as /metrics; StreamError."""
        with self._asked(self._base + path, self._timeout_s) as answer:
            text = answer.read(_PAGE_BYTES_MOST + 1)
            if len(text) > _PAGE_BYTES_MOST:
                raise ValueError("the answer does not end")
            return text.decode("utf-8", "replace")

    @contextmanager
    def _asked(self, url, timeout_s):
        """The answer, to be read; whatever goes wrong with it is a StreamError."""
        try:
            with self._open(urllib.request.Request(url, headers=self._headers), timeout=timeout_s) as answer:
                yield gzip.GzipFile(fileobj=answer) if answer.headers.get("Content-Encoding") == "gzip" else answer
        except urllib.error.HTTPError as error:
            raise (StreamRefused if 400 <= error.code < 500 else StreamError)(f"{url.partition('?')[0]}: {error}") from error
        except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error, HTTPException) as error:  # also: not the answer of one of us
            raise StreamError(f"{url.partition('?')[0]}: {error}") from error

    def follow(self, wait_s=10.0):
        """Records for ever, also when the server is away for a while; StreamRefused if it does not want to answer."""
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
