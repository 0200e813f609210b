"""Everything that dashboards and rules ask Prometheus, as the files say it: for the tests of
this folder."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from dwsr_probe.export.metrics import HISTOGRAM
from dwsr_probe.export.metrics import METRICS as MEASURED
from dwsr_probe.serve.metrics import METRICS as PREDICTED

METRICS = tuple(dict.fromkeys((*MEASURED, *PREDICTED)))
DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"
NAMES = ("overview", "task", "worker", "gpu", "probe")
BOARDS = {
    name: json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES
}
RULES = [
    rule
    for group in yaml.safe_load((DASHBOARDS / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]

# not recorded ones: these have colons
SELECTOR = re.compile(r"(?<![\w:$])(dwsr_\w+|up|scrape_\w+)(?![\w:(])(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@dataclass(frozen=True)
class Query:
    where: str
    expr: str
    legend: str = ""

    def selectors(self):
        """(metric, {label: value}, where it stands) of each."""
        return [
            (m[1], {label: value for label, _, value in MATCHER.findall(m[2] or "")}, m.start())
            for m in SELECTOR.finditer(self.expr)
        ]


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def of_board(name):
    board = BOARDS[name]
    return [
        Query(
            f"{name}/{panel['title']}/{target['refId']}",
            target["expr"],
            target.get("legendFormat", ""),
        )
        for panel in panels(board)
        for target in panel["targets"]
    ] + [
        Query(f"{name}/{found['name']}/annotation", found["expr"])
        for found in board["annotations"]["list"]
    ]


def variables(name):
    """(name, selector, label) of those that are asked for."""
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(
                r"label_values\((.*), (\w+)\)", variable["query"]
            ).groups()
            yield variable["name"], selector, label


PANEL_QUERIES = [query for name in NAMES for query in of_board(name)]
VARIABLE_QUERIES = [
    Query(f"{name}/${variable}", selector)
    for name in NAMES
    for variable, selector, _ in variables(name)
]
RULE_QUERIES = [Query(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]


def metric_of(name):
    """What a selector asks for, in the tables of metrics: histograms have three series."""
    return next(
        (
            m
            for m in METRICS
            if name == m.name
            or (
                m.type == HISTOGRAM
                and name in (m.name + "_bucket", m.name + "_sum", m.name + "_count")
            )
        ),
        None,
    )
