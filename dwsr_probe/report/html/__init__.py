"""The report as one HTML file that needs nothing else: no network, no server, Bokeh inline.

`write_page` is called by `report --format html` and by notebooks. In the order of the data:
- `tasks` and `memory` read the store once, in bounded memory;
- `figures` are the plots without data; page.js fills in the range in view;
- `plots` collects what page.js needs, and `packed` compresses it for the browser;
- `tables` and `page` write the markup.
Nothing that the job named is ever markup: names are escaped, or are in the packed data and become
text nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dwsr_probe.report.output import destination

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dwsr_probe.store import Store

    Progress = Callable[[str, int, int], object]  # (what, done, total)

NEEDS_BOKEH = "a page needs Bokeh: pip install 'dwsr-probe[report]'"


def write_page(
    store: Store, path: str | os.PathLike[str], progress: Progress, task: str | None = None
) -> int:
    """Write the page of one run; return its size in bytes. task: only tasks that a user means by
    this name; NoSuchTask if there are none. Raises ImportError without Bokeh."""
    try:
        from dwsr_probe.report.html.page import page_of
    except ImportError as error:
        raise ImportError(f"{NEEDS_BOKEH} ({error})") from error
    text = page_of(store, progress, task).encode("utf-8", "replace")
    with destination(path) as file:
        file.write(text)
    return len(text)
