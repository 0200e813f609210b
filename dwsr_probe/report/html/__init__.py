"""The report as one HTML file that needs nothing else: no network, no server, Bokeh inline. Called by `report --format html`.

tasks and memory read the store once, in bounded memory; packed carries what they found to the browser; figures are the plots' frames, which page.js fills for the range in view; tables and
page write the rest. Nothing that the job named is ever markup: names are escaped, or travel inside the packed data and become text.
"""
import os
import tempfile

MISSING = "a page needs Bokeh: pip install 'dwsr-probe[report]'"


def write_page(store, path, progress):
    """The page of one run, in a file that is whole or not there. progress(what, done, all) is called now and then. Returns its bytes. ImportError without Bokeh."""
    from dwsr_probe.report.html.page import page_of
    text = page_of(store, progress).encode("utf-8", "replace")
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".report-")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644 & ~_umask())
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return len(text)


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
