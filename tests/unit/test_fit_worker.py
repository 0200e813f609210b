"""The memory of a worker, the time of a job, the choice between blocks, and the limits of a
cluster."""

import itertools

import numpy as np
import pytest

from dwsr_probe.fit import FitError, limits
from dwsr_probe.fit.candidates import candidate_blocks
from dwsr_probe.fit.chooser import LARGEST, TIME, choose
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.findings import bend_of, differs, first_call_bytes, refuse_leaks, trial_notes
from dwsr_probe.fit.limits import find_limits
from dwsr_probe.fit.steps import Step, block_inputs, needs_of
from dwsr_probe.fit.trials import TriedCall
from dwsr_probe.fit.worker import Layout, Shares, Worker, worker_memory
from dwsr_probe.predict import Model

MIB = 1 << 20
BASE = 200 * MIB
SHAPE = 512, 256, 256


def taught(factor=3.0, noise=0.0, name="f"):
    """A model of a function that needs so many times its input, as trials teach it."""
    model = Model()
    for number, shape in enumerate([(70, 60, 62), (140, 90, 83), (160, 260, 100)]):
        nbytes = 4 * int(np.prod(shape))
        model.learn(
            {
                "task_name": name,
                "inputs": [{"dtype": "float32", "shape": list(shape)}],
                "output": {"dtype": "float32", "shape": list(shape)},
                "output_bytes": nbytes,
                "alloc_peak_bytes": int(nbytes * factor * (1 + noise * (-1) ** number)),
            }
        )
    return model


def memory_of(blocks, threads=1, depth=(0, 0, 0), stored=None, model=None, first=0.0, **options):
    blocks = np.atleast_2d(blocks)
    layout = Layout(SHAPE, 4, depth, stored, **options)
    worker = Worker(1e12, BASE, threads)
    step = Step("f", "f", block_inputs([SHAPE], ["float32"], depth))
    needs = needs_of(model or taught(), step, blocks, 0.99)
    return worker_memory(blocks, layout, worker, [needs], first)


def size(block, around=0):
    lengths = [min(n, k + 2 * around) for n, k in zip(SHAPE, block, strict=True)]
    return 4 * int(np.prod(lengths))


# -- memory


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("block", [(64, 64, 64), (128, 256, 256), (16, 16, 256)])
def test_base_input_and_own_peak(threads, block):
    memory = memory_of(block, threads)
    assert memory.mean()[0] == pytest.approx(BASE + threads * 4 * size(block), rel=0.01)
    bound = memory.bound(0, 0.99)
    assert memory.mean()[0] < bound <= memory.most()[0] * 1.001


def test_a_bound_grows_with_what_is_not_known():
    bounds = [
        memory_of((128, 256, 256), 4, model=taught(noise=noise)).bound(0, 0.99)
        for noise in (0, 0.05, 0.3)
    ]
    assert bounds == sorted(bounds) and bounds[2] > 1.2 * bounds[0]
    memory = memory_of((128, 256, 256), 4, model=taught(noise=0.3))
    assert memory.bound(0, 0.5) < memory.bound(0, 0.99) < memory.bound(0, 0.9999)


def test_a_halo_belongs_to_the_input():
    block = 64, 64, 64
    plain, halo = (memory_of(block, 2, (depth,) * 3) for depth in (0, 4))
    added = halo.mean()[0] - halo.held[0] - plain.mean()[0]
    assert added == pytest.approx(2 * 4 * (size(block, 4) - size(block)), rel=0.01)


def test_first_calls_of_each_thread():
    plain, first = (memory_of((64, 64, 64), 3, first=found) for found in (0, 32 * MIB))
    assert first.mean()[0] - plain.mean()[0] == 3 * 32 * MIB


def test_reading_a_small_block_from_large_stored_chunks():
    """The chunk is decoded as a whole, beside its encoded bytes."""
    stored = 128, 256, 256
    memory = memory_of((1, 16, 16), 2, stored=stored)
    assert memory.load[0] == 2 * (size((1, 16, 16)) + 2 * size(stored))
    assert memory.held[0] == 2 * size(stored)  # kept by the threads that decode
    assert memory.mean()[0] == BASE + memory.held[0] + memory.load[0]
    # At most ten chunks are decoded at once
    many = memory_of((512, 256, 256), 1, stored=(8, 8, 8))
    assert many.load[0] == size(SHAPE) + 10 * 2 * size((8, 8, 8))


@pytest.mark.parametrize("threads", [1, 2, 5, 40])
@pytest.mark.parametrize(
    "block",
    [
        (512, 256, 256),
        (128, 256, 256),
        (128, 64, 256),
        (128, 64, 64),
        (512, 256, 32),
        (256, 32, 256),
    ],
)
def test_blocks_that_wait_for_their_neighbours(block, threads):
    """`map_overlap`, played through: never more blocks are held than the formula says."""
    counts = [-(-n // k) for n, k in zip(SHAPE, block, strict=True)]
    order = list(itertools.product(*map(range, counts)))
    near = {
        place: {
            other
            for offset in itertools.product((-1, 0, 1), repeat=3)
            if (other := tuple(p + o for p, o in zip(place, offset, strict=True))) in set(order)
        }
        for place in order
    }
    left = {place: len(near[place]) for place in order}
    loaded, held, most = set(), set(), 0
    for begin in range(0, len(order), threads):
        now = order[begin : begin + threads]
        for place in now:
            held |= near[place] - loaded
            loaded |= near[place]
        most = max(most, len(held))
        for place in now:
            for other in near[place]:
                left[other] -= 1
                if not left[other]:
                    held.discard(other)
    memory = memory_of(block, threads, (2, 2, 2))
    found = memory.held[0] / size(block)
    if len(order) > 1:
        assert most <= found <= len(order) and found <= 3 * most + threads + 1
    else:
        assert found == 0


def test_blocks_that_are_made_by_rechunk():
    stored, block = (64, 256, 256), (512, 16, 256)
    memory = memory_of(block, 2, stored=stored, is_rechunked=True)
    decoded = 3 * 2 * size(stored)
    rest = 2 * (size(SHAPE) - size(block))
    assert memory.held[0] == rest + size(SHAPE) + size(block) + decoded
    same = memory_of(stored, 2, stored=stored, is_rechunked=True)
    assert same.held[0] == 2 * size(stored) + decoded and same.load[0] == 2 * size(stored)
    # Also where their neighbours are waited for
    halo = memory_of(block, 2, (0, 2, 0), stored=stored, is_rechunked=True)
    waiting = memory_of(block, 2, (0, 2, 0))
    assert halo.held[0] == waiting.held[0] + memory.held[0]


def test_results_that_stay():
    plain, kept = (memory_of((64, 256, 256), keeps_results=keeps) for keeps in (False, True))
    assert kept.held[0] - plain.held[0] == pytest.approx(size(SHAPE), rel=0.01)


def test_the_step_that_needs_most_decides():
    blocks = np.array([[64, 64, 64]])
    layout, worker = Layout(SHAPE, 4, (0, 0, 0)), Worker(1e12, BASE, 2)
    inputs = block_inputs([SHAPE], ["float32"], (0, 0, 0))
    needs = [
        needs_of(taught(factor, name=name), Step(name, name, inputs), blocks, 0.99)
        for name, factor in (("small", 1), ("large", 5), ("middle", 2))
    ]
    memory = worker_memory(blocks, layout, worker, needs)
    assert memory.deciding(0).step.label == "large"
    assert memory.mean()[0] == pytest.approx(BASE + 2 * 6 * size((64, 64, 64)), rel=0.01)


def test_inputs_of_several_arrays():
    inputs = block_inputs([(100, 200), (200,), (7,), (100, 1)], ["f4", "f8", "i2", "?"], (1, 0))
    assert inputs((10, 50)) == [
        {"dtype": "f4", "shape": [12, 50], "nbytes": 2400},
        {"dtype": "f8", "shape": [50], "nbytes": 400},
        {"dtype": "i2", "shape": [7], "nbytes": 14},
        {"dtype": "?", "shape": [12, 1], "nbytes": 12},
    ]
    assert inputs((100, 200))[0]["shape"] == [100, 200]  # no halo beyond the array


# -- time


def test_measured_durations_are_interpolated():
    durations = Durations([(1e6, 1e-3), (1e6, 3e-3), (1e6, 2e-3), (1e8, 0.4)])
    found = durations.compute(np.array([1e3, 1e6, 1e7, 1e8, 1e10]))
    assert found == pytest.approx([2e-6, 2e-3, 0.03, 0.4, 40])
    assert Durations([]).compute(np.array([1e6])) == 0


def test_the_time_of_a_job():
    """Four blocks on three threads take two rounds; they are started one after the other."""
    blocks, layout = np.array([[128, 256, 256], [512, 256, 256]]), Layout(SHAPE, 4, (0, 0, 0))
    durations = Durations([(1e6, 1e-3)], scheduling_s=1e-4, start_s=1e-3)
    found = durations.job(blocks, layout, Worker(1e9, BASE, 3), layout.block_bytes(blocks))
    one = size(blocks[0]) * 1e-9
    assert found == pytest.approx([4e-4 + 4e-3 + 2 * one, 1e-4 + 1e-3 + 4 * one])


def test_cutting_through_stored_chunks_costs_time():
    layout = Layout(SHAPE, 4, (0, 0, 0), (64, 256, 256))
    durations = Durations([(1e6, 1e-3)], read_seconds_per_byte=1e-8)
    blocks = np.array([[64, 256, 256], [72, 256, 256], [16, 256, 256]])
    aligned, across, small = durations.job(blocks, layout, Worker(1e9, BASE, 1), np.ones(3))
    assert across > 1.5 * aligned and small > 3 * aligned


# -- the choice


class Chosen:
    """All candidates of an axis, with a memory and a time that the test gives."""

    def __init__(self, n, seconds, allowed, objective=TIME, enough=None, bytes_each=10):
        self.blocks = candidate_blocks([n])
        self.lengths = self.blocks[:, 0].tolist()
        self.bytes_each = bytes_each
        sizes = self.blocks[:, 0].astype(float)
        many = np.array([enough is None or length <= enough for length in self.lengths])
        times = np.array([float(seconds(length)) for length in self.lengths])
        tiers = [many, np.ones(len(sizes), bool)]
        shares = Shares([(self, allowed)])
        found = choose(self.blocks, sizes, shares, times, tiers, objective, 0.99)
        self.block = None if found.place is None else self.lengths[found.place]
        self.larger = None if found.larger is None else self.lengths[found.larger]

    def least(self):
        return self.blocks[:, 0] * 0.5 * self.bytes_each

    def most(self):
        return self.blocks[:, 0] * 1.5 * self.bytes_each

    def bound(self, place, q):
        return float(self.lengths[place] * self.bytes_each)


def test_the_fastest_that_fits():
    # The bound of the threads together counts, not the sum of their bounds
    assert Chosen(1000, lambda n: 1000 / n, allowed=5000).block == 500
    assert Chosen(1000, lambda n: n, allowed=5000).block == 1
    assert Chosen(1000, lambda n: abs(n - 100) + 100, allowed=5000).block == 100


def test_of_blocks_nearly_as_fast_the_smallest():
    assert Chosen(1000, lambda n: 1 + (n < 100), allowed=1e9).block == 100
    assert Chosen(1000, lambda n: 1 + 0.04 * (n < 500) + (n < 100), allowed=1e9).block == 100
    assert Chosen(1000, lambda n: 1 + 0.06 * (n < 500) + (n < 100), allowed=1e9).block == 500


def test_the_largest_that_fits():
    found = Chosen(1000, lambda n: n, allowed=2500, objective=LARGEST)
    assert found.block == 250 and found.larger == 334
    assert Chosen(1000, lambda n: n, allowed=1e9, objective=LARGEST).larger is None


def test_blocks_for_all_threads_go_first():
    assert Chosen(1000, lambda n: 1000 / n, allowed=1e9, enough=250).block == 250
    assert Chosen(1000, lambda n: 1000 / n, allowed=1e9, enough=0).block == 1000


def test_nothing_fits():
    found = Chosen(1000, lambda n: n, allowed=9)
    assert found.block is None and found.larger is None


# -- what the trials show


def tried(need, other=None, kept=0, first=0, nbytes=MIB, reason=None):
    record = {"inputs": [{"dtype": "uint8", "shape": [nbytes]}], "input_bytes": nbytes}
    return TriedCall((nbytes,), record, need, other, first, kept, 1e-3, 0.0, reason)


def notes(*calls, form="memory", first=0.0):
    model = Model()
    for call in calls:
        for need in {call.need_bytes, call.other_need_bytes or call.need_bytes}:
            model.learn(
                {"task_name": "f", "inputs": call.record["inputs"], "alloc_peak_bytes": need}
            )
    return trial_notes(calls, model, "f", form, first)


def test_memory_in_proportion_to_the_block_needs_no_word():
    assert notes(*(tried(3 * n * MIB, 3 * n * MIB, nbytes=n * MIB) for n in (1, 4, 16))) == []
    assert notes(*(tried(MIB + n * MIB, nbytes=n * MIB) for n in (1, 4, 16))) == []
    assert notes(*(tried(n, nbytes=n * MIB) for n in (100, 50, 900))) == []  # next to nothing


def test_memory_that_depends_on_values():
    (note,) = notes(tried(2 * MIB, 3 * MIB), tried(8 * MIB, 8 * MIB, nbytes=4 * MIB))
    assert note.startswith("memory depends on values: two blocks of 1048576 needed 2.0 MiB and 3.0")
    assert "the bound is wider" in note
    assert not differs(tried(MIB, MIB + 1000)) and not differs(tried(MIB))


BLOCKS = (107, 47, 52), (92, 137, 83), (107, 162, 242)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.2, 1.5, 2.0])
def test_memory_that_is_not_in_proportion(exponent):
    """The bound holds for blocks that are 20 times as large as the largest that was tried."""
    model, calls = Model(), []
    for shape in BLOCKS:
        nbytes = 4 * int(np.prod(shape))
        inputs = [{"dtype": "float32", "shape": list(shape)}]
        need = int(MIB * (nbytes / MIB) ** exponent)
        model.learn({"task_name": "f", "inputs": inputs, "alloc_peak_bytes": need})
        record = {"inputs": inputs, "input_bytes": nbytes}
        calls.append(TriedCall(shape, record, need, None, 0, 0, 1e-3, 0.0, None))
    found = trial_notes(calls, model, "f", "memory", 0.0)
    assert bool(found) == (exponent != 1)
    if found:
        assert found[0].startswith("memory is not in proportion to the size of the block: the")
    bend = bend_of(calls, model, "f")
    assert (bend is not None) == (exponent > 1)
    block = np.array([[512, 512, 320]])
    inputs_of = block_inputs([block[0]], ["float32"], (0, 0, 0))
    needs = needs_of(model, Step("f", "f", inputs_of, bend=bend), block, 0.99)
    truth = MIB * (4 * np.prod(block) / MIB) ** exponent
    assert needs.upper[0] >= truth and needs.joint_upper(0, 3, 0.99) >= 3 * truth
    if exponent >= 1:
        assert needs.upper[0] < 2 * truth and needs.mean[0] == pytest.approx(truth, rel=0.05)
    assert bend is None or bend.need(np.array([1.0, bend.input_bytes])).tolist() == [0, 0]


def test_memory_that_depends_on_values_has_no_power():
    model = Model()
    calls = [tried(n * n * MIB, n * MIB, nbytes=n * MIB) for n in (2, 4, 16)]
    assert bend_of(calls, model, "f") is None


def test_other_notes():
    found = notes(tried(MIB, reason="shared"), form="made up", first=32 * MIB)
    assert len(found) == 3 and "random values" in found[0]
    assert "may miss memory (shared)" in found[1] and "32.0 MiB more" in found[2]


def test_first_calls_that_are_worth_a_word():
    assert first_call_bytes([tried(MIB, first=MIB // 2), tried(MIB)]) == 0
    assert first_call_bytes([tried(MIB, first=3 * MIB), tried(MIB)]) == 3 * MIB
    assert first_call_bytes([tried(1000 * MIB, first=3 * MIB)]) == 0


def test_leaks():
    refuse_leaks("f", [tried(MIB, kept=MIB), tried(MIB, kept=0)], 1000 * MIB)
    refuse_leaks("f", [tried(MIB, kept=1000), tried(MIB, kept=1000)], 1000 * MIB)
    with pytest.raises(FitError, match=r"about 1000.0 MiB by the end of the job"):
        refuse_leaks("f", [tried(MIB, kept=MIB), tried(MIB, kept=MIB)], 1000 * MIB)


# -- limits


class Client:
    def __init__(self, *workers, refuses_words=False):
        self.workers, self.refuses_words = workers, refuses_words

    def scheduler_info(self, **options):
        if options and self.refuses_words:
            raise TypeError("unexpected keyword argument 'n_workers'")
        return {"workers": dict(enumerate(self.workers))}


def worker(limit, threads=2, memory=100 * MIB):
    return {"memory_limit": limit, "nthreads": threads, "metrics": {"memory": memory}}


@pytest.mark.parametrize("refuses_words", [False, True])
def test_limits_of_a_cluster(refuses_words):
    client = Client(worker(3 << 30, 4), worker(2 << 30, 2, 300 * MIB), refuses_words=refuses_words)
    found = find_limits(client=client)
    assert (
        found[:4] == (2 << 30, 4, 2, 300 * MIB) and found.source == "limit of the cluster's workers"
    )
    assert find_limits("1GiB", 3, 7, client)[:3] == (1 << 30, 3, 7)
    assert find_limits("900GiB", client=client).memory_bytes == 900 << 30  # other machines


def test_a_cluster_without_limits(monkeypatch):
    monkeypatch.setattr(limits, "available_limit_bytes", lambda: 5 << 30)
    assert find_limits(client=Client(worker(0))).memory_bytes == 5 << 30
    nothing = {"memory_limit": None, "nthreads": 1}  # has not sent its first metrics yet
    assert find_limits(client=Client(nothing))[:4] == (5 << 30, 1, 1, None)


def test_a_cluster_without_workers():
    with pytest.raises(FitError, match=r"no workers yet; wait for them"):
        find_limits(client=Client())
    assert find_limits("1GiB", 2, client=Client()).threads == 2


def test_limits_of_this_machine(monkeypatch):
    monkeypatch.setattr(limits, "running_client", lambda: None)
    monkeypatch.setattr(limits, "machine_bytes", lambda: 8 << 30)
    monkeypatch.setattr(limits, "available_limit_bytes", lambda: 6 << 30)
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    assert find_limits()[:4] == (6 << 30, 12, 1, None)
    assert find_limits("8GiB", 3, 4)[:3] == (8 << 30, 3, 4)
    with pytest.raises(FitError, match=r"9.0 GiB for a worker is more than the 8.0 GiB of this"):
        find_limits("9GiB")


@pytest.mark.parametrize("name", ["threads", "workers"])
@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, float("nan")])
def test_counts_that_are_none(name, count):
    with pytest.raises(FitError, match=f"{name} is a whole number from 1"):
        find_limits("1GiB", **{name: count})
    assert find_limits("1GiB", **{name: np.int64(3)})[1 if name == "threads" else 2] == 3


@pytest.mark.parametrize("memory", ["much", "-1", -5, "1e400", float("nan"), None.__class__])
def test_memory_that_is_none(memory):
    with pytest.raises(ValueError, match=r"bytes|size|number"):
        find_limits(memory)


def test_no_memory_at_all():
    with pytest.raises(FitError, match="a worker without memory runs nothing"):
        find_limits(0)
