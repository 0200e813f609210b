"""The kinds of panels that our dashboards have, made with grafana-foundation-sdk. Used by boards/
and queries.py.

Expressions are written without job, instance and the dashboard's own variables. `dashboard` adds
these matchers to every selector, by the labels that metrics.py (of export/ and of serve/) gives to
the metric. A metric that is in neither is a KeyError.
"""

import re

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableHide,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dwsr_probe.export.metrics import HISTOGRAM, METRICS
from dwsr_probe.serve.metrics import METRICS as PREDICTOR_METRICS

TAG = "dwsr-probe"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, ORANGE, RED, GREY = "green", "yellow", "orange", "red", "#808080"
USED_STEPS = ((None, GREEN), (0.75, YELLOW), (0.9, RED))  # share of a limit that is in use
HEADROOM_STEPS = ((None, RED), (0.1, YELLOW), (0.25, GREEN))  # share of a limit that is left
NONE_STEPS = ((None, GREEN), (1, RED))  # counts of events that should not happen
# Probability of an overrun; the last threshold is that of the alert
OVERRUN_STEPS = ((None, GREEN), (0.1, YELLOW), (0.5, RED))
PLAIN = ((None, "text"),)
OUTCOMES = {"ok": GREEN, "error": ORANGE, "cancelled": GREY, "killed": RED}

# Metric → its labels: Prometheus' own metrics, and ours
_LABELS = {"up": (), "scrape_duration_seconds": (), "scrape_samples_scraped": ()} | {
    m.name + suffix: m.labels
    for m in (*METRICS, *PREDICTOR_METRICS)
    for suffix in (("_bucket", "_sum", "_count") if m.type == HISTOGRAM else ("",))
}
_SELECTOR = re.compile(r"\b(dwsr_\w+|up|scrape_\w+)(?:\{([^}]*)\})?")


# -- expressions


def scoped(expr, variables):
    """The expression with matchers in every selector: job, instance, and those variables that are
    labels of the metric."""

    def matchers(found):
        name, own = found.groups()
        labels = ("job", "instance", *(v for v in variables if v in _LABELS[name]))
        return (
            name
            + "{"
            + ", ".join([f'{label}=~"${label}"' for label in labels] + ([own] if own else []))
            + "}"
        )

    return _SELECTOR.sub(matchers, expr)


def rate(counter):
    return f"rate({counter}[$__rate_interval])"


def increase_within(counter, span="$__range"):
    """By how much a counter grew within the span. A series that appeared within the span counts in
    full: the first killed task of a name is a series that begins with 1, and increase() is 0."""
    return f"(({counter} unless {counter} offset {span}) or increase({counter}[{span}]))"


def with_process_labels(expr, labels="program, worker"):
    """A figure of a process, with the labels of its name and worker."""
    return f"{expr} * on (job, instance, pid) group_left ({labels}) dwsr_process_info"


def with_device_labels(expr):
    """A figure of a process on a device, with the device's name and UUID: the number of a device
    depends on the process."""
    return f"{expr} * on (job, instance, pid, device) group_left (uuid, name) dwsr_device_info"


# -- panels


def _query(ref, expr, legend=None, format_=None):
    query = prometheus.Dataquery().ref_id(ref).datasource(SOURCE).expr(expr)
    if format_:
        query.format(format_)
    if legend is not None:
        query.legend_format(legend)
    return query


def _common(panel, title, description, unit, steps, span, height):
    return (
        panel.title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(span)
        .height(height)
        .thresholds(
            build.ThresholdsConfig()
            .mode(ThresholdsMode.ABSOLUTE)
            .steps([Threshold(value, color) for value, color in steps])
        )
    )


def _fixed(color):
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})


def stat_panel(title, description, unit, expr, steps=PLAIN, span=4):
    """One figure, its current value. A count of events (NONE_STEPS) that has no series yet is shown
    as 0, not as an empty panel."""
    panel = _common(stat.Panel(), title, description, unit, steps, span, 4)
    panel.with_target(_query("A", expr, "").instant()).graph_mode(BigValueGraphMode.NONE)
    panel.color_mode(BigValueColorMode.VALUE).reduce_options(
        common.ReduceDataOptions().calcs(["lastNotNull"])
    )
    return panel.no_value("0") if steps is NONE_STEPS else panel


def time_series_panel(
    title,
    description,
    unit,
    *queries,
    span=12,
    stacked=False,
    steps=None,
    top=None,
    colors=(),
    signed=False,
):
    """queries: (legend, expression). steps: thresholds, drawn as lines across the panel. signed:
    values may be negative. Series whose legend begins with "limit" or "total" are dashed."""
    panel = _common(timeseries.Panel(), title, description, unit, steps or PLAIN, span, 8)
    if not signed:
        panel.min(0)
    for ref, (legend, expr) in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(_query(ref, expr, legend).range())
    panel.color_scheme(build.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    panel.show_points(VisibilityMode.AUTO).fill_opacity(30 if stacked else 8).line_width(1)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    panel.tooltip(
        common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if steps:
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        )
    if top is not None:
        panel.max(top)
    for name, color in dict(colors).items():
        panel.override_by_name(name, [_fixed(color)])
    if any(legend.startswith(("limit", "total")) for legend, _ in queries):
        panel.override_by_regexp(
            "/^(limit|total)/",
            [
                _fixed(RED),
                DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}),
                DynamicConfigValue("custom.lineWidth", 2),
                DynamicConfigValue("custom.fillOpacity", 0),
                DynamicConfigValue("custom.stacking", {"mode": "none", "group": "limit"}),
            ],
        )
    return panel


def heatmap_panel(title, description, histogram, span=12):
    """The distribution of a histogram's values in bytes, over time. histogram: the metric with
    the suffix _bucket."""
    panel = _common(heatmap.Panel(), title, description, "bytes", PLAIN, span, 8)
    panel.with_target(
        _query(
            "A",
            f"sum by (le) (increase({histogram}[$__rate_interval]))",
            "{{le}}",
            PromQueryFormat.HEATMAP,
        ).range()
    )
    panel.calculate(False).cell_gap(1).show_y_histogram().y_axis(
        heatmap.YAxisConfig().unit("bytes")
    )
    panel.cell_values(heatmap.CellValues().unit("short")).hide_from(
        common.HideSeriesConfig().legend(False).tooltip(False).viz(False)
    )
    return panel.color(
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .steps(64)
        .reverse(False)
        .exponent(0.5)
        .fill("dark-orange")
    )


def table_panel(title, description, labels, *columns, links=(), span=24, height=8, mapping=None):
    """Current values, one row per combination of `labels`. columns: (heading, unit, expression,
    steps or None); a column with the heading None is hidden, and only its labels are shown. Rows
    are sorted by the first column. links: (label, title, url). mapping: value → text shown."""
    # "string" is the unit of the label columns: with a number's unit, pid 11 would be 11 B.
    panel = (
        _common(table.Panel(), title, description, "string", PLAIN, span, height)
        .show_header(True)
        .inspect(False)
    )
    shown = {}
    for ref, (heading, _, expr, _) in zip("ABCDEFGHIJ", columns, strict=False):
        panel.with_target(
            _query(
                ref, f"max by ({', '.join(labels)}) ({expr})", "", PromQueryFormat.TABLE
            ).instant()
        )
        shown["Value" if len(columns) == 1 else f"Value #{ref}"] = heading
    order = {name: place for place, name in enumerate((*labels, *shown))}
    hidden = {"Time": True} | {name: True for name, heading in shown.items() if heading is None}
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel.with_transformation(
        DataTransformerConfig(
            "organize",
            options={
                "excludeByName": hidden,
                "indexByName": order,
                "renameByName": {name: heading for name, heading in shown.items() if heading},
            },
        )
    )
    for heading, unit, _, steps in columns:
        if heading is None:
            continue
        properties = [DynamicConfigValue("unit", unit)]
        if steps:
            properties += [
                DynamicConfigValue(
                    "thresholds",
                    {
                        "mode": "absolute",
                        "steps": [{"value": value, "color": color} for value, color in steps],
                    },
                ),
                DynamicConfigValue("color", {"mode": "thresholds"}),
                DynamicConfigValue(
                    "custom.cellOptions",
                    (
                        {"type": "gauge", "mode": "basic"}
                        if unit == "percentunit"
                        else {"type": "color-text"}
                    ),
                ),
            ]
        if unit == "percentunit":
            properties += [DynamicConfigValue("min", 0), DynamicConfigValue("max", 1)]
        if mapping:
            properties.append(
                DynamicConfigValue(
                    "mappings",
                    [
                        {
                            "type": "value",
                            "options": {value: {"text": text} for value, text in mapping.items()},
                        }
                    ],
                )
            )
        panel.override_by_name(heading, properties)
    for label, text, url in links:
        panel.override_by_name(label, [DynamicConfigValue("links", [{"title": text, "url": url}])])
    if columns[0][0]:
        panel.sort_by([common.TableSortByFieldState().display_name(columns[0][0]).desc(True)])
    return panel


def dashboard_link(uid, **values):
    """The URL of another dashboard with the same source, job and time. values: its variables, by
    the labels of the row."""
    chosen = "".join(
        f"&var-{name}=${{__data.fields.{label}:percentencode}}" for name, label in values.items()
    )
    return f"/d/{uid}?${{datasource:queryparam}}&${{job:queryparam}}{chosen}&${{__url_time_range}}"


# -- dashboards


def _variable(name, label, query, many):
    variable = (
        build.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(many)
        .include_all(many)
    )
    return variable.all_value(".+") if many else variable


def dashboard(uid, title, description, rows, variables=()):
    """rows: (title, panels). variables: (label, its title, a metric that has all values of the
    label, many). many: the reader may choose several values, or all. False: one at a time. The
    values of a variable are those that exist with the values chosen for the variables before."""
    made = (
        build.Dashboard(f"dwsr-probe / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            build.DashboardLink("dwsr-probe")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
            .icon("external link")
        )
        .with_variable(
            build.DatasourceVariable("datasource")
            .label("Data source")
            .type("prometheus")
            .hide(VariableHide.DONT_HIDE)
        )
        .with_variable(_variable("job", "Job", "label_values(dwsr_build_info, job)", True))
        .with_variable(
            _variable(
                "instance", "Instance", 'label_values(dwsr_build_info{job=~"$job"}, instance)', True
            )
        )
    )
    own = ()
    for name, label, metric, many in variables:
        made.with_variable(
            _variable(name, label, f"label_values({scoped(metric, own)}, {name})", many)
        )
        own = (*own, name)
    made.annotation(
        build.AnnotationQuery()
        .name("Killed tasks")
        .datasource(SOURCE)
        .enable(True)
        .icon_color(RED)
        .expr(
            scoped(
                "sum by (task_name, operation) ("
                + increase_within('dwsr_tasks_total{outcome="killed"}', "$__rate_interval")
                + ") > 0",
                (),
            )
        )
    )
    for row, panels in rows:
        made.with_row(build.Row(row))
        for panel in panels:
            made.with_panel(panel)
    result = made.build()
    for number_, panel in enumerate(result.panels, 1):
        panel.id_val = number_
        for target in getattr(panel, "targets", None) or ():
            target.expr = scoped(target.expr, own)
    return result
