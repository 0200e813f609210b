"""Debian's Chromium, driven by playwright: for tests/pages and for the benchmark."""

import shutil
from contextlib import contextmanager


@contextmanager
def chromium():
    """A headless browser that has no network; None where there is none."""
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as driver:
        # Its sandbox needs rights that containers and root do not have; the pages are our own.
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=600_000
        )
        try:
            yield browser
        finally:
            browser.close()
