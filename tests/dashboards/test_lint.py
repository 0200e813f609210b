"""The rules of Grafana's dashboard-linter, and of the tables of metrics: names, labels, and
every metric in use somewhere."""

import re

import pytest

from dwsr_probe.export.metrics import COUNTER, HISTOGRAM
from tests.dashboards.queries import (
    BOARDS,
    METRICS,
    NAMES,
    PANEL_QUERIES,
    RULE_QUERIES,
    VARIABLE_QUERIES,
    metric_of,
    of_board,
    panels,
    variables,
)

EVERYWHERE = {"job": "$job", "instance": "$instance"}
OWN_VARIABLES = {"task": ("task_name", "operation"), "worker": ("pid",)}
PROMETHEUS_OWN = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
NOT_SHOWN = {}  # metric → why no panel and no rule uses it
BORN = re.compile(
    r"\((\w+\{[^}]*\}) unless \1 offset"
    r" (\$__range|\$__rate_interval|10m)\)\s*or\s*(?=increase\(\1\[\2\]\))"
)


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard(name):
    board = BOARDS[name]
    assert (
        board["editable"] is False
        and board["uid"].startswith("dwsr-")
        and board["description"]
        and board["tags"] == ["dwsr-probe"]
    )
    source, *others = board["templating"]["list"]
    assert (source["name"], source["type"], source["query"], source["label"]) == (
        "datasource",
        "datasource",
        "prometheus",
        "Data source",
    )
    assert [variable["name"] for variable in others][:2] == ["job", "instance"] and [
        variable["label"] for variable in others
    ][:2] == ["Job", "Instance"]
    for variable in others:
        assert variable["refresh"] == 2 and variable["datasource"] == {
            "type": "prometheus",
            "uid": "${datasource}",
        }
    for variable in others:
        if variable["name"] in ("job", "instance", "operation"):
            assert variable["multi"] and variable["includeAll"] and variable["allValue"] == ".+"
    (link,) = board["links"]
    assert link["tags"] == board["tags"] and link["includeVars"] and link["keepTime"]


@pytest.mark.parametrize("name", NAMES)
def test_variables_of_a_dashboard(name):
    """The operations are those of the chosen task name."""
    found = {variable: selector for variable, selector, _ in variables(name)}
    assert tuple(found)[2:] == OWN_VARIABLES.get(name, ())
    if "operation" in found:
        assert 'task_name=~"$task_name"' in found["operation"]


def test_each_has_its_own_uid():
    assert (
        len({board["uid"] for board in BOARDS.values()})
        == len({board["title"] for board in BOARDS.values()})
        == len(NAMES)
    )


@pytest.mark.parametrize("name", NAMES)
def test_panels(name):
    board = BOARDS[name]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels(board):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"] and panel["description"].endswith(".") and defaults["unit"], panel[
            "title"
        ]
        assert panel["targets"] and len({target["refId"] for target in panel["targets"]}) == len(
            panel["targets"]
        )
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("name", NAMES)
def test_tables(name):
    """Grafana formats labels that look like numbers: with a unit for the whole table pid 11
    would be 1100 %. Only columns of figures have one."""
    for panel in (panel for panel in panels(BOARDS[name]) if panel["type"] == "table"):
        assert (
            panel["fieldConfig"]["defaults"]["unit"] == "string"
            and "mappings" not in panel["fieldConfig"]["defaults"]
        )
        (organize,) = [t["options"] for t in panel["transformations"] if t["id"] == "organize"]
        units = {
            o["matcher"]["options"]: p["value"]
            for o in panel["fieldConfig"]["overrides"]
            for p in o["properties"]
            if p["id"] == "unit"
        }
        assert (
            units.keys() == set(organize["renameByName"].values())
            and "string" not in units.values()
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_grid_has_no_overlap_and_no_holes(name):
    taken = {}
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        for cell in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell[0] < 24 and cell not in taken, f"{panel['title']} lies on {taken.get(cell)}"
            taken[cell] = panel["title"]
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_dashboards_of_ours_and_their_variables(name):
    known = {
        board["uid"]: {variable["name"] for variable in board["templating"]["list"]}
        for board in BOARDS.values()
    }
    for panel in panels(BOARDS[name]):
        urls = [
            link["url"]
            for override in panel["fieldConfig"]["overrides"]
            for p in override["properties"]
            if p["id"] == "links"
            for link in p["value"]
        ]
        for url in urls:
            uid, _, rest = url.removeprefix("/d/").partition("?")
            assert set(re.findall(r"var-(\w+)=", rest)) <= known[uid]
            columns = re.search(r"by \(([^)]*)\)", panel["targets"][0]["expr"])[1].split(", ")
            assert set(re.findall(r"__data\.fields\.(\w+)", rest)) <= set(columns)


@pytest.mark.parametrize(
    "query", [q for name in NAMES for q in of_board(name)], ids=lambda q: q.where
)
def test_selectors_of_panels(query):
    for metric, matchers, _ in query.selectors():
        assert matchers.items() >= EVERYWHERE.items(), metric
    if query.where.endswith("/annotation"):
        return
    for own in OWN_VARIABLES.get(query.where.split("/")[0], ()):
        for metric, matchers, _ in query.selectors():
            assert own not in metric_of(metric).labels or matchers[own] == f"${own}"


@pytest.mark.parametrize(
    "query", PANEL_QUERIES + VARIABLE_QUERIES + RULE_QUERIES, ids=lambda q: q.where
)
def test_metrics_and_labels_are_in_the_table(query):
    assert query.selectors() or ":dwsr_" in query.expr
    for name, matchers, _ in query.selectors():
        metric = metric_of(name)
        assert metric or name in PROMETHEUS_OWN, name
        assert matchers.keys() <= {
            "job",
            "instance",
            "le",
            *(metric.labels if metric else ()),
        }, name


@pytest.mark.parametrize("query", PANEL_QUERIES + RULE_QUERIES, ids=lambda q: q.where)
def test_counters_are_asked_for_their_growth(query):
    """Inside rate or increase only; the exception is a series that was born within the span of
    the increase beside it (panels.increase_within)."""
    expr = BORN.sub("", query.expr)
    for name, _, start in type(query)(query.where, expr).selectors():
        metric = metric_of(name)
        if metric and metric.type in (COUNTER, HISTOGRAM):
            assert re.search(r"\b(rate|increase)\($", expr[:start]), name
            spans = ("$__rate_interval", "$__range") if query in PANEL_QUERIES else ("10m",)
            assert re.match(r"\w+(?:\{[^}]*\})?\[([^\]]+)\]", expr[start:])[1] in spans
    assert (
        "rate(" not in expr
        or query not in PANEL_QUERIES
        or not re.search(r"\brate\([^[]*\[(?!\$__rate_interval\])", expr)
    )


def test_every_metric_is_used():
    used = {
        metric.name
        for query in PANEL_QUERIES + RULE_QUERIES
        for name, _, _ in query.selectors()
        if (metric := metric_of(name))
    }
    assert {metric.name for metric in METRICS} - used == NOT_SHOWN.keys()
