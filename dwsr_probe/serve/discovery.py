"""Where the targets of the predictor come from: named one by one, in a file_sd file, or known to a
Prometheus. Called in the service's thread pool.

Each class has `find()`: the URLs as they are now; None: they have not changed, or cannot be read
at the moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from dwsr_probe.export.client import Stream, StreamError

FIND_INTERVAL_S = 5.0  # between two calls of find()
TARGETS_MOST, _URL_MOST = 2_000, 2_000


class Discovery(Protocol):
    def find(self) -> list[str] | None: ...


class ListedTargets:
    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = list(urls)

    def find(self) -> list[str]:
        return self._urls


class FileSdTargets:
    """Prometheus' file_sd, JSON: [{"targets": ["host:port"], "labels": {"__scheme__":
    "https"}}]. Read again when it has changed."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._stamp: tuple[int, int, int] | None = (
            None  # mtime, size and inode of the file that was read
        )
        self._error: str | None = None  # that was reported

    def find(self) -> list[str] | None:
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
            self._stamp, self._error = stamp, None
            return found
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if self._error != str(error):  # reported once; somebody may be writing the file
                self._say(f"cannot read the targets in {self._path}: {error}; trying again")
            self._error = str(error)
            return None


class PrometheusTargets:
    """Active targets of a Prometheus. jobs: only targets of these jobs; none: of all jobs. Targets
    without /dwsr/tasks are left out when they are polled."""

    def __init__(
        self,
        url: str,
        jobs: Iterable[str] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._server, self._jobs, self._say = Stream(url, timeout_s=10.0), set(jobs), say
        self._failing = False
        self._path = (
            urlsplit(url if "//" in url else f"http://{url}").path.rstrip("/")
            + "/api/v1/targets?"
            + urlencode({"state": "active"})
        )

    def find(self) -> list[str] | None:
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
            self._failing = False
            return found
        except (StreamError, ValueError, TypeError, KeyError, AttributeError) as error:
            if not self._failing:
                self._say(f"cannot read the targets of Prometheus: {error}; trying again")
            self._failing = True
            return None
