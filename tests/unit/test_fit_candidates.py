"""Blocks that an array can be cut into."""

import itertools

import numpy as np
import pytest

from dwsr_probe.fit.candidates import (
    axis_lengths,
    block_counts,
    candidate_blocks,
    chunks_of,
    stored_chunks_touched,
    thinned,
)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 101, 1000, 4096, 99_991])
def test_lengths_of_equal_blocks(n):
    """All lengths ceil(n / k) are there, unless the last block would be shorter than half."""
    found = axis_lengths(n, most=10**6)
    assert found == sorted(set(found)) and found[-1] == n
    for k in range(1, n + 1):
        length = -(-n // k)
        rest = n % length
        assert (length in found) == (rest == 0 or rest >= length / 2)


@pytest.mark.parametrize(
    ("n", "stored"), [(1000, 64), (1000, 100), (1000, 999), (7, 3), (512, 512)]
)
def test_lengths_of_whole_stored_chunks(n, stored):
    found = axis_lengths(n, stored)
    assert all(1 <= length <= n for length in found) and n in found
    fitting = [k * stored for k in range(1, n // stored + 1) if not n % (k * stored)]
    assert set(fitting) <= set(found)


def test_lengths_of_whole_chunks_go_first():
    few = axis_lengths(1000, 100, most=4)
    assert len(few) == 4 and all(length % 100 == 0 for length in few)
    more = axis_lengths(1000, 100, most=12)
    assert len(more) <= 12 and {100, 200, 500, 1000} <= set(more)


@pytest.mark.parametrize("least", [1, 10, 99, 100, 1000])
def test_no_block_is_shorter_than_its_halo(least):
    found = axis_lengths(100, 8, least)
    assert min(found) >= min(least, 100) and found[-1] == 100


def test_no_slivers():
    for n in range(1, 300):
        for length in axis_lengths(n, 7):
            assert n % length == 0 or n % length >= length / 2


def test_a_very_long_axis():
    """A billion elements have 63,000 lengths; those with equal ratios between them are kept."""
    found = candidate_blocks([10**9])[:, 0]
    assert 5_000 < len(found) <= 20_000 and found[-1] == 10**9
    ratios = found[1:] / found[:-1]
    assert ratios.max() <= 2


@pytest.mark.parametrize("most", [1, 2, 5, 50])
def test_thinned(most):
    lengths = list(range(1, 1001))
    found = thinned(lengths, most)
    assert 1 <= len(found) <= most and found == sorted(set(found)) and found[-1] == 1000
    assert most == 1 or found[0] == 1
    if most >= 5:  # as near to equal ratios as whole numbers are
        wanted = np.geomspace(1, 1000, most)
        nearest = {min(lengths, key=lambda n: abs(np.log(n / x))) for x in wanted}
        assert found == sorted(nearest)


def test_thinned_leaves_short_lists_alone():
    assert thinned([3, 1, 2], 3) == [3, 1, 2]
    assert thinned([1, 2], 0) == []


@pytest.mark.parametrize("axes", [1, 2, 3, 4, 6, 12])
def test_candidates_of_many_axes_are_few(axes):
    found = candidate_blocks([97] * axes)
    assert 1 <= len(found) <= 20_000
    assert [97] * axes in found.tolist()
    assert len({tuple(block) for block in found.tolist()}) == len(found)


def test_whole_axes_and_short_axes_are_not_cut():
    found = candidate_blocks([100, 60, 1], whole_axes={1})
    assert set(found[:, 1]) == {60} and set(found[:, 2]) == {1} and len(set(found[:, 0])) > 5
    assert candidate_blocks([100, 60], whole_axes={0, 1}).tolist() == [[100, 60]]


def test_each_axis_is_cut_by_itself():
    found = {tuple(block) for block in candidate_blocks([8, 4]).tolist()}
    assert found == set(itertools.product([1, 2, 3, 4, 8], [1, 2, 4]))


@pytest.mark.parametrize("block", [(4, 3), (7, 7), (1, 1), (10, 7), (3, 5)])
def test_chunks_cover_the_array(block):
    shape = (10, 7)
    chunks = chunks_of(shape, block)
    assert [sum(lengths) for lengths in chunks] == list(shape)
    assert [len(lengths) for lengths in chunks] == block_counts(shape, np.array([block]))[
        0
    ].tolist()
    assert [max(lengths) for lengths in chunks] == list(block)


def test_chunks_as_dask_has_them():
    da = pytest.importorskip("dask.array")
    x = da.ones((10, 7), chunks=(4, 3))
    assert chunks_of(x.shape, (4, 3)) == x.chunks
    assert x.rechunk(chunks_of(x.shape, (5, 7))).chunks == ((5, 5), (7,))


@pytest.mark.parametrize("stored", [1, 2, 3, 5, 8, 13, 20, 40])
@pytest.mark.parametrize("length", range(1, 21))
def test_stored_chunks_that_a_block_touches(stored, length):
    """Never less than the worst block does, and exact where edges are those of stored chunks."""
    n = 20
    worst = max(
        len({element // stored for element in range(start, min(n, start + length))})
        for start in range(0, n, length)
    )
    (found,) = stored_chunks_touched(np.array([[length]]), [stored], [n])
    assert worst <= found <= worst + 1
    if length % min(stored, n) == 0 or length == n:
        assert found == worst


def test_touched_chunks_of_several_axes():
    blocks = np.array([[10, 10], [5, 10], [15, 10], [100, 100]])
    found = stored_chunks_touched(blocks, [10, 10], [100, 100])
    assert found.tolist() == [1, 2, 3, 100]
