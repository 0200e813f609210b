"""The plots of the page as Bokeh figures: axes, glyphs, tools, and sources without data. page.js
fills in the data for the range in view and the theme's colours."""

from __future__ import annotations

from typing import Any, NamedTuple

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

NAME_COLOURS = 6  # task names with a colour of their own; all others are group 6, in grey
PROCESS_COLOURS = 5  # processes with a colour of their own; the same in page.js and page.css
_TOOLTIP_STYLES = {
    "name": "font-weight:600",
    "key": "opacity:.65;font-size:11.5px",
    "facts": "",
    "inputs": "",
    "more": "opacity:.65;font-size:11.5px",
}
_TASK_TOOLTIP = "".join(
    f'<div class="tip-{name}" style="max-width:400px;overflow-wrap:anywhere;{style}">@{name}</div>'
    for name, style in _TOOLTIP_STYLES.items()
)


class Unit(NamedTuple):
    size_bytes: int
    name: str


_UNITS = (Unit(1 << 40, "TiB"), Unit(1 << 30, "GiB"), Unit(1 << 20, "MiB"), Unit(1 << 10, "KiB"))


def unit_of(largest_bytes: float) -> Unit:
    """The unit for an axis with this largest value."""
    return next((unit for unit in _UNITS if largest_bytes >= unit.size_bytes), Unit(1, "B"))


class FigureSet:
    """Figures that appear at once, in one Bokeh document; each is shown in its own element."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._plots: dict[str, Any] = {}

    def add(self, plot: Any, element: str) -> None:
        self._plots[element] = plot

    def json(self) -> dict[str, Any]:
        """The arguments of Bokeh.embed.embed_items."""
        document = Document()
        roots = {plot.ref["id"]: element for element, plot in self._plots.items()}
        with document.models.freeze():  # else Bokeh walks over all models at each add_root
            for plot in self._plots.values():
                document.add_root(plot)
        return {
            "documents": {self._name: document.to_json(deferred=False)},
            "items": [{"docid": self._name, "roots": roots, "root_ids": list(roots)}],
        }


def _plot(name: str, height: int, label: str | None, **options: Any) -> Any:
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


def _empty_source(name: str, *columns: str) -> Any:
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _time_axis(seconds: float) -> tuple[Any, Any]:
    """Ticker and formatter."""
    clock = "%s" if seconds < 60 else "%m:%S" if seconds < 3600 else "%h:%M:%S"
    unit = " s" if seconds < 60 else ""
    formatter = TimedeltaTickFormatter(
        milliseconds=f"{clock}.%MS{unit}",
        microseconds=f"{clock}.%MS%US{unit}",
        nanoseconds=f"{clock}.%MS%US{unit}",
        seconds=clock + unit,
        minsec=clock,
        minutes=clock,
        hourmin=clock,
        hours=clock,
    )
    return TimedeltaTicker(desired_num_ticks=8), formatter


class TimelineFigures:
    """Memory, stacked peaks and spans of tasks over one time axis, in milliseconds from the run's
    begin.

    lanes: rows of spans, with labels by number. lines: number of processes in the memory plot.
    memory_bytes, stack_bytes: the upper ends of the axes. stack_label: of the stack's axis.
    """

    def __init__(
        self,
        *,
        seconds: float,
        lanes: int,
        labels: dict[int, str],
        lines: int,
        memory_bytes: float,
        stack_bytes: float,
        limit_bytes: int | None,
        stack_label: str,
    ) -> None:
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
        self.memory = self._memory_plot(lines, memory_bytes, limit_bytes)
        self.stack = self._stack_plot(stack_bytes, stack_label)
        self.spans = self._spans_plot(lanes, labels)

    def _plot_over_time(
        self, name: str, height: int, label: str | None, y_range: Any, shows_time_axis: bool = False
    ) -> Any:
        plot = _plot(name, height, label, x_range=self._range, y_range=y_range)
        plot.xaxis.ticker, plot.xaxis.formatter = self._ticks
        plot.xaxis.visible = shows_time_axis
        plot.xaxis.major_label_policy = NoOverlap(min_distance=12)  # matters in a narrow window
        zoom = BoxZoomTool(dimensions="width")
        # With ctrl only, because a plain wheel scrolls the page
        wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
        plot.add_tools(zoom, wheel, ResetTool(), CrosshairTool(overlay=self._cursor))
        plot.toolbar.active_drag, plot.toolbar.active_scroll = zoom, wheel
        return plot

    def _memory_plot(self, lines: int, memory_bytes: float, limit_bytes: int | None) -> Any:
        size, unit = unit_of(memory_bytes)
        plot = self._plot_over_time(
            "memory",
            250,
            f"resident, {unit}",
            Range1d(0, 1.06 * memory_bytes / size or 1, name="memory-range"),
        )
        for i in reversed(range(lines)):  # the largest on top
            source = _empty_source(f"line{i}", "x", "low", "high", "text")
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
            source=_empty_source(
                "peaks", "x0", "x1", "y", "color", "name", "key", "facts", "inputs", "more"
            ),
            line_color="color",
            line_width=2.5,
            line_cap="butt",
        )
        plot.add_tools(HoverTool(renderers=[marks], tooltips=_TASK_TOOLTIP))
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

    def _stack_plot(self, stack_bytes: float, label: str) -> Any:
        size, unit = unit_of(stack_bytes)
        plot = self._plot_over_time(
            "stack",
            170,
            f"{label}, {unit}",
            Range1d(0, 1.06 * stack_bytes / size or 1, name="stack-range"),
        )
        groups = [f"g{i}" for i in range(NAME_COLOURS + 1)]
        areas = plot.varea_stack(groups, x="x", source=_empty_source("stack", "x", *groups))
        for i, area in enumerate(areas):
            area.name = f"group{i}"
        return plot

    def _spans_plot(self, lanes: int, labels: dict[int, str]) -> Any:
        plot = self._plot_over_time(
            "spans",
            min(640, 64 + 15 * max(2, lanes)),
            None,
            Range1d(lanes - 0.5, -0.5),
            shows_time_axis=True,
        )
        bars = plot.quad(
            "x0",
            "x1",
            "top",
            "bottom",
            source=_empty_source(
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
        plot.add_tools(HoverTool(renderers=[bars], tooltips=_TASK_TOOLTIP))
        plot.ygrid.grid_line_color = None
        shown = labels if lanes <= 40 else {}
        plot.yaxis.ticker, plot.yaxis.major_label_overrides = FixedTicker(ticks=list(shown)), shown
        if not shown:
            plot.yaxis.axis_label = f"{lanes} threads"
        return plot


def scatter(number: int, unit: str, input_unit: str) -> Any:
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
    curve = _empty_source(f"curve{number}", "x", "low", "mean", "high")
    plot.varea("x", "low", "high", source=curve, fill_alpha=0.18, name=f"curve-band{number}")
    plot.line("x", "mean", source=curve, line_width=1.5, name=f"curve-line{number}")
    dots = plot.scatter(
        "x",
        "y",
        source=_empty_source(
            f"dots{number}", "x", "y", "color", "name", "key", "facts", "inputs", "more"
        ),
        size=7,
        fill_color="color",
        line_color=None,
        fill_alpha=0.75,
    )
    plot.add_tools(HoverTool(renderers=[dots], tooltips=_TASK_TOOLTIP))
    return plot
