"""The plots' frames, in Bokeh: axes, glyphs, tools, and sources that are empty. page.js fills
them for the range in view and gives them the theme's colours."""

from bokeh.document import Document
from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    ColumnDataSource,
    CrosshairTool,
    FixedTicker,
    HoverTool,
    Label,
    NoOverlap,
    Range1d,
    ResetTool,
    Span,
    TimedeltaTicker,
    TimedeltaTickFormatter,
    WheelZoomTool,
)
from bokeh.plotting import figure

GROUPS = 6  # task names with a colour of their own; the rest share grey
LINES = 5  # processes with one; page.js and page.css have the same number
_STYLES = {
    "name": "font-weight:600",
    "key": "opacity:.65;font-size:11.5px",
    "facts": "",
    "inputs": "",
    "more": "opacity:.65;font-size:11.5px",
}
_TASK = "".join(
    f'<div class="tip-{name}" style="max-width:400px;overflow-wrap:anywhere;{style}">@{name}</div>'
    for name, style in _STYLES.items()
)
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def unit_of(most_bytes):
    """(bytes, name) of the unit in which the largest value reads well."""
    return next(((size, name) for size, name in _UNITS if most_bytes >= size), (1, "B"))


class Frames:
    """Figures that are shown at once, in one document; each has an element of its own."""

    def __init__(self, name):
        self._name, self._plots = name, {}

    def add(self, plot, element):
        self._plots[element] = plot

    def json(self):
        """What Bokeh.embed.embed_items takes."""
        document, roots = (
            Document(),
            {plot.ref["id"]: element for element, plot in self._plots.items()},
        )
        with document.models.freeze():  # else it walks over all of them for each
            for plot in self._plots.values():
                document.add_root(plot)
        return {
            "documents": {self._name: document.to_json(deferred=False)},
            "items": [{"docid": self._name, "roots": roots, "root_ids": list(roots)}],
        }


def _plot(name, height, label, **options):
    plot = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        output_backend="canvas",
        min_border_left=76,
        min_border_right=14,
        min_border_top=8,
        outline_line_color=None,
        background_fill_color=None,
        border_fill_color=None,
        **options,
    )
    plot.grid.grid_line_width = plot.axis.axis_line_width = 1
    plot.xgrid.grid_line_color = None
    plot.axis.minor_tick_line_color = plot.yaxis.major_tick_line_color = (
        plot.yaxis.axis_line_color
    ) = None
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font_size = plot.axis.major_label_text_font_size = "12px"
    plot.yaxis.axis_label = label
    return plot


def _source(name, *columns):
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _time_axis(seconds):
    clock = "%s" if seconds < 60 else "%m:%S" if seconds < 3600 else "%h:%M:%S"
    mark = " s" if seconds < 60 else ""
    formatter = TimedeltaTickFormatter(
        milliseconds=f"{clock}.%MS{mark}",
        microseconds=f"{clock}.%MS%US{mark}",
        nanoseconds=f"{clock}.%MS%US{mark}",
        seconds=clock + mark,
        minsec=clock,
        minutes=clock,
        hourmin=clock,
        hours=clock,
    )
    return TimedeltaTicker(desired_num_ticks=8), formatter


class Timeline:
    """Memory, allocation and spans over one time axis, in milliseconds from the run's begin."""

    def __init__(
        self, seconds, lanes, labels, lines, top_bytes, stack_bytes, limit_bytes, stack_label
    ):
        end = max(1e-6, seconds) * 1e3
        self._range = Range1d(
            -0.01 * end,
            1.01 * end,
            name="time",
            bounds=(-0.02 * end, 1.02 * end),
            min_interval=1e-3,
        )
        self._ticks = _time_axis(seconds)
        self._cursor = Span(dimension="height", line_width=1, name="cursor", line_dash="dotted")
        self.memory = self._memory(lines, top_bytes, limit_bytes)
        self.stack = self._stack(stack_bytes, stack_label)
        self.spans = self._spans(lanes, labels)

    def _timed(self, name, height, label, y_range, last=False, **options):
        plot = _plot(name, height, label, x_range=self._range, y_range=y_range, **options)
        plot.xaxis.ticker, plot.xaxis.formatter = self._ticks
        # in a narrow window
        plot.xaxis.visible, plot.xaxis.major_label_policy = last, NoOverlap(min_distance=12)
        zoom = BoxZoomTool(dimensions="width")
        # With ctrl: a plain wheel scrolls the page.
        wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
        plot.add_tools(zoom, wheel, ResetTool(), CrosshairTool(overlay=self._cursor))
        plot.toolbar.active_drag, plot.toolbar.active_scroll = zoom, wheel
        return plot

    def _memory(self, lines, top_bytes, limit_bytes):
        size, unit = unit_of(top_bytes)
        plot = self._timed(
            "memory",
            250,
            f"resident, {unit}",
            Range1d(0, 1.06 * top_bytes / size or 1, name="memory-range"),
        )
        for i in reversed(range(lines)):  # the largest on top
            source = _source(f"line{i}", "x", "low", "high", "text")
            plot.varea("x", "low", "high", source=source, fill_alpha=0.25, name=f"band{i}")
            line = plot.line("x", "high", source=source, line_width=1.3, name=f"line{i}")
            plot.add_tools(
                HoverTool(
                    renderers=[line],
                    tooltips=(
                        f'<div style="font-weight:600">@text</div><div>@high{{0,0.0}} {unit}</div>'
                    ),
                    line_policy="nearest",
                )
            )
        marks = plot.segment(
            "x0",
            "y",
            "x1",
            "y",
            source=_source(
                "peaks", "x0", "x1", "y", "color", "name", "key", "facts", "inputs", "more"
            ),
            line_color="color",
            line_width=2.5,
            line_cap="butt",
        )
        plot.add_tools(HoverTool(renderers=[marks], tooltips=_TASK))
        if limit_bytes:
            plot.add_layout(
                Span(
                    location=limit_bytes / size,
                    dimension="width",
                    line_dash="dashed",
                    line_width=1.2,
                    name="limit",
                )
            )
            plot.add_layout(
                Label(
                    x=4,
                    y=limit_bytes / size,
                    x_units="screen",
                    text=f"limit {limit_bytes / size:.1f} {unit}",
                    text_font_size="11.5px",
                    text_baseline="top",
                    y_offset=-2,
                    name="limit-text",
                )
            )
        return plot

    def _stack(self, stack_bytes, label):
        size, unit = unit_of(stack_bytes)
        plot = self._timed(
            "stack",
            170,
            f"{label}, {unit}",
            Range1d(0, 1.06 * stack_bytes / size or 1, name="stack-range"),
        )
        groups = [f"g{i}" for i in range(GROUPS + 1)]
        areas = plot.varea_stack(groups, x="x", source=_source("stack", "x", *groups))
        for i, area in enumerate(areas):
            area.name = f"group{i}"
        return plot

    def _spans(self, lanes, labels):
        plot = self._timed(
            "spans", min(640, 64 + 15 * max(2, lanes)), None, Range1d(lanes - 0.5, -0.5), last=True
        )
        bars = plot.quad(
            "x0",
            "x1",
            "top",
            "bottom",
            source=_source(
                "spans",
                "x0",
                "x1",
                "top",
                "bottom",
                "color",
                "edge",
                "name",
                "key",
                "facts",
                "inputs",
                "more",
            ),
            fill_color="color",
            line_color="edge",
            line_width=1.5,
        )
        plot.add_tools(HoverTool(renderers=[bars], tooltips=_TASK))
        plot.ygrid.grid_line_color = None
        shown = labels if lanes <= 40 else {}
        plot.yaxis.ticker, plot.yaxis.major_label_overrides = FixedTicker(ticks=list(shown)), shown
        if not shown:
            plot.yaxis.axis_label = f"{lanes} threads"
        return plot


def scatter(number, unit, input_unit):
    """Peak against input bytes of one task name, with the model's line and band."""
    plot = _plot(
        f"scatter{number}",
        230,
        f"peak, {unit}",
        x_range=Range1d(0, 1, name=f"scatter-x{number}"),
        y_range=Range1d(0, 1, name=f"scatter-y{number}"),
    )
    plot.min_border_left = 60
    plot.xaxis.axis_label = f"inputs, {input_unit}"
    plot.xaxis.ticker = BasicTicker(desired_num_ticks=5)
    plot.yaxis.ticker = BasicTicker(desired_num_ticks=4)
    curve = _source(f"curve{number}", "x", "low", "mean", "high")
    plot.varea("x", "low", "high", source=curve, fill_alpha=0.18, name=f"curve-band{number}")
    plot.line("x", "mean", source=curve, line_width=1.5, name=f"curve-line{number}")
    dots = plot.scatter(
        "x",
        "y",
        source=_source(
            f"dots{number}", "x", "y", "color", "name", "key", "facts", "inputs", "more"
        ),
        size=7,
        fill_color="color",
        line_color=None,
        fill_alpha=0.75,
    )
    plot.add_tools(HoverTool(renderers=[dots], tooltips=_TASK))
    return plot
