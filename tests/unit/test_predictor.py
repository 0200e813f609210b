"""The predictor without its port: many targets, those that come and go, nonsense, and two ways
to the same task."""

import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from dwsr_probe.export.exposition import PrometheusCollector
from dwsr_probe.predict import Model
from dwsr_probe.record import FIELDS, TaskRecord
from dwsr_probe.serve import service
from dwsr_probe.serve.discovery import ListedTargets
from dwsr_probe.serve.metrics import METRICS
from dwsr_probe.serve.pool import Pool
from dwsr_probe.serve.service import Predictor
from dwsr_probe.serve.state import State
from dwsr_probe.serve.targets import UPDATE_BYTES_MOST, Login, RunTarget
from dwsr_probe.store import Store
from tests.conftest import require, wait_until
from tests.unit.workers import MIB, FakeWorker, record, running

ROOM = 50 * MIB
STATE = Path(__file__).parent.parent / "data" / "predict-1" / "state.json"


@pytest.fixture
def worker():
    """Starts them; ended at the end."""
    started = []

    def start(*args, **options):
        started.append(FakeWorker(*args, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


class Places(list):
    """URLs that a test changes."""

    __hash__ = object.__hash__

    def find(self):
        return list(self)


def predictor(*urls, interval_s=0.02, **options):
    return Predictor([Places(urls)], interval_s=interval_s, **options)


def until(found, condition, what):
    wait_until(lambda: [found.turn()] and condition(), what)


def learned(found, count):
    until(found, lambda: found.ledger.learned >= count, f"{count} records")
    for _ in range(3):
        found.turn()
    assert found.ledger.learned == count


def registry_of(found):
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(found.view, True, METRICS))
    return registry


def text_of(found):
    with found.locked():
        return generate_latest(registry_of(found)).decode()


def test_it_learns_every_record_once(worker):
    # more than one look
    one = worker([record(n + 1, size=(n % 7 + 1) * MIB) for n in range(2_500)])
    found = predictor(one.url)
    learned(found, 2_500)
    one.records += [record(n + 2_501) for n in range(10)]
    learned(found, 2_510)
    assert abs(found.model.predict([{"nbytes": 20 * MIB}], "smooth").mean - 60 * MIB) < MIB
    account = found.ledger.account("smooth", "alloc")
    assert (
        account.scored > 2_000
        and account.exceeded <= 0.03 * account.scored
        and account.error < 0.01
    )


def test_why_an_own_peak_misses_memory_comes_over_the_port(worker):
    """Then nothing is promised; a thread's name may be longer than other texts."""
    unseen = {
        "rss_before_bytes": 10 * MIB,
        "rss_peak_bytes": 170 * MIB,
        "attribution": "shared",
        "attribution_reason": "unowned-thread " + "x" * 1000,
    }
    found = predictor(worker([record(n + 1, peak=24, **unseen) for n in range(20)]).url)
    learned(found, 20)
    assert found.ledger.refused == 0
    forecast = found.model.predict([{"nbytes": MIB}], "smooth")
    assert forecast.is_lower_bound and forecast.mean >= 160 * MIB
    (reason,) = forecast.unseen.reasons
    assert reason.startswith("unowned-thread xxx")
    text = text_of(found)
    assert (
        'dwsr_forecast_mean_bytes{kind="alloc",operation="smooth",task_name="smooth"} 1.67' in text
    )
    assert 'dwsr_forecast_bound_bytes{kind="alloc"' not in text


def test_two_ways_to_one_task_are_one(worker):
    """A worker's port and the exporter beside it: what Prometheus scrapes."""
    records = [record(n + 1) for n in range(100)]
    found = predictor(worker(records).url, worker(records).url)
    learned(found, 100)


def test_many_targets(worker):
    """Of which some hang up, some are none of ours."""
    good = [
        worker([record(n + 1, name=f"name {number % 10}", process=f"{number}-1") for n in range(5)])
        for number in range(60)
    ]
    bad = [worker(body=b"<html>no</html>") for _ in range(10)] + [
        worker(body=b"no", status=404) for _ in range(10)
    ]
    found = predictor(
        *(w.url for w in good + bad), *(f"http://127.0.0.1:{port}" for port in range(1, 10))
    )
    learned(found, 300)
    until(found, lambda: found.view().up == 60 and found.view().down == 10 + 9, "all of them")
    assert found.view().models == 10


GARBAGE = [
    b"",
    b"<html><body>It works!</body></html>",
    b"\x00\xff" * 1000,
    b"null",
    b"[]",
    b'{"cursor": "1", "lost": 0}' + b"x" * 100,
    b'{"seq": 1}\n{"cursor": "0"}',
    b"[" * 100_000,
    b'{"state": "ok", "seq": "x", "process": []}\n{"cursor": "0", "lost": 0}',
    b"9" * 5_000 + b"\n",
    b'{"state": "ok"' + b" " * (3 << 20),
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_answers_that_are_nonsense(worker, body):
    said = []
    good, bad = worker([record(1)]), worker(body=body)
    found = predictor(good.url, bad.url, say=said.append)
    until(
        found,
        lambda: found.polls_failed >= 2 or (b'"cursor"' in body and len(bad.asked) > 3),
        "two looks at it",
    )
    learned(found, 1)
    assert len(said) <= 1 and all(bad.host in line and len(line.splitlines()) == 1 for line in said)


BAD_RECORDS = [
    {"alloc_peak_bytes": -5},
    {"alloc_peak_bytes": "x"},
    {"alloc_peak_bytes": 1e300},
    {"alloc_peak_bytes": float("nan")},
    {"task_name": None},
    {"task_name": 5},
    {"task_name": ""},
    {"inputs": None},
    {"inputs": 5},
    {"inputs": [5]},
    {"inputs": [{"nbytes": -1}]},
    {"inputs": [{"shape": ["x"], "dtype": "float64"}]},
    {"output": 5},
    {"gpu": 5},
    {"gpu": [5]},
    {"input_bytes": "x"},
    {"thread": []},
    {"start": {}},
    {"process": 5},
    {"oom": 5, "state": "killed", "alloc_peak_bytes": -1},
    {"inputs": [{"shape": [1 << 80], "dtype": "float64"}]},
]


def test_records_that_are_nonsense_are_counted(worker):
    good = [record(n + 1, process="good") for n in range(5)]
    bad = [{**record(n + 1, process=f"bad {n}"), **fields} for n, fields in enumerate(BAD_RECORDS)]
    one = worker([*good, *bad, record(6, process="good")])
    one.running = [
        {**running(5 * MIB, headroom=ROOM), **fields}
        for fields in BAD_RECORDS
        if "state" not in fields
    ]
    found = predictor(one.url)
    until(
        found,
        lambda: found.ledger.learned + found.ledger.refused >= 6 + len(bad) and len(one.asked) > 6,
        "all of them, and two looks more",
    )
    assert found.ledger.refused >= len(bad) - 2 and found.ledger.learned <= 8
    text = text_of(found)
    assert "dwsr_predictor_records_refused_total" in text and found.view().up == 1
    json.dumps(found.model.to_dict(), allow_nan=False)


def test_a_worker_that_vanishes_takes_its_running_tasks_along(worker):
    one = worker([record(n + 1) for n in range(5)])
    one.running = [running(40 * MIB, size=10 * MIB, headroom=ROOM)]
    places = Places([one.url])
    found = Predictor([places], interval_s=0.02)
    until(found, lambda: found.model._running and found.view().overruns, "the running task")
    assert found.view().overruns[0].target == one.host
    one.status, one.body = 500, b"no"
    until(found, lambda: not found.model._running and not found.view().overruns, "its end")
    assert found.view().down == 1
    one.body = None
    until(found, lambda: found.model._running, "its return")
    places.clear()
    found._discoveries[places] = 0.0  # ask now
    until(found, lambda: not found.model._running and not found._watched, "the end of the target")
    assert found.ledger.learned == 5


def test_an_older_target_sends_no_headroom(worker):
    """Its tasks are learned; that they have no probability is said once."""
    said = []
    one = worker([record(n + 1) for n in range(5)])
    one.running = [running(40 * MIB, size=10 * MIB)]
    found = predictor(one.url, say=said.append)
    until(found, lambda: found.model._running and len(one.asked) > 6, "the running task")
    assert not found.view().overruns and len(said) == 1
    assert one.host in said[0] and "older dwsr-probe" in said[0]
    assert all(path.startswith("/dwsr/tasks?") for path in one.asked)


def test_a_restart_goes_on_where_it_was(worker, tmp_path):
    one = worker([record(n + 1, size=(n % 5 + 1) * MIB) for n in range(30)])
    first = predictor(one.url, state=State(tmp_path, print))
    learned(first, 30)
    forecast = first.model.predict([{"nbytes": 9 * MIB}], "smooth")
    first.end()
    one.asked.clear()
    one.records.append(record(31))
    second = predictor(one.url, state=State(tmp_path, print))
    again = second.model.predict([{"nbytes": 9 * MIB}], "smooth")
    assert (again.mean, again.upper(), again.n) == pytest.approx(
        (forecast.mean, forecast.upper(), 30)
    )
    learned(second, 31)
    assert "since=30&" in one.asked[0]
    second.end()
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == sum(
        a.scored for kinds in second.ledger.accounts.values() for a in kinds.values()
    )


def test_a_restart_after_a_kill_learns_nothing_twice(worker, tmp_path):
    """Model and cursors are one file: both are those of the last save."""
    one = worker([record(n + 1) for n in range(10)])
    first = predictor(one.url, state=State(tmp_path, print))
    learned(first, 10)
    first.save()
    one.records += [record(n + 11) for n in range(10)]
    learned(first, 20)
    first._state.close()  # as the kernel does
    second = predictor(one.url, state=State(tmp_path, print))
    assert second.ledger.learned == 10
    learned(second, 20)
    assert second.model.predict([{"nbytes": MIB}], "smooth").n == 20
    second.end()


def test_requests_come_in_while_it_learns(worker):
    found, answers = (
        predictor(worker([record(n + 1, name=f"name {n % 50}") for n in range(2_000)]).url),
        [],
    )

    def ask():
        # of many looks: the others are still to come
        wait_until(lambda: found.ledger.learned, "the first piece")
        for _ in range(20):
            with found.locked():
                answers.append(found.model.predict([{"nbytes": MIB}], "name 1"))

    asker = threading.Thread(target=ask)
    asker.start()
    until(found, lambda: not asker.is_alive(), "its answers")
    assert len(answers) == 20


def test_a_token_is_shown(worker):
    one = worker([record(1)], token="secret")
    bare = predictor(one.url)
    until(bare, lambda: bare.polls_failed, "its refusal")
    assert bare.view().down == 1
    found = predictor(one.url, login=Login(token="secret"))
    learned(found, 1)


def test_a_run_directory_while_it_is_written(tmp_path):
    store = Store.create(tmp_path / "run")
    store.set_meta(run="r", host="h", board_dir=str(tmp_path / "boards"))

    def add(first, last):
        store.begin()
        store.add_tasks(
            [
                TaskRecord(**{name: value for name, value in record(n).items() if name in FIELDS})
                for n in range(first, last + 1)
            ]
        )
        store.commit()

    add(1, 20)
    state = State(tmp_path / "state", print)
    found = Predictor(
        [],
        [(("run", "x"), lambda saved: RunTarget(tmp_path / "run", saved))],
        state=state,
        interval_s=0.02,
    )
    learned(found, 20)
    add(21, 25)
    learned(found, 25)
    found.end()
    add(26, 27)
    again = Predictor(
        [],
        [(("run", "x"), lambda saved: RunTarget(tmp_path / "run", saved))],
        state=State(tmp_path / "state", print),
        interval_s=0.02,
    )
    learned(again, 27)
    again.end()
    store.close()


def test_series_are_bounded(worker):
    one = worker([record(n + 1, name=f"name {n}") for n in range(400)])
    one.running = [
        running(5 * MIB, start=float(n), thread=n, name=f"name {n}", headroom=ROOM)
        for n in range(400)
    ]
    found = predictor(one.url)
    learned(found, 400)
    series = [line for line in text_of(found).splitlines() if not line.startswith("#")]
    assert len(series) < 80 * 2 * 7 + 256 * 3 + 60 and len(
        set(line.rpartition(" ")[0] for line in series)
    ) == len(series)


def test_hostile_names(worker):
    names = ["\n", 'a"b', "a\\b", "\ud800", "x" * 9_000, "other", "{}", "é\u2028", "\x1b[31m"]
    one = worker(
        [
            record(n + 1, name=name.encode("utf-8", "replace").decode())
            for n, name in enumerate(names * 5)
        ]
    )
    found = predictor(one.url)
    learned(found, 5 * len(names))
    assert len(text_of(found).encode()) > 0


def test_a_url_that_is_none_is_said_once(worker):
    said = []
    found = predictor("ftp://x", worker([record(1)]).url, say=said.append)
    learned(found, 1)
    assert len(said) == 1 and "ftp://x" in said[0]


def test_the_model_of_its_own(worker):
    assert isinstance(predictor().model, Model) and not Predictor([ListedTargets([])]).turn()


# -- the table of metrics


def test_every_metric_is_there_with_its_type_and_labels(worker):
    one = worker([record(n + 1, size=(n % 5 + 1) * MIB) for n in range(20)])
    found = predictor(one.url)
    learned(found, 20)
    for peak in (2, 3, 4):
        one.running = [running(peak * MIB, headroom=ROOM)]
        until(
            found,
            lambda peak=peak: any(
                track.points[-1][1] == peak * MIB
                for tracks in found.overruns._tracks.values()
                for track in tracks.values()
            ),
            "its peak",
        )
    families = {
        f.name: f for f in parse_openmetrics(generate_openmetrics(registry_of(found)).decode())
    }
    assert len(families) == len(METRICS)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total").removesuffix("_info")]
        assert (
            family.samples and family.documentation == metric.help and family.type == metric.type
        ), metric.name
        assert all(set(sample.labels) == set(metric.labels) for sample in family.samples)


def test_promtool_finds_nothing(worker):
    promtool = require(shutil.which("promtool"), "promtool: apt-get install prometheus")
    one = worker([record(n + 1) for n in range(9)])
    one.running = [running(5 * MIB, headroom=ROOM)]
    found = predictor(one.url)
    learned(found, 9)
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=text_of(found),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- what waits, and who waits


def test_what_waits_to_be_learned_is_bounded_in_bytes(worker, monkeypatch):
    """Busy targets, and a predictor that does not keep up with them: all of them are heard, less
    often."""
    # a turn takes one look or so, and learns one piece
    monkeypatch.setattr(service, "TURN_BUDGET_S", 0.001)
    monkeypatch.setattr(service, "WAITING_BYTES_MOST", 8 * MIB)
    monkeypatch.setattr(service, "THROTTLED_ABOVE_BYTES", 2 * MIB)
    busy = [
        worker([record(n + 1, process=f"{number}-1") for n in range(1_000)]) for number in range(12)
    ]
    found, most = predictor(*(one.url for one in busy), interval_s=0.0), 0
    wait_until(
        lambda: (
            [found.turn()] and all(f"h {number}-1" in found._learned_seqs for number in range(12))
        ),
        "a record of each",
    )
    monkeypatch.setattr(service, "THROTTLED_ABOVE_BYTES", 0)  # whatever waits is too much
    asked = [len(one.asked) for one in busy]
    while any(len(one.asked) < before + 3 for one, before in zip(busy, asked, strict=True)):
        found.turn()
        waiting = sum(len(packed) for backlog in found._backlogs for packed in backlog.records)
        assert (
            waiting == found.waiting_bytes
            and waiting + found._polls_under_way * UPDATE_BYTES_MOST <= 8 * MIB
        )
        most = max(most, waiting)
    assert most and all(f"limit={service.PIECE}&" in one.asked[-1] for one in busy)


def test_a_full_backlog_stops_the_asking(worker, monkeypatch):
    monkeypatch.setattr(service, "WAITING_BYTES_MOST", 3 * UPDATE_BYTES_MOST)
    workers = [worker([record(1, process=f"{number}-1")]) for number in range(20)]
    found, most = predictor(*(one.url for one in workers)), 0
    while found.ledger.learned < 20:
        found.turn()
        most = max(most, found._polls_under_way)
    assert 0 < most <= 3 and {len(one.asked) > 0 for one in workers} == {True}


def test_long_records_are_asked_for_in_smaller_pieces(worker):
    """A look has a megabyte; that these do not fit at once must not keep them from being
    learned."""
    shape = {"dtype": "float64", "shape": [1] * 60, "nbytes": 8, "type": "x" * 250}
    one = worker([record(n + 1, inputs=[shape] * 16) for n in range(300)])
    found = predictor(one.url)
    learned(found, 300)
    assert found.polls_failed >= 1 and "limit=250&" in one.asked[0]


def test_slow_targets_wait_in_a_lane_of_their_own(worker):
    """None of them has failed: each answers, in the last moment."""
    pool, free, busy = (
        Pool(quick_threads=2, slow_threads=1),
        threading.Event(),
        threading.Semaphore(0),
    )

    def slow():
        busy.release()
        free.wait()

    for number in range(10):
        pool.submit(number, slow, slow=True)
    busy.acquire()
    pool.submit("quick", lambda: "done")
    wait_until(pool.has_results, "the quick one")
    assert [(r.owner, r.value, r.error) for r in pool.results()] == [("quick", "done", None)]
    free.set()
    found = []
    wait_until(lambda: [found.extend(pool.results())] and len(found) == 10, "the others")


def test_a_target_that_was_slow_stays_in_the_slow_lane(worker, monkeypatch):
    monkeypatch.setattr(service, "SLOW_S", -1.0)  # each look takes longer
    one = worker([record(1)])
    found = predictor(one.url)
    lanes = []
    submit = found._pool.submit
    monkeypatch.setattr(
        found._pool,
        "submit",
        lambda owner, function, slow=False: [lanes.append(slow), submit(owner, function, slow)],
    )
    until(found, lambda: len(lanes) > 4, "some looks")
    assert lanes[:2] == [False, False] and set(lanes[2:]) == {True}  # the place's and the first one


def test_memory_that_runs_out_in_the_middle_stops_nothing(worker, monkeypatch):
    """At any line: here while a record is learned, while a look is followed, and while the state
    is made."""
    said, one = [], worker([record(n + 1) for n in range(5)])
    found = predictor(one.url, say=said.append)

    def failing(*_):
        raise MemoryError

    for place, name in ((found.model, "learn"), (found.overruns, "update")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, failing)
            until(found, lambda: found._short_of_memory, "what fails")
            found.turn()
        one.records += [record(len(one.records) + n + 1) for n in range(5)]
        before = found.ledger.learned
        until(found, lambda before=before: found.ledger.learned > before, "what works again")
    assert 1 <= len(said) <= 2 and all("not enough memory" in text for text in said)


def test_series_are_pairs_of_name_and_operation(worker):
    """Chains are no labels: what differs in the chain alone adds up. Keys are none either."""
    records = [
        record(
            5 * n + number + 1,
            name="store-map",
            peak=(number + 2) * MIB,
            operation=operation,
            chain=[*chain, operation],
            key=f"('store-map-0123', {n})",
        )
        for n in range(12)
        for number, (operation, chain) in enumerate(
            [("rms", ["load"]), ("rms", ["load", "fill"]), ("gst", ["load"])]
        )
    ]
    records += [record(100 + n, name="plain") for n in range(12)]
    one = worker(records)
    one.running = [
        running(5 * MIB, name="store-map", headroom=ROOM, operation="rms", chain=["load", "rms"])
    ]
    found = predictor(one.url)
    learned(found, 48)
    until(found, lambda: found.view().overruns, "what runs")
    assert found.view().models == 4
    registry = registry_of(found)

    def value(name, task_name, operation, **labels):
        labels = {"task_name": task_name, "operation": operation, "kind": "alloc", **labels}
        return registry.get_sample_value(name, labels)

    scored = [
        value("dwsr_forecasts_scored_total", *pair)
        for pair in (("store-map", "rms"), ("store-map", "gst"), ("plain", "plain"))
    ]
    assert scored == [18, 9, 9]
    assert value("dwsr_forecast_mean_bytes", "store-map", "gst") == pytest.approx(4 * MIB, rel=0.02)
    # of its two chains the one that needs more
    assert value("dwsr_forecast_mean_bytes", "store-map", "rms") == pytest.approx(3 * MIB, rel=0.02)
    text = text_of(found)
    assert 'operation="rms",pid="1"' in text and "0123" not in text and "fill" not in text
    assert len(text) < 100_000


def test_a_state_that_an_earlier_version_kept(worker, tmp_path):
    """It goes on with what was known by task name."""
    shutil.copy(STATE, tmp_path / "state.json")
    one, said = worker([record(n + 1, process="2-200") for n in range(5)]), []
    found = predictor(one.url, state=State(tmp_path, said.append))
    assert not said and found.ledger.learned == 24
    account = found.ledger.account("smooth", "alloc")
    assert account.scored == 9 and found.ledger.accounts["smooth", "smooth"]["alloc"] == account
    assert found.ledger.largest("store-map", found.model, "alloc").inputs[0]["nbytes"] == 4 * MIB
    learned(found, 29)
    assert account.scored == 14
    assert 'dwsr_forecast_mean_bytes{kind="alloc",operation="store-map"' in text_of(found)
    found.end()
    again = predictor(one.url, state=State(tmp_path, said.append))
    assert not said and again.ledger.to_dict() == found.ledger.to_dict()
    again.end()


POISONED = {
    "lost": lambda s: s["ledger"].update(lost=10**4000),
    "learned": lambda s: s["ledger"].update(learned=-1),
    "score": lambda s: s["ledger"]["accounts"][0][2]["alloc"].update(scored=10**4000),
    "error": lambda s: s["ledger"]["accounts"][0][2]["alloc"].update(error=float("nan")),
    "kind": lambda s: s["ledger"]["accounts"][0][2].update(evil={}),
    "label": lambda s: s["ledger"]["accounts"].append(["x" * 900_000, "x", {}]),
    "a number as a label": lambda s: s["ledger"]["accounts"].append(["x", 5, {}]),
    "labels": lambda s: s["ledger"]["accounts"].extend([f"x{n}", "x", {}] for n in range(500)),
    "score of a group": (
        lambda s: s["ledger"]["groups"]["smooth"]["alloc"].update(scored=10**4000)
    ),
    "groups": lambda s: s["ledger"]["groups"].update({f"x{n}": {} for n in range(5_000)}),
    "largest": lambda s: s["ledger"]["largest"].update(smooth=[10**4000, []]),
    "inputs": lambda s: s["ledger"]["largest"].update(smooth=[5, [{"nbytes": 10**4000}]]),
    "inputs that are none": lambda s: s["ledger"]["largest"].update(smooth=[5, 5]),
    "many inputs": lambda s: s["ledger"]["largest"].update(smooth=[5, [{"nbytes": 1}] * 10_000]),
    "seq": lambda s: s["seen"].append(["h p", 10**4000]),
    "who": lambda s: s["seen"].append(["h" * 900_000, 1]),
    "what was seen": lambda s: s.update(seen=[["h p", "x"]]),
    "cursor": lambda s: s["targets"].append(["http://x:1", {"cursor": 5}]),
    "a target's seq": (
        lambda s: s["targets"].append(["http://x:1", {"cursor": "1", "seen": {"p": 10**4000}}])
    ),
    "a target's process": (
        lambda s: s["targets"].append(["http://x:1", {"cursor": "1", "seen": {"p" * 900_000: 1}}])
    ),
    "position": lambda s: s["targets"].append([["run", "x"], {"run": "x", "position": 10**4000}]),
    "name": lambda s: s["model"]["tasks"].update({"x" * 900_000: s["model"]["tasks"]["smooth"]}),
    "model": lambda s: s["model"]["tasks"]["smooth"]["learners"]["alloc"].update(n=10**4000),
    "chain": lambda s: s["model"]["tasks"]["smooth"].update(chain=["another"]),
    "operation": lambda s: s["model"]["tasks"]["smooth"].update(operation=5),
    "task names": lambda s: s["model"]["tasks"]["smooth"].update(task_names=["x"] * 10_000),
    "late inputs": lambda s: s["model"]["tasks"]["smooth"].update(late=[{"nbytes": -1}]),
}


@pytest.mark.parametrize("kind", POISONED)
def test_a_poisoned_state_is_put_aside(worker, tmp_path, kind):
    one, said = worker([record(n + 1) for n in range(5)]), []
    first = predictor(one.url, state=State(tmp_path, print))
    learned(first, 5)
    first.end()
    saved = json.loads((tmp_path / "state.json").read_text())
    POISONED[kind](saved)
    (tmp_path / "state.json").write_text(json.dumps(saved))
    second = predictor(one.url, state=State(tmp_path, said.append))
    assert (
        len(said) == 1
        and "begins anew" in said[0]
        and len(said[0]) < 1_000
        and (tmp_path / "state.json.damaged").exists()
    )
    learned(second, 5)
    assert text_of(second)
    second.end()


def test_a_state_as_it_was_kept_is_used_again(worker, tmp_path):
    """Whatever targets claimed meanwhile: what was kept of it can be read again."""
    huge = [record(n + 1, process=f"{n}-1", host="h" * 250, name=chr(1) * 10_000) for n in range(3)]
    one = worker(
        [
            *huge,
            *(record((1 << 53) - 1, process=f"p{n}") for n in range(200)),
            *(
                record(1, process="killed", state="killed", peak=n * MIB, size=n * MIB)
                for n in range(1, 9)
            ),
        ]
    )
    first, said = predictor(one.url, state=State(tmp_path, print)), []
    until(first, lambda: first.ledger.learned >= 204, "all of them")
    before = first.ledger.to_dict()
    first.end()
    second = predictor(state=State(tmp_path, said.append))
    assert not said and second.ledger.to_dict() == before and second.ledger.lost == 1 << 60
    second.end()
