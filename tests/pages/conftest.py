"""Pages of real runs, and of stores made for a test, in a real Chromium without a network."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from dwsr_probe.report.html import write_page
from tests.conftest import require
from tests.pages.browser import chromium

JOB = """
import os, threading, time
import numpy as np
import dwsr_probe

def work(n):
    volume = np.ones((n, 256, 256), np.float32)
    with dwsr_probe.task("outer"):
        with dwsr_probe.task("double", inputs=[volume]):
            kept = volume * 2
        with dwsr_probe.task("triple", inputs=[volume]):
            np.concatenate([volume, kept, volume]).sort(axis=0)

for rounds in range(3):
    threads = [
        threading.Thread(target=lambda: [work(n) for n in (4, 8, 12, 16, 20)]) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.fixture(scope="session")
def browser():
    with chromium() as found:
        yield require(
            found, "Chromium and playwright: apt-get install chromium, pip install playwright"
        )


@pytest.fixture(scope="session")
def real_page(tmp_path_factory):
    """Of a job with nested tasks in two threads, written by the command line."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "job.py").write_text(JOB)
    env = dict(
        os.environ,
        DWSR_PROBE_BOARD_DIR=str(folder / "boards"),
        XDG_STATE_HOME=str(folder / "state"),
    )
    for words in (
        ["run", "-q", "-o", folder / "run", sys.executable, folder / "job.py"],
        ["report", folder / "run", "--format", "html"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "dwsr_probe", *words],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
    return folder / "run" / "report.html"


class Opened:
    """A page, and everything that it should not have done."""

    def __init__(self, context, path):
        self.complaints, self.requests = [], []
        self.page = page = context.new_page()
        page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "dialog",
            lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(Path(path).as_uri())
        page.wait_for_selector("html[data-complete]", timeout=600_000)
        self.settle()

    def settle(self):
        """Until what was asked for has been painted."""
        self.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>"
            " requestAnimationFrame(done))))"
        )

    def pixels(self, selector):
        return Image.open(io.BytesIO(self.page.locator(selector).screenshot())).convert("RGB")

    def colors(self, selector):
        """How many pixels of each colour."""
        image = self.pixels(selector)
        return {color: count for count, color in image.getcolors(image.width * image.height)}

    def range_of(self, plot):
        return self.page.evaluate(
            "name => { const plot = Bokeh.documents[0].roots().find(one => one.name === name);"
            " return [plot.x_range.start, plot.x_range.end]; }",
            plot,
        )

    def css(self, name):
        """A colour of the theme as (r, g, b)."""
        text = self.page.evaluate(
            "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()", name
        )
        return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))

    def column(self, element, number):
        return self.page.locator(
            f"#{element} tbody tr:not([hidden]) td:nth-child({number})"
        ).all_inner_texts()

    def assert_clean(self):
        assert (
            self.complaints == []
            and [url for url in self.requests if not url.startswith("file://")] == []
            and len(self.requests) == 1
        )


@pytest.fixture
def open_page(browser):
    contexts = []

    def open_(path, width=1280, **options):
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        )
        contexts[-1].set_default_timeout(600_000)
        return Opened(contexts[-1], path)

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture
def page_of(tmp_path):
    """The page of a store."""

    def write(store):
        write_page(store, tmp_path / "report.html", lambda *_: None)
        return tmp_path / "report.html"

    return write
