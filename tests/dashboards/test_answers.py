"""Every query of every panel, variable, rule and alert answers on a real Prometheus that scrapes
real runs."""

import re

import pytest

from tests.conftest import wait_until
from tests.dashboards.queries import ALERTS, NAMES, RULE_QUERIES, Query, of_board, variables

LEGEND = re.compile(r"{{\s*(\w+)\s*}}")
COMPARISON = re.compile(r"\s*(?:==|!=|<=|>=|<|>)\s*[\d.]+")


@pytest.fixture(scope="module")
def chosen(prometheus):
    """What a person has chosen: all jobs and instances, tasks of both runs, the killed, the growing
    and those of two operations, the worker that holds memory."""
    ((worker, _),) = prometheus.query(
        'dwsr_slot_busy{task_name="hold"} and on (pid) dwsr_process_managed_bytes'
    )
    return {
        "$__rate_interval": "30s",
        "$__range": "10m",
        "$job": ".+",
        "$instance": ".+",
        "$task_name": "smooth|semblance|doomed|climb|pipeline",
        "$operation": "smooth|semblance|doomed|climb|halve|double",
        "$pid": worker["pid"],
    }


def answers(prometheus, expr, chosen):
    for name, value in chosen.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return wait_until(lambda: prometheus.query(expr), f"an answer to {expr}")


@pytest.mark.parametrize(
    "query", [q for name in NAMES for q in of_board(name)], ids=lambda q: q.where
)
def test_a_panel_has_an_answer_and_its_legend(query: Query, prometheus, chosen):
    # an event, not a state
    expr = (
        f"last_over_time(({query.expr})[5m:1s])"
        if query.where.endswith("/annotation")
        else query.expr
    )
    found = answers(prometheus, expr, chosen)
    labels = set().union(*(labels for labels, _ in found))
    assert set(LEGEND.findall(query.legend)) <= labels
    names = {
        LEGEND.sub(lambda m, labels=labels: labels.get(m[1], ""), query.legend)
        for labels, _ in found
    }
    assert len(names) == len(found) or not query.legend, (
        f"two lines have the same name: {sorted(names)}"
    )


def test_two_operations_of_one_name(prometheus, chosen):
    """Each has its own line, and they add up to the name."""
    ended = 'max_over_time(dwsr_tasks_total{task_name="pipeline"}[10m])'
    by_operation = answers(prometheus, f"sum by (operation) ({ended})", {})
    assert {labels["operation"] for labels, _ in by_operation} == {"halve", "double"}
    assert answers(prometheus, f"sum by (task_name) ({ended})", {}) == [
        ({"task_name": "pipeline"}, sum(value for _, value in by_operation))
    ]
    (query,) = [q for q in of_board("overview") if q.where == "overview/Tasks/A"]
    rows = [labels for labels, _ in answers(prometheus, query.expr, chosen)]
    assert {"task_name": "pipeline", "operation": "double"} in rows
    assert {"task_name": "pipeline", "operation": "halve"} in rows


def test_the_first_killed_task_counts(prometheus, chosen):
    """Its series begins with 1: increase() alone would say 0."""
    (query,) = [q for q in of_board("overview") if q.where == "overview/Killed tasks/A"]
    assert answers(prometheus, query.expr, chosen) == [({}, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_has_values(name, prometheus, chosen):
    for variable, selector, label in variables(name):
        for word, value in chosen.items():
            selector = selector.replace(word, value)
        found = prometheus.ask(f"label/{label}/values", **{"match[]": selector})
        assert found, f"${variable}"
        if label in ("task_name", "operation", "pid"):
            assert set(chosen[f"${variable}"].split("|")) <= set(found)


@pytest.mark.parametrize("query", RULE_QUERIES, ids=lambda q: q.where)
def test_a_rule_has_an_answer(query, prometheus):
    """Without its comparisons with a number: on a healthy run most conditions are false, but
    what is compared must be there."""
    answers(prometheus, COMPARISON.sub("", query.expr), {})


def test_prometheus_evaluates_the_rules(prometheus):
    def evaluated():
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    assert not [rule for rule in wait_until(evaluated, "the rules") if rule["health"] != "ok"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a["alert"])
def test_texts_of_an_alert_name_labels_that_it_has(alert, prometheus):
    found = answers(prometheus, COMPARISON.sub("", alert["expr"]), {})
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
    assert named and all(named <= set(labels) for labels, _ in found)


def test_the_predictor_foretells_what_was_measured(prometheus, chosen):
    """Its forecast for the largest block of the job, beside the largest peak."""
    (forecast,) = answers(
        prometheus, 'dwsr_forecast_mean_bytes{task_name="smooth", kind="alloc"}', {}
    )
    (measured,) = answers(
        prometheus, 'dwsr_task_peak_max_bytes{task_name="smooth", kind="alloc"}', {}
    )
    assert abs(forecast[1] / measured[1] - 1) < 0.1


def test_a_real_kill_is_an_alert(prometheus):
    def killed():
        return [
            alert
            for alert in prometheus.ask("alerts")["alerts"]
            if alert["labels"]["alertname"] == "DwsrTasksKilled" and alert["state"] == "firing"
        ]

    (alert,) = wait_until(killed, "the alert")
    assert alert["annotations"]["summary"].startswith("doomed was killed on 127.0.0.1:") and alert[
        "annotations"
    ]["description"].startswith("1 in ")
