"""Where the service looks for workers: named one by one, in a file_sd file, or known to a
Prometheus. Called from the service's own thread pool.

Each has `find()`: the URLs as they are now, None if it cannot tell at the moment (the last
answer holds).
"""

import json
import os
from urllib.parse import urlencode, urlsplit

from dwsr_probe.export.client import Stream, StreamError

LOOK_S = 5.0  # between two looks at a file or at Prometheus
TARGETS_MOST, _URL_MOST = 2_000, 2_000


class Listed:
    def __init__(self, urls):
        self._urls = list(urls)

    def find(self):
        return self._urls


class FileSd:
    """Prometheus' file_sd, JSON: [{"targets": ["host:port"], "labels": {"__scheme__":
    "https"}}]. Read again when it has changed."""

    def __init__(self, path, say):
        self._path, self._say, self._stamp, self._bad = path, say, None, None

    def find(self):
        try:
            stat = os.stat(self._path)
            stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
            if stamp == self._stamp:
                return None
            with open(self._path, encoding="utf-8") as f:
                found = [
                    f"{group.get('labels', {}).get('__scheme__', 'http')}://{target}"
                    for group in json.load(f)
                    for target in group["targets"]
                ]
            self._stamp, self._bad = stamp, None
            return found
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if self._bad != str(error):  # said once; somebody may be writing it
                self._say(f"cannot read the targets in {self._path}: {error}; trying again")
            self._bad = str(error)
            return None


class Prometheus:
    """Active targets of a Prometheus, those of some jobs only if they are named. Which of them
    are ours is seen when they are asked."""

    def __init__(self, url, jobs=(), say=lambda text: None):
        self._server, self._jobs, self._say, self._bad = (
            Stream(url, timeout_s=10.0),
            set(jobs),
            say,
            False,
        )
        self._path = (
            urlsplit(url if "//" in url else f"http://{url}").path.rstrip("/")
            + "/api/v1/targets?"
            + urlencode({"state": "active"})
        )

    def find(self):
        try:
            active = json.loads(self._server.page(self._path))["data"]["activeTargets"]
            found = []
            for target in active:
                parts = urlsplit(target["scrapeUrl"])
                if len(target["scrapeUrl"]) <= _URL_MOST and (
                    not self._jobs
                    or target.get("scrapePool") in self._jobs
                    or target["labels"].get("job") in self._jobs
                ):
                    found.append(f"{parts.scheme}://{parts.netloc}")
            self._bad = False
            return found
        except (StreamError, ValueError, TypeError, KeyError, AttributeError) as error:
            if not self._bad:
                self._say(f"Prometheus does not tell its targets: {error}; trying again")
            self._bad = True
            return None
