"""Workers as the predictor sees them: real HTTP servers that serve records, or nonsense."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

KIB, MIB = 1 << 10, 1 << 20


def record(seq, name="smooth", size=MIB, peak=None, process="1-100", state="ok", **fields):
    """As in the record's contract: a task whose peak is three times its input, unless told
    otherwise."""
    given = {"type": "ndarray", "dtype": "float64", "shape": [size // 8], "nbytes": size}
    return {
        "seq": seq,
        "run": "r",
        "host": "h",
        "pid": 1,
        "process": process,
        "worker": None,
        "thread": 7,
        "key": None,
        "task_name": name,
        "state": state,
        "start": float(seq or 0),
        "duration": 1.0,
        "inputs": [given],
        "inputs_omitted": 0,
        "input_bytes": size,
        "output": given,
        "output_bytes": size,
        "rss_before_bytes": None,
        "rss_peak_bytes": None,
        "alloc_peak_bytes": 3 * size if peak is None else peak,
        "alloc_end_bytes": size,
        "gpu": None,
        "oom": None,
        "overlap": 0,
        "attribution": "exact",
        "kind": "task",
        **fields,
    }


def running(peak, live=None, name="smooth", size=MIB, start=1e9, headroom=None, **fields):
    """headroom: of its process; None as of an older server, which does not send it."""
    if headroom is not None:
        fields |= {
            "running_seconds": 5.0,
            "process_resident_bytes": 50 * MIB,
            "process_limit_bytes": 50 * MIB + headroom,
            "process_headroom_bytes": headroom,
        }
    return record(
        None,
        name,
        size,
        peak,
        state="running",
        duration=None,
        output=None,
        output_bytes=None,
        start=start,
        alloc_end_bytes=peak if live is None else live,
        **fields,
    )


class FakeWorker:
    """Records by position, and what runs; or `body`: what it answers to
    everything. `asked` has the paths."""

    def __init__(self, records=(), body=None, status=200, token=None):
        self.records, self.running, self.body, self.status, self.token, self.asked = (
            list(records),
            [],
            body,
            status,
            token,
            [],
        )
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                worker.asked.append(self.path)
                status, body = worker.answer(urlsplit(self.path), self.headers)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # a client that goes is no news
        self._server.daemon_threads, self._server.handle_error = True, lambda *_: None
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def answer(self, url, headers):
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, b"no"
        if self.body is not None:
            return self.status, self.body
        if url.path != "/dwsr/tasks":
            return 404, b"no"
        asked = parse_qs(url.query)
        since, limit = int(asked["since"][0]), int(asked["limit"][0])
        told = self.records[since : since + limit]
        lines = [*told, *self.running, {"cursor": str(since + len(told)), "lost": 0}]
        return 200, "".join(json.dumps(line) + "\n" for line in lines).encode()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
