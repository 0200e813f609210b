"""The report as one HTML file that needs nothing else: no network, no server, Bokeh inline.
Called by `report --format html`.

tasks and memory read the store once, in bounded memory; packed carries what they found to the
browser; figures are the plots' frames, which page.js fills for the range in view; tables and
page write the rest. Nothing that the job named is ever markup: names are escaped, or travel
inside the packed data and become text.
"""

from dwsr_probe.report.output import destination

MISSING = "a page needs Bokeh: pip install 'dwsr-probe[report]'"


def write_page(store, path, progress):
    """The page of one run. progress(what, done, all) is called now and then. Returns its bytes.
    ImportError without Bokeh."""
    try:
        from dwsr_probe.report.html.page import page_of
    except ImportError as error:
        raise ImportError(f"{MISSING} ({error})") from error
    text = page_of(store, progress).encode("utf-8", "replace")
    with destination(path) as file:
        file.write(text)
    return len(text)
