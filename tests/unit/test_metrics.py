"""The one table of metrics, and what a fixed moment looks like through it: golden_metrics.txt,
in both formats. After a change that is meant: GOLDEN=write pytest tests/unit/test_metrics.py."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import mdformat
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dwsr_probe import _core
from dwsr_probe.export.exposition import PrometheusCollector
from dwsr_probe.export.metrics import COUNTER, GAUGE, HISTOGRAM, INFO, METRICS
from dwsr_probe.export.totals import (
    HISTOGRAMS_MOST,
    NAMES_MOST,
    OTHER,
    OUTCOMES,
    Totals,
    escape_unprintable,
)
from dwsr_probe.export.view import NAMES_SERIES_MOST, MeasuredView
from dwsr_probe.live.process import MODEL_FIGURES, LivingProcess, RunningTask
from dwsr_probe.record import TaskRecord
from dwsr_probe.serve.metrics import METRICS as PREDICTED
from dwsr_probe.serve.metrics import markdown
from tests.conftest import require
from tests.unit.test_totals import row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = HERE / "golden_metrics.txt"
MIB = 1 << 20
LABELS = {
    "task_name",
    "operation",
    "outcome",
    "kind",
    "device",
    "pid",
    "slot",
    "program",
    "worker",
    "worker_name",
    "run",
    "user",
    "python",
    "uuid",
    "name",
    "version",
    "board_version",
    "target",
    "state",
}


def device(number, **fields):
    return {
        "device": number,
        "name": f"card {number}",
        "uuid": f"GPU-{number}",
        **dict.fromkeys(_core.DEVICE_FIELDS, 0),
        "utilisation_percent": 50,
        **fields,
    }


def slot(number, name="work", gpu=(), operation=None):
    return RunningTask(
        "100",
        str(number),
        TaskRecord(
            task_name=name,
            operation=operation,
            start=1.0,
            alloc_end_bytes=MIB,
            alloc_peak_bytes=2 * MIB,
            rss_before_bytes=5,
            rss_peak_bytes=9,
            gpu=list(gpu),
        ),
        1.5,
    )


def process(pid="100", devices=(), slots=(), **live):
    live = {
        **dict.fromkeys(_core.LIVE_FIELDS, 0),
        "state": 1,
        "rss_source": 1,
        "alloc_state": 1,
        "dask_hooks": 1,
        "rss_bytes": 300 * MIB,
        "rss_max_bytes": 400 * MIB,
        "samples_written": 1000,
        "sampler_cpu_ns": 1_500_000_000,
        "running": len(slots),
        "own_bytes": 4 * MIB,
        "headroom_bytes": 600 * MIB,
        **live,
    }
    worker = {
        "address": "tcp://10.0.0.1:4000",
        "name": "w",
        "memory_limit_bytes": 1 << 30,
        "managed_bytes": 5,
        "spilled_bytes": 6,
    }
    return LivingProcess(
        pid,
        f"{pid}-1",
        "job.py",
        "run-1",
        "ada",
        "3.11.2",
        live,
        {"limit_bytes": 4 << 30},
        list(devices),
        [worker],
        list(slots),
    )


def fixed_view(dedicated_port=True):
    totals = Totals(names_most=4, histograms_most=2)
    totals.add_rows(
        [
            row(
                "filter",
                alloc_peak_bytes=n * MIB,
                gpu=[{"device": 0, "peak_bytes": n, "end_bytes": 0}],
            )
            for n in (1, 5, 300)
        ],
        {"1-1": 1 << 30},
    )
    totals.add_rows(
        [row("sum", state=state) for state in OUTCOMES]
        + [row("filter", operation="lambda (job.py:12)")]
        + [row('odd "name"\n\\'), row("too many"), row("far too many", alloc_peak_bytes=None)]
    )
    gpu = {"device": 0, "peak_bytes": 11, "end_bytes": 10}
    mute = process(
        "200",
        rss_bytes=None,
        headroom_bytes=None,
        alloc_state=2,
        unowned_bytes=7,
        pinned_bytes=None,
        gpu_hook=2,
        nvml_state=_core.NVML_STATES["lost"],
    )
    mute.workers, mute.header = [], {"limit_bytes": None}
    first = process(
        devices=[device(0), device(1, used_bytes=None)],
        slots=[slot(0, gpu=[gpu], operation="smooth"), slot(3)],
    )
    first.worker_model = {name: n for n, name in enumerate(MODEL_FIGURES)}
    return MeasuredView(
        totals,
        [first, mute],
        3,
        1,
        2,
        dedicated_port=dedicated_port,
        version="9.9",
        board_version="1",
    )


def registry(view, dedicated_port=True):
    found = CollectorRegistry()
    found.register(PrometheusCollector(lambda: view, dedicated_port))
    return found


def text_of(view, dedicated_port=True):
    return generate_latest(registry(view, dedicated_port)).decode()


def series_of(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# -- the table


def test_names_follow_prometheus_rules():
    both = set(METRICS) | set(PREDICTED)
    assert len({m.name for m in METRICS}) == len(METRICS) and len(
        {m.name for m in PREDICTED}
    ) == len(PREDICTED)
    assert len({m.name for m in both}) == len(both) and {
        m.name for m in set(METRICS) & set(PREDICTED)
    } == {"dwsr_build_info"}
    for metric in both:
        assert re.fullmatch(r"dwsr_[a-z]+(_[a-z]+)*", metric.name) and metric.type in (
            COUNTER,
            GAUGE,
            HISTOGRAM,
            INFO,
        )
        assert metric.name.endswith("_total") == (metric.type == COUNTER) and metric.name.endswith(
            "_info"
        ) == (metric.type == INFO)
        assert not re.search(
            r"_(mb|mib|gb|kb|ms|ns|us|percent|count|bucket|sum|created|milliseconds|minutes)(_|$)",
            metric.name,
        )
        assert not metric.name.startswith(("dwsr_counter", "dwsr_gauge"))
        base = metric.name.removesuffix("_total")
        # the unit stands last
        assert not ("bytes" in base or "seconds" in base or "ratio" in base) or base.endswith(
            ("_bytes", "_seconds", "_ratio")
        ), metric.name
        assert (
            metric.help.endswith((".", ")"))
            and (metric.help[0].isupper() or metric.help.startswith("1: "))
            and "\n" not in metric.help
            and "|" not in metric.help
        )


def test_labels_are_bounded_ones():
    for metric in (*METRICS, *PREDICTED):
        assert (
            set(metric.labels) <= LABELS
            and not {"key", "chain"} & set(metric.labels)
            and len(set(metric.labels)) == len(metric.labels)
        )
        assert "le" not in metric.labels and "thread" not in metric.labels


def test_a_task_name_stands_beside_its_operation():
    for metric in (*METRICS, *PREDICTED):
        assert ("task_name" in metric.labels) == ("operation" in metric.labels), metric.name


def test_every_metric_is_in_the_fixed_moment_with_its_type_and_labels():
    types = {COUNTER: "counter", GAUGE: "gauge", HISTOGRAM: "histogram", INFO: "info"}
    families = {
        f.name: f for f in parse_openmetrics(generate_openmetrics(registry(fixed_view())).decode())
    }
    for metric in METRICS:
        family = families[
            (
                metric.name.removesuffix("_total")
                if metric.type == COUNTER
                else metric.name.removesuffix("_info")
                if metric.type == INFO
                else metric.name
            )
        ]
        assert (
            family.samples
            and family.type == types[metric.type]
            and family.documentation == metric.help
        ), metric.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert len(families) == len(METRICS)


def test_on_a_workers_port_only_what_belongs_there():
    ours = {m.name for m in METRICS if m.dedicated_port_only}
    assert ours == {"dwsr_task_alloc_peak_bytes", "dwsr_task_peak_max_ratio"}
    text = text_of(fixed_view(dedicated_port=False), dedicated_port=False)
    assert not any(name in text for name in ours) and "dwsr_tasks_total" in text


def test_the_page_of_metrics_is_up_to_date():
    table = {"plugin": {"tables": {"compact_tables": True}}}
    page = mdformat.text(markdown(), options={"wrap": 100, **table}, extensions={"gfm", "tables"})
    assert (ROOT / "docs" / "metrics.md").read_text() == page, (
        "python -m dwsr_probe.serve.metrics | mdformat - > docs/metrics.md"
    )
    assert "docs/metrics.md" in (ROOT / "README.md").read_text()


# -- what is served


def test_golden():
    found = (
        text_of(fixed_view())
        + "\n---- OpenMetrics ----\n"
        + generate_openmetrics(registry(fixed_view())).decode()
    )
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_promtool_finds_nothing():
    promtool = require(shutil.which("promtool"), "promtool: apt-get install prometheus")
    for view, dedicated_port in (
        (fixed_view(), True),
        (hostile_view(), True),
        (full_view(), False),
        (MeasuredView(Totals()), True),
    ):
        done = subprocess.run(
            [promtool, "check", "metrics"],
            input=text_of(view, dedicated_port),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HOSTILE = [
    "\n",
    'a"b',
    "a\\b",
    "a\\nb",
    "a\nb",
    "🛢️" * 50,
    "\ud800",
    "x" * 10_000,
    "other",
    "",
    "nul\0",
    "\r",
    "\u2028",
    "{}",
    'a{b="c"} 1\n',
    "# HELP x",
    "é",
    " ",
    "\x1b[31m",
    "٣",
]


def hostile_view():
    totals = Totals(histograms_most=HISTOGRAMS_MOST)
    totals.add_rows([row(name) for name in HOSTILE])
    totals.add_rows([row("honest", operation=name) for name in HOSTILE])
    names = [(name, None) for name in HOSTILE] + [("honest", name) for name in HOSTILE]
    slots = [slot(n, name, operation=operation) for n, (name, operation) in enumerate(names)]
    return MeasuredView(totals, [process(slots=slots)])


@pytest.mark.parametrize(
    ("generate", "parse"),
    [(generate_latest, parse_text), (generate_openmetrics, parse_openmetrics)],
)
def test_hostile_names_come_back(generate, parse):
    text = generate(registry(hostile_view())).decode("utf-8")
    families = {f.name: f for f in parse(text)}
    tasks = [s for s in families["dwsr_tasks"].samples if s.name.endswith("_total")]
    escaped = [escape_unprintable(name) for name in HOSTILE]
    pairs = [(name, name) for name in escaped] + [("honest", name or "honest") for name in escaped]
    assert {(s.labels["task_name"], s.labels["operation"]) for s in tasks} == set(pairs)
    assert sum(s.value for s in tasks) == len(pairs)
    busy = {
        s.labels["slot"]: (s.labels["task_name"], s.labels["operation"])
        for s in families["dwsr_slot_busy"].samples
    }
    assert busy == {str(n): pair for n, pair in enumerate(pairs)}


def test_no_two_series_are_the_same():
    for view, dedicated_port in (
        (fixed_view(), True),
        (hostile_view(), True),
        (full_view(), False),
    ):
        names = [line.rpartition(" ")[0] for line in series_of(text_of(view, dedicated_port))]
        assert len(set(names)) == len(names)


def full_view(
    devices=16, slots=500, outcomes=OUTCOMES, pairs=5000, devices_first=False, operations=1
):
    """The worst that a Dask worker can have. operations: of each name."""

    def pair(n):
        return {"name": f"name {n // operations}", "operation": f"f{n % operations}"}

    gpu = [{"device": n, "peak_bytes": 5, "end_bytes": 5} for n in range(devices)]
    totals = Totals(series_most=NAMES_SERIES_MOST)
    for given in (gpu, []) if devices_first else ([], gpu):
        for outcome in outcomes:
            totals.add_rows(
                [row(**pair(n), state=outcome, gpu=given if n < 200 else []) for n in range(pairs)]
            )
    found = process(
        devices=[device(n) for n in range(devices)],
        slots=[slot(n, gpu=gpu, **pair(n)) for n in range(slots)],
        gpu_hook=1,
    )
    found.worker_model = dict.fromkeys(MODEL_FIGURES, 1)
    return MeasuredView(totals, [found], dedicated_port=False)


@pytest.mark.parametrize("devices_first", [False, True])
@pytest.mark.parametrize("devices", [0, 1, 16])
@pytest.mark.parametrize("outcomes", [("ok",), OUTCOMES])
@pytest.mark.parametrize("operations", [1, 7, 5000])
def test_below_a_thousand_series_on_a_worker(devices, outcomes, devices_first, operations):
    view = full_view(devices, 500, outcomes, 5000, devices_first, operations)
    text = text_of(view, dedicated_port=False)
    assert len(series_of(text)) < 1000
    ended = [line for line in series_of(text) if line.startswith("dwsr_tasks_total")]
    assert (
        len(
            {
                re.search(r'operation="([^"]*)".*task_name="([^"]*)"', line).groups()
                for line in ended
            }
        )
        == len(view.totals.pairs)
        <= NAMES_MOST + 1
    )
    assert view.totals.names_dropped >= 5000 - NAMES_MOST and view.running
    counted = sum(float(line.rpartition(" ")[2]) for line in ended)
    assert counted == 2 * 5000 * len(outcomes)
    if not devices:
        assert len(view.totals.pairs) == NAMES_MOST + 1 and (OTHER, OTHER) in view.totals.pairs
    else:
        assert "dwsr_device_live_bytes" in text


def test_a_common_worker_shows_all_it_has():
    text = text_of(full_view(devices=1, slots=8, outcomes=("ok",), pairs=30), dedicated_port=False)
    assert (
        text.count("dwsr_slot_busy{") == 8
        and text.count("dwsr_slot_device_peak_bytes{") == 8
        and '"other"' not in text
    )
    assert text.count("dwsr_tasks_total{") == 30


def test_on_our_own_port_slots_of_all_processes():
    view = MeasuredView(
        Totals(), [process(str(pid), slots=[slot(n) for n in range(4)]) for pid in range(40)]
    )
    assert len(view.running) == 160


# -- what goes wrong stays here


def test_on_dasks_port_a_failure_of_ours_leaves_dasks_metrics():
    def broken():
        raise OSError("no board")

    found = CollectorRegistry()
    found.register(PrometheusCollector(broken, dedicated_port=False))
    assert generate_latest(found) == b""
    with pytest.raises(OSError):  # on our own port: a failed scrape is what Prometheus should see
        generate_latest(registry_of(broken))


def registry_of(view):
    found = CollectorRegistry()
    found.register(PrometheusCollector(view, dedicated_port=True))
    return found


def test_registering_reads_no_board():
    def read():
        raise AssertionError("read")

    assert registry_of(read) is not None
