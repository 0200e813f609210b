"""From the block of a dataset to the inputs of its tasks, as a run has shown them."""

import pytest

from dwsr_probe.fit import FitError
from dwsr_probe.fit.follow import Dataset, TaskOfRun, find_dataset, halo_of, inputs_at


def array(*shape, **more):
    nbytes = 4
    for n in shape:
        nbytes *= n
    return {"type": "ndarray", "dtype": "float32", "shape": list(shape), "nbytes": nbytes, **more}


DATASET = Dataset((64, 96, 96), 4, "float32", (256, 96, 96))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([array(64, 96, 96)], [(128, 96, 96)]),
        ([array(72, 96, 96)], [(136, 96, 96)]),  # a halo of four on both sides
        ([array(256, 96, 96)], [(256, 96, 96)]),  # the whole array
        ([array(32, 96, 96)], [(64, 96, 96)]),  # every second line
        ([array(128, 96, 96)], [(256, 96, 96)]),
        ([array(64, 96, 96), array(4, 96, 96)], [(128, 96, 96), (4, 96, 96)]),  # a neighbour's part
        ([array(2, 64, 96, 96)], [(2, 128, 96, 96)]),  # aligned at the last axes
        ([array(96)], [(192,)]),  # of no axis that is known: by volume
    ],
)
def test_inputs_at_twice_the_block(given, expected):
    found = inputs_at(given, DATASET, (128, 96, 96))
    assert [tuple(one["shape"]) for one in found] == expected
    for one in found:
        assert one["nbytes"] == array(*one["shape"])["nbytes"]


def test_a_smaller_block_has_no_longer_neighbours():
    found = inputs_at([array(64, 96, 96), array(4, 96, 96)], DATASET, (2, 96, 96))
    assert [one["shape"][0] for one in found] == [2, 2]


def test_chunks_that_are_put_together_keep_their_lengths():
    (found,) = inputs_at([array(16, 96, 96, count=4)], DATASET, (128, 96, 96), is_rechunked=True)
    assert found["shape"] == [16, 96, 96] and found["count"] == 8


def test_inputs_without_shape_are_scaled_by_volume():
    assert inputs_at([{"nbytes": 100}, {"type": "Dataset"}], DATASET, (128, 96, 96)) == [
        {"nbytes": 200},
        {"type": "Dataset"},
    ]


def test_the_halo_of_tasks():
    assert halo_of([array(64, 96, 96), array(4, 96, 96)], DATASET) == [4, 0, 0]
    assert halo_of([array(72, 96, 96)], DATASET) == [4, 0, 0]
    assert halo_of([array(64, 96, 96)], DATASET) == [0, 0, 0]


def test_the_dataset_is_what_tasks_read():
    found = find_dataset(
        {
            "open": TaskOfRun([array(256, 96, 96, lazy=True)], 100, None),
            "load": TaskOfRun([array(64, 96, 96, lazy=True)], 64 * 96 * 96 * 4, None),
            "smooth": TaskOfRun([array(72, 96, 96)], 1 << 24, None),
        }
    )
    assert found.block == (64, 96, 96) and found.shape == (256, 96, 96) and found.task == "load"
    assert found.itemsize == 4 and not found.is_table


def test_the_dataset_of_one_task_is_its_largest_input():
    tasks = {"smooth": TaskOfRun([array(72, 96, 96), array(3, 3)], 1 << 24, None)}
    assert find_dataset(tasks, asks_for_one=True).block == (72, 96, 96)


def test_blocks_that_rechunk_makes():
    chunks = array(16, 96, 96, lazy=True)
    made = {"type": "ndarray", "dtype": "float32", "shape": [64, 96, 96], "nbytes": 2359296}
    tasks = {
        "load": TaskOfRun([chunks], chunks["nbytes"], None),
        "rechunk-merge": TaskOfRun([array(16, 96, 96, count=4)], 2359296, made),
    }
    assert find_dataset(tasks).block == (64, 96, 96)


def test_partitions():
    table = {"type": "DataFrame", "dtype": None, "shape": [1000, 5], "nbytes": 48000, "late": True}
    found = find_dataset({"read_parquet": TaskOfRun([table], 100_000, None)})
    assert found.is_table and found.block == (1000, 5)


def test_nothing_to_scale():
    with pytest.raises(FitError, match="no block to scale"):
        find_dataset({"simulate": TaskOfRun([], 1 << 20, None)})
