"""Memory over time as a Bokeh figure for notebooks: the resident size of the largest processes and
their limit. Called by Run.plot (report/notebook.py) and dask/gather.py."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.report.html.memory import memory_lines
from dwsr_probe.words import line_of, process_title

try:
    from bokeh.embed import file_html
    from bokeh.models import HoverTool, Span
    from bokeh.palettes import Category10_10
    from bokeh.plotting import figure
    from bokeh.resources import INLINE
except ImportError as error:
    raise ImportError(f"a plot needs Bokeh: pip install 'dwsr-probe[report]' ({error})") from error

if TYPE_CHECKING:
    from dwsr_probe.store import Store

_PROCESSES_MOST = 10  # with a line: the largest
# A limit of more than so many times the peak is left out: it would flatten all lines.
_LIMIT_TO_PEAK_MOST = 3


def figure_of(store: Store, **options: Any) -> Any:
    """A bokeh.plotting.figure. options: of that function."""
    processes = store.processes()
    plot = figure(
        **{
            "height": 320,
            "sizing_mode": "stretch_width",
            "x_axis_type": "datetime",
            "y_axis_label": "resident size, MiB",
            "tools": "xpan,xwheel_zoom,xbox_zoom,reset,save",
            **options,
        }
    )
    peak = 0.0
    lines = memory_lines(store, processes, lambda *_: None)[:_PROCESSES_MOST]
    for line, colour in zip(lines, Category10_10, strict=False):
        record, _ = processes[line.process]
        at, low, high = (line.time * 1e3, line.low / 2**20, line.high / 2**20)
        name = line_of(process_title(record), 40)
        plot.varea(at, low, high, color=colour, alpha=0.3)
        drawn = plot.line(at, high, color=colour, legend_label=name, name=name, line_width=1.2)
        plot.add_tools(
            HoverTool(
                renderers=[drawn],
                tooltips=[("process", "$name"), ("time", "$x{%T.%3N}"), ("rss", "@y{0,0.0} MiB")],
                formatters={"$x": "datetime"},
                mode="vline",
                visible=False,
            )
        )
        peak = max(peak, float(np.max(high)))
    limits = {limit for _, health in processes if (limit := health.get("limit_bytes"))}
    for limit in limits:
        if peak and limit / 2**20 <= _LIMIT_TO_PEAK_MOST * peak:
            plot.add_layout(
                Span(
                    location=limit / 2**20,
                    dimension="width",
                    line_dash="dashed",
                    line_color="#c62828",
                )
            )
    plot.y_range.start = 0
    if lines:  # beside the plot: inside, it would cover a line
        legend = plot.legend[0]
        plot.add_layout(legend, "right")
        legend.click_policy, legend.label_text_font_size = "hide", "9pt"
    # A page in a frame needs no set-up cell in the notebook and no network.
    height = (plot.height or 320) + 20
    plot._repr_html_ = lambda: (
        f'<iframe style="width:100%;height:{height}px;border:0"'
        f' srcdoc="{escape(file_html(plot, INLINE, "memory"))}"></iframe>'
    )
    return plot
