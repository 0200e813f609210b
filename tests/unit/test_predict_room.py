"""Which groups a model keeps when there are more than it has room for."""

import json

from dwsr_probe.predict import Model
from dwsr_probe.predict.room import Room

INPUTS = [{"dtype": "float32", "shape": [30, 30, 30]}]


def teach(model, name, times=1):
    for _ in range(times):
        model.learn({"task_name": name, "inputs": INPUTS, "alloc_peak_bytes": 1 << 20})


def test_names_in_rotation_still_learn():
    """Five times as many names as there is room for. Most of the room is for some of them, which
    learn every record."""
    model = Model(groups_most=64)
    for _ in range(6):
        for number in range(320):
            teach(model, f"task {number}")
    learned = [model.predict(INPUTS, name).n for name in model.names()]
    assert len(learned) == 64 and model.evicted > 1000
    assert sum(n == 6 for n in learned) >= 47


def test_a_new_job_learns_beside_old_names():
    model = Model(groups_most=64)
    for number in range(200):
        teach(model, f"old {number}", 10)
    for _ in range(5):
        for number in range(12):
            teach(model, f"new {number}")
    assert {model.predict(INPUTS, f"new {number}").n for number in range(12)} == {5}


def test_a_second_job_with_more_names_than_newcomers():
    """Its names take turns. The old ones leave when they were unused for long."""
    model = Model(groups_most=64)
    for number in range(64 * 12):
        teach(model, f"old {number % 64}")
    for _ in range(40):
        for number in range(30):
            teach(model, f"new {number}")
    assert min(model.predict(INPUTS, f"new {number}").n for number in range(30)) >= 10


def test_uses_are_saved_and_merged():
    model = Model(groups_most=16)
    for number in range(16):
        teach(model, f"task {number}", 1 + number % 3)
    loaded = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    assert [*loaded._room] == [*model._room]
    loaded.merge(model)
    assert [text for text, _ in loaded._room] == [text for text, _ in model._room]
    assert loaded.evicted == 0


def test_a_model_with_more_room_is_loaded_as_far_as_there_is_room():
    model = Model(groups_most=1500)
    for number in range(1500):
        teach(model, f"task {number}")
    loaded = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    assert len(loaded.names()) == 1024 and loaded.evicted == 476


def test_room_for_one_or_two():
    for most in (1, 2):
        room, kept = Room(most), set()
        for text in "abcabcddd":
            kept.add(text)
            if (leaving := room.use(text)) is not None:
                assert leaving != text
                kept.discard(leaving)
            assert kept == dict(room).keys() and len(kept) <= most
