"""promtool on the rules, their cases, and what we expose."""

import re

from tests.dashboards.queries import ALERTS, DASHBOARDS, RULES

CASES = DASHBOARDS.parent / "tests" / "dashboards" / "rules_test.yml"


def test_the_rules_are_valid(promtool):
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", DASHBOARDS / "rules.yml")
    assert done.returncode == 0 and f"{len(RULES)} rules found" in done.stdout, (
        done.stdout + done.stderr
    )


def test_alerts_fire_when_they_should(promtool):
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_texts_and_a_case():
    fired = set(re.findall(r'alertname="(\w+)"', CASES.read_text()))
    assert {alert["alert"] for alert in ALERTS} == fired
    for alert in ALERTS:
        assert alert["annotations"].keys() >= {"summary", "description"} and alert["labels"][
            "severity"
        ] in ("info", "warning", "critical")


def test_the_exposition_is_clean(promtool, dask_run, cupy_run):
    for run in (dask_run, cupy_run):
        done = promtool("check", "metrics", input=run.metrics())
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
