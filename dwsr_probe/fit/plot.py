"""A plan as a Bokeh figure: the peak of a worker against the size of its blocks. Called by
`Plan.plot` and by the page of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dwsr_probe.words import bytes_text, shape_text

if TYPE_CHECKING:
    from dwsr_probe.fit.plan import Plan

_MIB = 1 << 20


def figure_of(plan: Plan) -> Any:
    """The expected peak with its bound, the limit and the part of it that may be used, the blocks
    that were tried and the one that is chosen."""
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure

    points = [p for p in plan.curve if p.expected_bytes <= 1.5 * plan.memory_bytes]
    top = 1.2 * max(plan.memory_bytes, plan.bound_bytes) / _MIB
    shown = figure(
        title=f"{plan.task}: peak of a worker with {plan.tasks_at_once} tasks at once",
        x_axis_label="size of a block in MiB",
        y_axis_label="MiB",
        x_axis_type="log",
        y_range=(0, top),
        height=320,
        sizing_mode="stretch_width",
        tools="pan,wheel_zoom,box_zoom,reset,save",
    )
    sizes = [p.input_bytes / _MIB for p in points]
    expected = [p.expected_bytes / _MIB for p in points]
    bounds = [min(p.bound_bytes / _MIB, 10 * top) for p in points]
    shown.varea(sizes, expected, bounds, alpha=0.25, legend_label="up to the bound")
    shown.line(sizes, expected, line_width=2, legend_label="expected")
    for value, dash, text in (
        (plan.memory_bytes, "solid", "limit"),
        (plan.allowed_bytes, "dashed", "may be used"),
    ):
        ends = [sizes[0], sizes[-1]] if sizes else []
        heights = [value / _MIB] * len(ends)
        shown.line(ends, heights, line_color="firebrick", line_dash=dash, legend_label=text)
    blocks = [(t.shape, t.input_bytes, plan.worker_bytes(t), "tried") for t in plan.trials]
    blocks.append((plan.block, plan.block_bytes, plan.expected_bytes, "chosen"))
    source = ColumnDataSource(
        {
            "x": [size / _MIB for _, size, _, _ in blocks],
            "y": [peak / _MIB for *_, peak, _ in blocks],
            "what": [what for *_, what in blocks],
            "block": [shape_text(shape) for shape, *_ in blocks],
            "peak": [bytes_text(peak) for *_, peak, _ in blocks],
            "size": [8] * len(plan.trials) + [14],
            "color": ["gray"] * len(plan.trials) + ["black"],
        }
    )
    marks = shown.scatter("x", "y", size="size", color="color", source=source)
    shown.add_tools(
        HoverTool(renderers=[marks], tooltips=[("@what", "@block"), ("peak of a worker", "@peak")])
    )
    shown.legend.location = "top_left"
    return shown
