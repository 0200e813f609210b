"""Running tasks: the room that is left, the probability of more, the pace, and what the model is
told of them."""

import pytest

from dwsr_probe.live.wire import task_identity
from dwsr_probe.predict import Model
from dwsr_probe.serve.overrun import SERIES_MOST, OverrunForecasts, Track
from dwsr_probe.serve.targets import TargetUpdate
from tests.unit.workers import MIB, record, running


@pytest.fixture
def model():
    """Three times the input, give or take a fifth."""
    found = Model()
    for n in range(60):
        found.learn(
            record(n + 1, size=(n % 5 + 1) * MIB, peak=(n % 5 + 1) * MIB * (2.6 + 0.2 * (n % 5)))
        )
    return found


def update(*tasks, headroom=50 * MIB, **fields):
    room = {
        "process_headroom_bytes": headroom,
        "process_resident_bytes": 100 * MIB - (headroom or 0),
    }
    return TargetUpdate(running=[task | room for task in tasks], **fields)


def test_room_is_what_it_has_and_the_headroom(model):
    overruns = OverrunForecasts()
    overruns.update("w:1", update(running(30 * MIB, live=20 * MIB, size=10 * MIB)), model, 0.0)
    (slot,) = overruns.most_probable()
    assert slot.task == ("1-100", 7, 1e9)
    assert (slot.target, slot.pid, slot.slot, slot.task_name, slot.room_bytes) == (
        "w:1",
        1,
        "0",
        "smooth",
        70 * MIB,
    )
    assert slot.probability < 0.05 and slot.seconds is None


def test_one_on_its_way_over_the_limit(model):
    overruns = OverrunForecasts()
    chances = []
    for second, peak in enumerate((1, 20, 40, 60, 80)):
        overruns.update(
            "w:1",
            update(running(peak * MIB, size=30 * MIB), headroom=(84 - peak) * MIB),
            model,
            float(second),
        )
        (slot,) = overruns.most_probable()
        chances.append(slot.probability)
    assert chances == sorted(chances) and chances[-1] > 0.5
    assert slot.seconds == pytest.approx(4 / (79 / 4))


def test_one_that_is_not_like_the_others(model):
    """It leaks: what was learned says that it cannot be. The nearer, the more probable."""
    overruns, chances = OverrunForecasts(), []
    for second, peak in enumerate((10, 10, 60, 120, 200, 290)):
        overruns.update(
            "w:1",
            update(running(peak * MIB, size=10 * MIB), headroom=(300 - peak) * MIB),
            model,
            float(second),
        )
        chances += [slot.probability for slot in overruns.most_probable()]
    assert chances == sorted(chances) and chances[0] < 0.01 and chances[-1] > 0.7


def test_the_pace_is_that_of_the_window():
    track = Track()
    track.add(0.0, 0)
    assert track.seconds_until(100) is None
    track.add(10.0, 50)
    assert (
        track.seconds_until(100) == 10.0
        and track.seconds_until(50) == track.seconds_until(40) == 0.0
    )
    for second in range(11, 60):
        track.add(float(second), 50)
    assert track.seconds_until(100) is None and len(track.points) <= 64


def test_growth_of_the_process_where_allocations_are_not_accounted(model):
    overruns = OverrunForecasts()
    task = running(None, live=0)
    task |= {
        "alloc_peak_bytes": None,
        "alloc_end_bytes": None,
        "rss_before_bytes": 30 * MIB,
        "rss_peak_bytes": 60 * MIB,
    }
    overruns.update("w:1", update(task), model, 0.0)
    (slot,) = overruns.most_probable()
    assert slot.room_bytes == 70 * MIB  # it has 20 of the process's 50, and 50 are left


def test_what_cannot_be_said_is_not_said(model):
    overruns = OverrunForecasts()
    nothing = running(5 * MIB)
    nothing |= {"alloc_peak_bytes": None}
    overruns.update(
        "a", update(nothing, running("x"), running(-5), running(float("nan"))), model, 0.0
    )
    # of an older server, and without a headroom that is known
    overruns.update("b", TargetUpdate(running=[running(5 * MIB)]), model, 0.0)
    overruns.update("c", update(running(5 * MIB), headroom=None), model, 0.0)
    bad = running(5 * MIB)
    bad["inputs"] = [{"nbytes": -5}]
    overruns.update("d", update(bad), model, 0.0)
    assert overruns.most_probable() == []


def test_the_model_is_told_of_what_stays_and_grows(model):
    overruns = OverrunForecasts()

    def told(*tasks, **fields):
        news, gone = overruns.update("w:1", update(*tasks, **fields), model, 0.0)
        return [r["alloc_peak_bytes"] for r in news], gone

    assert told(running(5 * MIB)) == ([], set())  # it may be short
    assert told(running(5 * MIB)) == ([5 * MIB], set())
    assert told(running(5 * MIB)) == ([], set())  # no news
    assert told(running(6 * MIB), running(MIB, start=2e9, thread=8)) == ([6 * MIB], set())
    # One ends as it should, one vanishes: the other is told again, because the model forgets them
    # together.
    assert told(running(6 * MIB), running(MIB, start=2e9, thread=8)) == ([MIB], set())
    assert told(running(6 * MIB)) == ([6 * MIB], {"1-100"})
    assert told(ended={task_identity(record(9, start=1e9).get)}) == ([], set())


def test_a_target_that_goes_takes_its_tasks_along(model):
    overruns = OverrunForecasts()
    for _ in range(2):
        overruns.update("w:1", update(running(5 * MIB)), model, 0.0)
    assert (
        overruns.drop("w:1") == {"1-100"}
        and overruns.most_probable() == []
        and overruns.drop("w:1") == set()
    )


def test_each_task_is_shown_once_and_not_too_many(model):
    overruns = OverrunForecasts()
    many = [
        running(n * MIB, size=MIB, thread=n, start=float(n)) for n in range(1, SERIES_MOST + 50)
    ]
    for target in ("worker:1", "exporter:2"):
        overruns.update(target, update(*many), model, 0.0)
    found = overruns.most_probable()
    assert len(found) == SERIES_MOST and len({slot.slot for slot in found}) == SERIES_MOST
    assert found[0].probability >= found[-1].probability


def test_slots_are_numbered_anew_when_they_are_free(model):
    overruns = OverrunForecasts()

    def numbers(*starts):
        overruns.update(
            "w:1", update(*(running(MIB, start=float(start)) for start in starts)), model, 0.0
        )
        return {start: track.slot for (_, _, start), track in overruns._tracks["w:1"].items()}

    assert numbers(1, 2, 3) == {1: 0, 2: 1, 3: 2}
    assert numbers(3, 2) == {2: 1, 3: 2}
    assert numbers(4, 3, 2) == {2: 1, 3: 2, 4: 0}


def test_a_probability_is_computed_anew_when_something_has_changed():
    track, computed = Track(), []

    def ask(now, peak, room):
        return track.probability(now, peak, room, lambda: computed.append(1) or len(computed))

    assert [ask(0, 100, 1000), ask(1, 100, 1000), ask(2, 100.5, 1001)] == [1, 1, 1]
    assert [ask(3, 120, 1000), ask(3, 120, 900), ask(4, 120, 900), ask(9, 120, 900)] == [2, 3, 3, 4]
