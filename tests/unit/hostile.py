"""Targets that mean harm: real sockets, each answer made by a function that writes whatever it
likes, as slowly as it likes."""

import json
import socket
import threading
import zlib

from tests.unit.workers import record

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
LAST = json.dumps({"cursor": "1", "lost": 0}).encode() + b"\n"


class Hostile:
    """Answers each connection, on a thread of its own, with what answer(request) yields, until
    the client goes."""

    def __init__(self, answer):
        self._answer, self._ended, self.asked = answer, threading.Event(), 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.host = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client:
            try:
                request = client.recv(65_536)
                self.asked += 1
                for piece in self._answer(self, request):
                    client.sendall(piece)
                    if self._ended.is_set():
                        return
            except OSError:  # the client has gone
                pass

    def wait(self, seconds):
        """For answers: also over at the end."""
        self._ended.wait(seconds)

    def close(self):
        self._ended.set()
        self._listening.close()


def drip(*pieces):
    """These, then a byte five times a second, for ever."""

    def answer(server, request):
        yield from pieces
        while True:
            yield b" "
            server.wait(0.2)

    return answer


def lines(make, end=True):
    """make(n): the line number n, or None after the last one."""

    def answer(server, request):
        yield OK + b"Connection: close\r\n\r\n"
        n = 0
        while (line := make(n)) is not None:
            yield line
            n += 1
        if end:
            yield LAST

    return answer


def gzipped(make):
    """The same compressed, without an end of the stream."""

    def answer(server, request):
        yield OK + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
        packer, n = zlib.compressobj(1, zlib.DEFLATED, 31), 0
        while (line := make(n)) is not None:
            yield packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH)
            n += 1
        yield packer.compress(LAST) + packer.flush()

    return answer


def line(seq, **fields):
    """A record as it is sent."""
    return json.dumps({**record(1), "seq": seq, **fields}).encode() + b"\n"
