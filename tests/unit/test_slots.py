"""Running tasks: the room that is left, the probability of more, the pace, and what the model is
told of them."""

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.serve.slots import SHOWN_MOST, Slots, Track, identity
from dwsr_probe.serve.watch import Look, Room, rooms_of
from tests.unit.workers import MIB, record, rooms, running


@pytest.fixture
def model():
    """Three times the input, give or take a fifth."""
    found = Model()
    for n in range(60):
        found.learn(
            record(n + 1, size=(n % 5 + 1) * MIB, peak=(n % 5 + 1) * MIB * (2.6 + 0.2 * (n % 5)))
        )
    return found


def look(*tasks, headroom=50 * MIB, **fields):
    return Look(running=list(tasks), rooms={"1": Room(headroom, 100 * MIB - headroom)}, **fields)


def test_room_is_what_it_has_and_the_headroom(model):
    slots = Slots()
    slots.follow("w:1", look(running(30 * MIB, live=20 * MIB, size=10 * MIB)), model, 0.0)
    (slot,) = slots.shown()
    assert (slot.target, slot.pid, slot.slot, slot.task_name, slot.room_bytes) == (
        "w:1",
        "1",
        "0",
        "smooth",
        70 * MIB,
    )
    assert slot.probability < 0.05 and slot.seconds is None


def test_one_on_its_way_over_the_limit(model):
    slots = Slots()
    chances = []
    for second, peak in enumerate((1, 20, 40, 60, 80)):
        slots.follow(
            "w:1",
            look(running(peak * MIB, size=30 * MIB), headroom=(84 - peak) * MIB),
            model,
            float(second),
        )
        (slot,) = slots.shown()
        chances.append(slot.probability)
    assert chances == sorted(chances) and chances[-1] > 0.5
    assert slot.seconds == pytest.approx(4 / (79 / 4))


def test_one_that_is_not_like_the_others(model):
    """It leaks: what was learned says that it cannot be. The nearer, the more probable."""
    slots, chances = Slots(), []
    for second, peak in enumerate((10, 10, 60, 120, 200, 290)):
        slots.follow(
            "w:1",
            look(running(peak * MIB, size=10 * MIB), headroom=(300 - peak) * MIB),
            model,
            float(second),
        )
        chances += [slot.probability for slot in slots.shown()]
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
    slots = Slots()
    task = running(None, live=0)
    task |= {
        "alloc_peak_bytes": None,
        "alloc_end_bytes": None,
        "rss_before_bytes": 30 * MIB,
        "rss_peak_bytes": 60 * MIB,
    }
    slots.follow("w:1", look(task), model, 0.0)
    (slot,) = slots.shown()
    assert slot.room_bytes == 70 * MIB  # it has 20 of the process's 50, and 50 are left


def test_what_cannot_be_said_is_not_said(model):
    slots = Slots()
    nothing = running(5 * MIB)
    nothing |= {"alloc_peak_bytes": None}
    slots.follow("a", look(nothing, running("x"), running(-5), running(float("nan"))), model, 0.0)
    slots.follow("b", Look(running=[running(5 * MIB)]), model, 0.0)  # without /metrics
    # nor this
    slots.follow(
        "c",
        Look(running=[running(5 * MIB)], rooms={"1": Room(resident_bytes=100 * MIB)}),
        model,
        0.0,
    )
    bad = running(5 * MIB)
    bad["inputs"] = [{"nbytes": -5}]
    slots.follow("d", look(bad), model, 0.0)
    assert slots.shown() == []


def test_the_model_is_told_of_what_stays_and_grows(model):
    slots = Slots()

    def told(*tasks, **fields):
        news, gone = slots.follow("w:1", look(*tasks, **fields), model, 0.0)
        return [r["alloc_peak_bytes"] for r in news], gone

    assert told(running(5 * MIB)) == ([], set())  # it may be short
    assert told(running(5 * MIB)) == ([5 * MIB], set())
    assert told(running(5 * MIB)) == ([], set())  # no news
    assert told(running(6 * MIB), running(MIB, start=2e9, thread=8)) == ([6 * MIB], set())
    # One ends as it should, one vanishes: the other is told again, because the model forgets them
    # together.
    assert told(running(6 * MIB), running(MIB, start=2e9, thread=8)) == ([MIB], set())
    assert told(running(6 * MIB)) == ([6 * MIB], {"1-100"})
    assert told(ended={identity(record(9, start=1e9))}) == ([], set())


def test_a_target_that_goes_takes_its_tasks_along(model):
    slots = Slots()
    for _ in range(2):
        slots.follow("w:1", look(running(5 * MIB)), model, 0.0)
    assert slots.drop("w:1") == {"1-100"} and slots.shown() == [] and slots.drop("w:1") == set()


def test_each_task_is_shown_once_and_not_too_many(model):
    slots = Slots()
    many = [running(n * MIB, size=MIB, thread=n, start=float(n)) for n in range(1, SHOWN_MOST + 50)]
    for target in ("worker:1", "exporter:2"):
        slots.follow(target, look(*many), model, 0.0)
    found = slots.shown()
    assert len(found) == SHOWN_MOST and len({slot.slot for slot in found}) == SHOWN_MOST
    assert found[0].probability >= found[-1].probability


def test_slots_are_numbered_anew_when_they_are_free(model):
    slots = Slots()

    def numbers(*starts):
        slots.follow(
            "w:1", look(*(running(MIB, start=float(start)) for start in starts)), model, 0.0
        )
        return {start: track.number for (_, _, start), track in slots._tracks["w:1"].items()}

    assert numbers(1, 2, 3) == {1: 0, 2: 1, 3: 2}
    assert numbers(3, 2) == {2: 1, 3: 2}
    assert numbers(4, 3, 2) == {2: 1, 3: 2, 4: 0}


def test_a_probability_is_computed_anew_when_something_has_changed():
    track, computed = Track(), []

    def ask(now, peak, room):
        return track.chance(now, peak, room, lambda: computed.append(1) or len(computed))

    assert [ask(0, 100, 1000), ask(1, 100, 1000), ask(2, 100.5, 1001)] == [1, 1, 1]
    assert [ask(3, 120, 1000), ask(3, 120, 900), ask(4, 120, 900), ask(9, 120, 900)] == [2, 3, 3, 4]


def test_rooms_of_a_page():
    text = (
        "# HELP dwsr_process_limit_bytes x\n"
        + rooms(pid=5)
        + 'dask_worker_threads 3\ndwsr_process_limit_bytes{pid="6"}'
        ' NaN\ndwsr_process_headroom_bytes{pid="6"} -5\n'
    )
    assert rooms_of(text) == {"5": Room(50 * MIB, 50 * MIB)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "dwsr_process_headroom_bytes",
        "dwsr_process_headroom_bytes{ 5",
        'dwsr_process_headroom_bytes{pid="1"} x',
        "dwsr_process_headroom_bytes 5 6 7 8",
        'dwsr_process_headroom_bytes{pid="1} 5',
    ],
)
def test_pages_that_are_none(text):
    assert all(room == Room() or pid == "" for pid, room in rooms_of(text).items())
