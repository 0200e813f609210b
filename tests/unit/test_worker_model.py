"""The model inside a worker, without Dask: what is learned first, the budget, answers from memory,
and a thread that no job notices. On clusters: tests/integration/test_worker_model.py."""

import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from dwsr_probe.live.process import MODEL_FIGURES, MODEL_OUTCOMES
from dwsr_probe.predict.group import Group
from dwsr_probe.worker_model import learning, waiting
from dwsr_probe.worker_model.answers import Answer, Answers
from dwsr_probe.worker_model.budget import BURST_S, SHARE, CpuBudget
from dwsr_probe.worker_model.waiting import EARLY, NEW, REPEAT, SURPRISING, WaitingRecords
from tests.conftest import wait_until

MIB = 1 << 20


# -- which record is learned next


class Filled:
    """WaitingRecords, and the records that were taken from it, by name."""

    def __init__(self):
        self.waiting = WaitingRecords()

    def add(self, name, group="g", inputs="[1]", peak=10 * MIB, is_early=False, params=""):
        self.waiting.add(group, inputs, peak, is_early, lambda: name, params)

    def take(self):
        found = self.waiting.take()
        return found and (found[0], found[1]())

    def take_all(self):
        return [*iter(self.take, None)]


def test_parameters_are_part_of_a_shape_if_they_are_few():
    """A mode that was not seen is new. A seed is not: there would be nothing but new shapes."""
    filled = Filled()
    for n in range(300):
        filled.add(n, params=f"mode {n % 3}")
        filled.take_all()
    assert filled.waiting.expected > 150
    filled.add("another mode", params="mode 7")
    filled.add("killed", is_early=True, params="mode 8", peak=20 * MIB)
    filled.add("killed with less", is_early=True, params="mode 9", peak=15 * MIB)
    early, again, new = filled.take_all()
    assert {early[1], again[1]} == {"killed", "killed with less"} and new == (NEW, "another mode")
    seeds = Filled()
    for n in range(300):
        seeds.add(n, params=f"seed {n}")
        seeds.take_all()
    assert seeds.waiting.expected > 150


def test_what_ended_early_comes_first_then_new_shapes():
    filled = Filled()
    for n in range(10):
        filled.add(f"known {n}")
    filled.take_all()
    filled.add("repeat")
    filled.add("surprise", peak=50 * MIB)
    filled.add("new inputs", inputs="[2]")
    filled.add("new group", group="h")
    filled.add("failed", is_early=True)
    assert filled.take_all() == [
        (EARLY, "failed"),
        (NEW, "new inputs"),
        (NEW, "new group"),
        (SURPRISING, "surprise"),
        (REPEAT, "repeat"),
    ]


def test_a_repeat_that_says_nothing_new_is_only_counted():
    filled = Filled()
    for n in range(waiting._KNOWN_GROUP_FROM):
        filled.add(n)
        assert filled.take() is not None
    for _ in range(1000):
        filled.add("as always", peak=10 * MIB + random.Random(0).randrange(MIB // 4))
    assert filled.waiting.expected == 1000 and not len(filled.waiting)
    filled.add("more", peak=20 * MIB)
    assert filled.take() == (SURPRISING, "more")
    filled.add("within what is known now", peak=15 * MIB)
    assert filled.take() is None and filled.waiting.expected == 1001


def test_repeats_that_wait_are_counted_once_others_like_them_are_known():
    filled = Filled()
    for n in range(200):
        filled.add(n)
    assert len(filled.take_all()) == waiting._KNOWN_GROUP_FROM
    assert filled.waiting.expected == 200 - waiting._KNOWN_GROUP_FROM


def test_the_same_failure_again_is_not_learned_again():
    filled = Filled()
    filled.add("first", is_early=True)
    filled.add("higher", is_early=True, peak=30 * MIB)
    assert filled.take_all() == [(EARLY, "first"), (EARLY, "higher")]
    filled.add("again", is_early=True, peak=25 * MIB)
    filled.add("without a peak", is_early=True, peak=None)
    assert filled.take() is None and filled.waiting.expected == 2
    filled.add("higher still", is_early=True, peak=40 * MIB)
    assert filled.take() == (EARLY, "higher still")


def test_what_waits_is_bounded_and_what_is_skipped_is_counted():
    filled, many = Filled(), 10_000
    for n in range(many):
        filled.add(n, inputs=f"[{n}]")
        filled.add(n, group="early", inputs=f"[{n}]", is_early=True)
        filled.add(n, group="same")
    most = waiting._WAITING_MOST
    assert len(filled.waiting) <= 3 * most + 1
    skipped = filled.waiting.skipped
    assert (skipped[EARLY], skipped[SURPRISING]) == (many - most, 0)
    # What repeats is new again if its first record was skipped before it was learned.
    assert skipped[NEW] + skipped[REPEAT] == 2 * (many - most) and skipped[REPEAT] > many / 2
    assert len(filled.waiting._shapes) <= waiting._SHAPES_MOST
    filled.take_all()
    filled.add("a new shape that was skipped is new again", inputs="[0]")
    assert filled.take()[0] == NEW


def test_many_groups_are_bounded():
    filled = Filled()
    for n in range(3 * waiting._GROUPS_MOST):
        filled.add(n, group=f"g{n}")
        filled.take()
    assert len(filled.waiting._group_counts) == waiting._GROUPS_MOST


# -- CPU time


def test_the_budget_is_a_share_and_a_burst():
    """For any work: taken <= burst + share of the time + the last step."""
    chance = random.Random(5)
    now = used = 0.0
    budget = CpuBudget(lambda: now, lambda: used)
    for _ in range(20_000):
        if chance.random() < 0.001:
            now += chance.uniform(0, 100)  # nothing to do
        rest = budget.rest_s()
        now += rest
        step = chance.uniform(0.0001, 0.005)
        now, used = now + step, used + step
        assert used <= BURST_S + SHARE * now + 0.005
    assert used >= SHARE * now * 0.5


def test_a_thread_that_rests_does_not_wake_for_every_step():
    now = used = 0.0
    budget = CpuBudget(lambda: now, lambda: used)
    used = BURST_S + 0.001
    rest = budget.rest_s()
    assert rest == pytest.approx((0.001 + 0.002) / SHARE)
    now += rest
    assert budget.left_s() == pytest.approx(0.002) and budget.rest_s() == 0


# -- answers from memory


def answer(n=0, mean=1.0):
    return Answer(mean, 2 * mean, mean, n, "good", (), False, False, False, None)


@pytest.fixture
def answers():
    return Answers(lambda: None)


INPUTS = [{"dtype": "float64", "shape": [10, 10], "nbytes": 800}]


def test_a_question_is_answered_the_second_time(answers):
    assert answers.get(INPUTS, "g") is None and answers.has_questions()
    asked = []

    def predict(*question):
        asked.append(question)
        return "g", answer(5)

    answers.answer_next(predict)
    assert asked == [(INPUTS, "g", None)] and not answers.has_questions()
    assert answers.get([dict(INPUTS[0])], "g") == answer(5)
    assert answers.get(INPUTS, "g", {"sigma": 3}) is None
    assert answers.get(INPUTS, Group("g", ("a",))) is None
    assert (answers.questions, answers.unanswered) == (4, 3)


def test_a_question_that_waits_does_not_change(answers):
    inputs = [dict(INPUTS[0])]
    answers.get(inputs, "g")
    inputs[0]["shape"] = [1]
    answers.answer_next(lambda *question: (question[1], answer(len(question[0][0]["shape"]))))
    assert answers.get(INPUTS, "g").n == 2


def test_answers_are_renewed_when_the_group_has_learned_enough(answers):
    answers.get(INPUTS, "g")
    answers.answer_next(lambda *_: ("g", answer(80)))
    for n in range(10):
        assert answers.get(INPUTS, "g").n == 80 and not answers.has_questions(), n
        answers.note_learned("g", is_early=False, is_new_group=False)
    assert answers.get(INPUTS, "g").n == 80 and answers.has_questions()
    answers.answer_next(lambda *_: ("g", answer(90)))
    assert answers.get(INPUTS, "g").n == 90 and not answers.has_questions()
    answers.note_learned("other", is_early=True, is_new_group=False)
    assert not answers.has_questions()
    answers.note_learned("g", is_early=True, is_new_group=False)
    assert answers.has_questions()  # at once


def test_a_guess_is_renewed_once_its_name_may_mean_a_group(answers):
    answers.get(INPUTS, "smooth")
    answers.answer_next(lambda *_: ("smooth", answer(0)))
    answers.note_learned("smooth [load → smooth]", is_early=False, is_new_group=True)
    assert answers.get(INPUTS, "smooth").n == 0 and answers.has_questions()


def test_answers_are_bounded(answers):
    for n in range(3000):
        for size in (n, n + 10_000):
            answers.get([{"nbytes": size}], f"g{n % 50}")
        for _ in range(2):
            answers.answer_next(lambda *q: (q[1], answer()))
    assert len(answers._kept) == 1024
    assert set().union(*answers._by_group.values()) == set(answers._kept)
    assert answers._kept_bytes == sum(len(key[1]) for key in answers._kept)
    for n in range(300):
        long = [{"nbytes": size} for size in range(n, n + 300)]
        answers.get(long, "g")
        answers.answer_next(lambda *q: (q[1], answer()))
    assert answers._kept_bytes <= 1 << 20 and answers.get(long, "g") is not None
    answers.get([{"nbytes": size} for size in range(5000)], "g")
    assert not answers.has_questions()
    for n in range(10_000):
        answers.get([{"nbytes": n}], "later")
    assert len(answers._asked) <= 256


@pytest.mark.parametrize(
    ("inputs", "group", "params"),
    [
        (object(), "g", None),
        (None, None, None),
        ([{"shape": [object()]}], "g", None),
        (INPUTS, [], None),
        (INPUTS, "g", {"f": print}),
        (INPUTS, "g", {"x": float("nan")}),
    ],
)
def test_nonsense_has_no_answer_and_raises_nothing(answers, inputs, group, params):
    assert answers.get(inputs, group, params) is None
    assert answers.unanswered == answers.questions == 1


# -- the thread, in a process of its own


def run(code, **environ):
    """A program with a probe and a thread; what it prints."""
    head = """
    import os, sys, threading, time
    import dwsr_probe
    from dwsr_probe import _core, worker_model
    def wait(condition):
        until = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < until, worker_model.figures()
            time.sleep(0.005)
    def inputs(n): return [{"type": "ndarray", "dtype": "float64", "shape": [n], "nbytes": 8 * n}]
    def work(n, name="work", factor=3):
        import numpy as np
        x = np.ones(n)
        with dwsr_probe.task(name, inputs=[x]):
            y = np.ones(factor * n)
    def asked(*question):
        found = []
        def is_answered():
            found[:] = [worker_model.forecast(*question)]
            return found[0] is not None
        wait(is_answered)
        return found[0]
    def learned(): return worker_model.figures()["learned"]
    dwsr_probe.start()
    """
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(head + code)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_it_learns_and_answers(board_dir):
    done = run(
        """
    worker_model.start()
    for n in range(1, 13): work(200_000 * n)
    wait(lambda: learned() == 12)
    answer = asked(inputs(5_000_000), "work")
    print(answer.mean / (3 * 8 * 5_000_000), answer.bound / answer.mean, answer.n, answer.trust)
    assert worker_model.forecast(inputs(5_000_000), "work") is answer
    assert asked(inputs(5), "never seen").trust == "none"
    assert worker_model.forecast(object(), "work") is None
    """
    )
    ratio, bound, n, trust = done.stdout.split()
    assert abs(float(ratio) - 1) < 0.02 and 1 <= float(bound) < 1.1
    assert (n, trust, done.stderr) == ("12", "good", "")


def test_a_name_that_means_several_groups_has_no_answer(board_dir):
    """And costs nothing the second time."""
    run(
        """
    from dwsr_probe.predict import Model
    from dwsr_probe.predict.group import Group
    worker_model.start()
    thread = worker_model._current
    work(1000)
    wait(lambda: learned() == 1)
    with thread._turn:
        for chain in (["a", "f"], ["b", "f"]):
            thread._model.learn({"task_name": "t", "operation": "f", "chain": chain,
                                 "inputs": inputs(9), "alloc_peak_bytes": 5})
    assert worker_model.forecast(inputs(9), "f") is None
    wait(lambda: thread.answers._kept)
    assert worker_model.forecast(inputs(9), "f") is None and not thread.answers.has_questions()
    assert asked(inputs(9), Group("f", ("a", "f"))).n == 1
    """
    )


def test_nothing_is_imported_before_the_first_record(board_dir):
    done = run(
        """
    worker_model.start()
    time.sleep(0.6)
    print("numpy" in sys.modules, "dwsr_probe.predict.model" in sys.modules)
    with dwsr_probe.task("x"): pass
    wait(lambda: learned() == 1)
    print("numpy" in sys.modules)
    """
    )
    assert done.stdout.split() == ["False", "False", "True"]


def test_a_burst_takes_no_more_than_its_share(board_dir):
    """Thousands of tiny tasks, failures and new shapes among them: these are learned, most others
    are not, and every record is counted."""
    done = run(
        """
    import json
    import numpy as np
    from dwsr_probe.worker_model import learning
    began = time.monotonic()
    worker_model.start()
    learned_first, learn = [], learning.LearningThread._learn
    def note(self, record, is_early):
        learned_first.append((record.task_name, record.state))
        learn(self, record, is_early)
    learning.LearningThread._learn = note
    x, count, turn = [np.ones(n) for n in range(1, 51)], 0, 0
    def tiny(name, value):
        global count
        count += 1
        with dwsr_probe.task(name, inputs=[value]): pass
    while time.monotonic() - began < 6:
        for i in range(25): tiny("tiny", x[0])
        turn += 1
        if turn % 20 == 0: tiny("grows", x[turn // 20])
        if turn % 50 == 0:
            try:
                count += 1
                with dwsr_probe.task(f"failing {turn}", inputs=[x[1]]): raise KeyError
            except KeyError: pass
        time.sleep(0.02)
    def read(): return sum(worker_model.figures()[n] for n in learning.MODEL_OUTCOMES) + len(
        worker_model._current._waiting)
    wait(lambda: read() == count)
    elapsed = time.monotonic() - began
    states = [state for _, state in learned_first]
    names = [name for name, _ in learned_first]
    print(json.dumps([worker_model.figures(), elapsed, count,
                      [states.count("error"), turn // 50], [names.count("grows"), turn // 20]]))
    """.replace("learning.MODEL_OUTCOMES", repr(MODEL_OUTCOMES))
    )
    figures, elapsed, count, errors, new = json.loads(done.stdout)
    assert errors[0] == errors[1] > 0 and new[0] == new[1] > 0
    assert figures["cpu_seconds"] <= BURST_S + SHARE * elapsed + 0.05, (figures, elapsed)
    assert figures["skipped_early"] == figures["skipped_new"] == figures["lost"] == 0
    assert figures["expected"] + figures["skipped_repeat"] > count / 2
    assert not figures["failed"] and set(figures) == set(MODEL_FIGURES)


def test_a_forked_child_has_no_model(board_dir):
    """While the thread works, and with work of its own in the child."""
    done = run(
        """
    import numpy as np
    worker_model.start()
    work(1000)
    wait(lambda: learned() == 1)
    for i in range(30):
        work(1000 + i)
        pid = os.fork()
        if not pid:
            assert worker_model.forecast(inputs(5), "work") is None
            assert worker_model.figures() is None
            work(10)
            from dwsr_probe.predict import Model
            Model().learn({"task_name": "x", "inputs": inputs(5), "alloc_peak_bytes": 7})
            worker_model.start()
            wait(lambda: learned() >= 1)
            worker_model.stop()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    wait(lambda: learned() >= 31)
    print(worker_model.figures()["failed"])
    """
    )
    assert done.stdout.split() == ["0"]


def test_a_fork_while_numpy_is_imported(board_dir):
    """The child imports it, too: a half imported one would make it wait for ever."""
    run(
        """
    worker_model.start()
    with dwsr_probe.task("x"): pass
    wait(lambda: "numpy" in sys.modules)  # begun
    pid = os.fork()
    if not pid:
        import numpy as np
        assert np.ones(3).sum() == 3
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    wait(lambda: learned() == 1)
    """
    )


def test_it_stops_and_starts_again(board_dir):
    run(
        """
    for i in range(3):
        worker_model.start()
        worker_model.start()  # has no effect
        work(1000)
        wait(lambda: learned() >= 1)
        assert [t.name for t in threading.enumerate()].count("dwsr-model") == 1
        worker_model.stop()
        worker_model.stop()
        assert "dwsr-model" not in [t.name for t in threading.enumerate()]
        assert worker_model.forecast(inputs(5), "work") is None is worker_model.figures()
    """
    )


def test_a_probe_that_was_stopped_and_started_again(board_dir):
    run(
        """
    worker_model.start()
    work(1000)
    wait(lambda: learned() == 1)
    dwsr_probe.stop()
    time.sleep(0.6)
    dwsr_probe.start()
    work(2000)
    wait(lambda: learned() == 2)
    """
    )


def test_the_program_ends_while_it_works(board_dir):
    started = time.monotonic()
    done = run(
        """
    import numpy as np
    worker_model.start()
    for n in range(1, 400): work(n)
    wait(lambda: learned() > 5)
    """
    )
    assert done.stderr == "" and time.monotonic() - started < 300


@pytest.mark.parametrize("way", ["without numpy", "a fault of ours", "a damaged board"])
def test_a_failure_is_one_line_and_a_figure(board_dir, way):
    done = run(
        f"""
    way = {way!r}
    if way == "without numpy":
        sys.modules["numpy"] = None
    worker_model.start()
    if way == "a fault of ours":
        from dwsr_probe.worker_model import learning
        learning.LearningThread._learn = lambda *_: 1 / 0
    if way == "a damaged board":
        from dwsr_probe.board import Board
        def frames(*_): raise _core.BoardError("damaged")
        Board.frames = frames
    with dwsr_probe.task("x"): pass
    wait(lambda: worker_model.figures()["failed"])
    assert worker_model.forecast(inputs(5), "x") is None
    print("the job goes on")
    """
    )
    assert done.stdout == "the job goes on\n"
    lines = done.stderr.splitlines()
    assert [line for line in lines if "the model in this worker ends" in line] == lines[:1], lines


# -- killed predecessors


class Predecessors:
    """Rows of killed workers, in pieces, as dask/dead.py has them."""

    def __init__(self, *pieces):
        self.pieces = list(pieces)

    def piece_count(self):
        return len(self.pieces)

    def piece_rows(self, index):
        return self.pieces[index]

    def piece_lost(self, index):
        return 7 if index == 0 else 0


def row(seq, name="work", state="ok", peak=MIB, size=1000):
    from dwsr_probe.record import TaskRecord, to_row

    return to_row(
        TaskRecord(
            seq=seq,
            task_name=name,
            state=state,
            inputs=[{"dtype": "float64", "shape": [size], "nbytes": 8 * size}],
            input_bytes=8 * size,
            alloc_peak_bytes=peak,
            overlap=0,
        )
    )


def test_killed_tasks_of_a_predecessor_are_learned_first(board_dir, monkeypatch):
    rows = [row(seq, size=1000 + seq) for seq in range(1, 501)]
    pieces = [rows[:250], [*rows[250:], row(501, "doomed", "killed", 900 * MIB)]]
    thread = learning.LearningThread(Predecessors(*pieces))
    learned = []
    monkeypatch.setattr(
        learning.LearningThread, "_learn", lambda self, record, _: learned.append(record)
    )
    while thread._take_turn():
        pass
    assert [learned[0].task_name, learned[0].state] == ["doomed", "killed"]
    figures = thread.figures()
    assert (
        figures["lost"] == 7
        and len(learned) + sum(figures[name] for name in MODEL_OUTCOMES if name != "lost")
        == len(rows) + 1
    )


def test_pieces_that_are_handed_over_meanwhile(board_dir):
    predecessors = Predecessors([row(1)], [row(2)])
    thread = learning.LearningThread(predecessors)
    predecessors.pieces, count = [], predecessors.piece_count
    predecessors.piece_count = lambda: 2
    while thread._take_turn():
        pass
    predecessors.piece_count = count
    assert not thread._take_turn() and thread.figures()["learned"] == 0
    predecessors.pieces = [[row(3)]]
    while thread._take_turn():
        pass
    assert thread.figures()["learned"] == 1


def test_threads_that_ask_at_the_same_moment(probe):
    """Beside the learning thread: each gets an answer or None, and nothing raises."""
    import dwsr_probe
    from dwsr_probe import worker_model

    worker_model.start()
    try:
        errors, answered = [], []

        def ask(seed):
            chance = random.Random(seed)
            try:
                for _ in range(3000):
                    size = chance.randrange(50)
                    found = worker_model.forecast([{"nbytes": size}], f"g{size % 5}")
                    answered.append(found is not None)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for n in range(200):
            with dwsr_probe.task(f"g{n % 5}"):
                pass
        for thread in threads:
            thread.join()
        assert not errors and len(answered) == 12_000
        wait_until(lambda: worker_model.forecast([{"nbytes": 5}], "g0") is not None, "an answer")
        assert not worker_model.figures()["failed"]
    finally:
        worker_model.stop()
