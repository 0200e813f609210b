"""The tests behind `report --compare`, beside SciPy's, and what is compared with what."""

import io
import json
import random
import re
from itertools import combinations, product

import pytest
from scipy import stats

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.compare.comparison import Comparison
from dwsr_probe.report.compare.noise import exceedance_test, holm, rank_test
from dwsr_probe.report.compare.page import page_of
from dwsr_probe.report.compare.table import change_text, print_comparison
from dwsr_probe.report.groups import NoSuchTask
from dwsr_probe.store import Store
from tests.unit.test_table import Terminal
from tests.unit.test_task import HOSTILE

MIB = 1 << 20


@pytest.mark.parametrize(
    ("n", "m"), [(3, 3), (5, 5), (8, 9), (10, 10), (1, 12), (15, 20), (40, 30)]
)
def test_one_stratum_is_mann_whitney(n, m):
    rng = random.Random(n * 100 + m)
    a, b = [rng.gauss(0, 1) for _ in range(n)], [rng.gauss(0.7, 1) for _ in range(m)]
    expected = stats.mannwhitneyu(
        a, b, method="exact" if n + m <= 20 else "asymptotic", use_continuity=False
    ).pvalue
    assert rank_test([(a, b)])[0] == pytest.approx(expected)


def test_ties_are_exact_by_enumeration():
    a, b = [1, 1, 2, 2, 3], [2, 3, 3, 4, 4, 4]
    ranks = stats.rankdata(a + b)
    found = abs(ranks[5:].sum() - 36)
    draws = [abs(sum(draw) - 36) for draw in combinations(ranks, 6)]
    p, least = rank_test([(a, b)])
    assert p == pytest.approx(
        sum(d >= found - 1e-9 for d in draws) / len(draws)
    ) and least == pytest.approx(sum(d >= max(draws) - 1e-9 for d in draws) / len(draws))


def test_pairs_are_a_sign_test_and_too_few_say_so():
    assert rank_test([([i], [i + 0.1]) for i in range(12)])[0] == pytest.approx(2 / 2**12)
    assert rank_test([([1], [2])]) == (1.0, 1.0)  # one each
    assert rank_test([([1, 1, 1], [2, 2, 2])])[1] == pytest.approx(0.1)
    assert (
        rank_test([([5] * 9, [5] * 9)])
        == (1.0, 1.0)
        == rank_test([([], [1])])
        == exceedance_test([([], [1])])
        == exceedance_test([([5] * 9, [5] * 9)])
    )
    # two are above; a third cannot be, because of the tie
    assert exceedance_test([([1, 2, 3], [3, 4, 5])]) == pytest.approx(
        (3 / 6 * 2 / 5, 3 / 6 * 2 / 5)
    )


@pytest.mark.parametrize("strata", [1, 4])
def test_by_chance_as_often_as_it_says(strata):
    rng = random.Random(strata)

    def figures(at):
        return [rng.gauss(at, 1) for _ in range(rng.randint(2, 9))]

    found = [rank_test([(figures(s), figures(s)) for s in range(strata)])[0] for _ in range(1_500)]
    assert 0.02 < sum(p <= 0.05 for p in found) / len(found) < 0.07
    largest = [
        exceedance_test([(figures(0), figures(0)) for _ in range(strata)])[0] for _ in range(1_500)
    ]
    assert sum(p <= 0.05 for p in largest) / len(largest) < 0.07


def test_the_largest_by_enumeration():
    """Over all ways to draw B's tasks within each stratum, as often as it says."""
    strata = [[1.0, 1.2, 1.4, 1.1], [0.9, 1.3, 1.5], [1.05, 1.25]]
    drawn = [
        list(combinations(range(len(values)), n))
        for values, n in zip(strata, (2, 2, 1), strict=True)
    ]
    found = []
    for places in product(*drawn):
        split = [
            ([v for i, v in enumerate(values) if i not in of_b], [values[i] for i in of_b])
            for values, of_b in zip(strata, places, strict=True)
        ]
        found.append(exceedance_test(split))
    (least,) = {round(least, 12) for _, least in found}
    assert least == pytest.approx(min(p for p, _ in found))
    for p, _ in found:
        assert sum(other <= p + 1e-12 for other, _ in found) / len(found) == pytest.approx(p)


def test_holm_asks_only_what_could_be_answered():
    assert holm([(0.01, 0.001), (0.02, 0.001), (0.5, 0.3), (0.04, 0.01)], 0.05) == pytest.approx(
        [0.03, 0.04, None, 0.04]
    )
    assert holm([], 0.05) == []


def store_of(tasks):
    store = Store.in_memory()
    store.add_tasks(
        [
            TaskRecord(seq=i, process="p", **{"state": "ok", "duration": 1.0, "overlap": 0, **task})
            for i, task in enumerate(tasks, 1)
        ]
    )
    return store


def task(name, peak, size=MIB, **more):
    return {
        "task_name": name,
        "alloc_peak_bytes": int(peak),
        "inputs": [{"dtype": "uint8", "shape": [size]}],
        "input_bytes": size,
        **more,
    }


def only(a, b):
    (name,) = Comparison(store_of(a), store_of(b)).names
    return name


def spread(n, factor=1.0, seed=0, **more):
    rng = random.Random(seed)
    return [task("x", 10 * MIB * factor * rng.uniform(0.97, 1.03), **more) for _ in range(n)]


def test_growth_is_found_and_noise_is_not():
    grew = only(spread(12), spread(12, 1.2, seed=1))
    assert (
        grew.verdict == "grew"
        and grew.differences[0].change == pytest.approx(0.2, abs=0.03)
        and grew.differences[0].basis == "same inputs"
    )
    assert only(spread(12), spread(12, 0.8, seed=1)).verdict == "shrank"
    verdicts = [
        only(spread(12, seed=seed), spread(12, seed=seed + 1_000)).verdict for seed in range(300)
    ]
    assert sum(v in ("grew", "shrank", "largest grew") for v in verdicts) <= 0.08 * 300


def test_inputs_are_compared_with_the_same_inputs():
    """A of many small inputs and few large ones, B the other way: the medians differ, the
    operator does not."""

    def mix(small, large, factor=1.0):
        return [task("x", 3 * s * factor, s) for s in [MIB] * small + [8 * MIB] * large]

    name = only(mix(20, 5), mix(5, 20))
    assert (
        name.verdict == "no difference"
        and name.differences[0].change == 0
        and name.differences[0].b_median_bytes > 7 * name.differences[0].a_median_bytes
    )
    assert only(mix(20, 5), mix(5, 20, 1.2)).verdict == "grew"


def test_other_block_sizes_are_compared_per_byte():
    name = only([task("x", 3 * MIB)] * 10, [task("x", 24 * MIB, 8 * MIB)] * 10)
    (d,) = name.differences
    assert (name.verdict, d.basis, d.note) == (
        "no difference",
        "per input byte",
        "blocks: 1.0 MiB in A, 8.0 MiB in B; B's tasks needed 24.0 MiB in the median",
    )
    worse = Comparison(
        store_of([task("x", 3 * MIB)] * 10), store_of([task("x", 32 * MIB, 8 * MIB)] * 10)
    )
    assert worse.names[0].verdict == "grew" and worse.objections(0.1) == [
        ("x", "own peak grew by 33.3 % (per input byte)")
    ]
    # smaller blocks with a constant part: more per byte, less per task, no failure
    small = Comparison(
        store_of([task("x", 24 * MIB, 8 * MIB)] * 10), store_of([task("x", 4 * MIB)] * 10)
    )
    assert small.names[0].verdict == "grew" and small.objections(0.1) == []


def bars(page):
    return [float(width) for width in re.findall(r'style="width:([\d.]+)%"', page)]


@pytest.mark.parametrize(("peak", "size"), [(16, 8), (4, 1), (24, 8), (32, 8)])
def test_what_is_shown_has_the_direction_of_its_verdict(peak, size):
    """B has other blocks, which need less, the same or more per byte. Medians and bars are of
    what the verdict compares; it says that sizes differ."""
    compared = Comparison(
        store_of([task("x", 3 * MIB + i, MIB + i) for i in range(10)]),
        store_of([task("x", peak * MIB + i, size * MIB + 64 + i) for i in range(10)]),
    )
    (d,) = compared.names[0].differences
    per_byte = peak / size / 3
    assert d.b_like_bytes / d.a_like_bytes == pytest.approx(
        per_byte, rel=0.01
    ) and d.change == pytest.approx(per_byte - 1, abs=0.01)
    above, below = bars(page_of(compared, None))
    assert below / above == pytest.approx(per_byte, rel=0.02)
    file = io.StringIO()
    print_comparison(compared, None, file)
    word = {"grew": "grew per byte", "shrank": "shrank per byte"}.get(d.verdict, d.verdict)
    assert d.verdict == ("shrank" if per_byte < 1 else "no difference" if per_byte == 1 else "grew")
    for shown in (file.getvalue(), page_of(compared, None)):
        assert (
            f"1 task name: 1 {word} (" in shown
            and word in shown
            and "blocks: 1.0 MiB in A" in shown
            and "Block sizes differ in 1 task name" in shown
        )


def test_medians_of_other_mixes_have_the_direction_of_the_verdict():
    """More large blocks in B: the median of all tasks grows, each block needs less."""
    a, b = (
        [task("x", 3 * s, s) for s in [MIB] * 20 + [8 * MIB] * 5],
        [task("x", 2 * s, s) for s in [MIB] * 5 + [8 * MIB] * 20],
    )
    compared = Comparison(store_of(a), store_of(b))
    (d,) = compared.names[0].differences
    above, below = bars(page_of(compared, None))
    assert (
        d.verdict == "shrank"
        and d.b_median_bytes > d.a_median_bytes
        and d.b_like_bytes < d.a_like_bytes
        and below < above
    )


def test_inputs_of_unknown_size_in_part():
    """By the bytes that are known; if none are, that is said, and nothing is judged."""

    def lazy(peak, size, *more):
        return task(
            "x",
            peak,
            None,
            inputs=[{"type": "Lazy", "dtype": None, "shape": None, "nbytes": None}, *more],
        )

    def known(size):
        return {"dtype": "uint8", "shape": [size], "nbytes": size}

    partly = only(
        [lazy(3 * MIB, MIB, known(MIB))] * 9, [lazy(24 * MIB, 8 * MIB, known(8 * MIB))] * 9
    )
    assert (partly.verdict, partly.differences[0].basis) == ("no difference", "per input byte")
    other = {"type": "Other", "dtype": None, "shape": None, "nbytes": None}
    unknown = only([lazy(3 * MIB, MIB)] * 9, [lazy(24 * MIB, MIB, other)] * 9)
    assert (unknown.verdict, unknown.differences[0].basis, unknown.differences[0].note) == (
        "cannot tell",
        "all tasks",
        "the sizes of the inputs are not known",
    )
    # what is not known may have grown, with what is known being the same
    grew = only([lazy(3 * MIB, MIB, known(MIB))] * 9, [lazy(24 * MIB, MIB, known(MIB))] * 9)
    assert grew.verdict == "cannot tell" and grew.differences[0].p is None
    assert grew.differences[0].note == "the sizes of the inputs are not known"


def test_sources_are_compared_by_what_they_return():
    def source(size, peak, **more):
        return task(
            "random",
            peak,
            2_496,
            output={"dtype": "float64", "shape": [size // 8]},
            output_bytes=size,
            **more,
        )

    larger = only([source(MIB, 2 * MIB)] * 9, [source(8 * MIB, 16 * MIB)] * 9)
    assert (larger.verdict, larger.differences[0].basis, larger.differences[0].note) == (
        "no difference",
        "per output byte",
        "blocks: 1.0 MiB in A, 8.0 MiB in B; B's tasks needed 16.0 MiB in the median",
    )
    worse = only([source(MIB, 2 * MIB)] * 9, [source(MIB, 3 * MIB)] * 9)
    assert (worse.verdict, worse.differences[0].basis) == ("grew", "same output")


def test_parts_of_blocks_of_other_sizes_are_compared_by_what_is_returned():
    """Rechunking copies parts of its input: as much as it returns, however large the input is. With
    equal inputs, the task itself is compared."""

    def part(size, of, peak=None):
        output = {"output": block(size), "output_bytes": size}
        return graph(None, size if peak is None else peak, [block(of)], ["getitem"], **output)

    small, large = [part(MIB, 16 * MIB)] * 9, [part(6 * MIB, 32 * MIB)] * 9
    for a, b, size, b_size in ((small, large, 1.0, 6.0), (large, small, 6.0, 1.0)):
        same = only(a, b)
        assert (same.verdict, same.differences[0].basis, same.differences[0].note) == (
            "no difference",
            "per output byte",
            f"blocks: {size} MiB in A, {b_size} MiB in B; "
            f"B's tasks needed {b_size} MiB in the median",
        )
    worse = only(small, [part(6 * MIB, 32 * MIB, 12 * MIB)] * 9)
    assert (worse.verdict, worse.differences[0].basis) == ("grew", "per output byte")
    equal = only(small, [part(2 * MIB, 16 * MIB)] * 9)
    assert (equal.verdict, equal.differences[0].basis) == ("grew", "same inputs")
    # a sum of whole blocks depends on what it reads
    total = {"output": block(8), "output_bytes": 8}
    sums = [[graph("sum", n * MIB, [block(4 * n * MIB)], **total)] * 9 for n in (1, 8)]
    assert only(*sums).differences[0].basis == "per input byte"
    # so do tasks of which some return nothing
    views = [part(0, 32 * MIB)] * 4
    assert only(small, large[:4] + views).differences[0].basis == "per input byte"


def graph(name, peak, inputs, chain=None, **more):
    """A task of a Dask graph."""
    return task(
        "store-map",
        peak,
        None,
        key="('store-map-1', 0)",
        operation=name,
        chain=chain,
        inputs=inputs,
        **{"input_bytes": None, **more},
    )


def block(size, **more):
    return {"type": "ndarray", "dtype": "uint8", "shape": [size], "nbytes": size, **more}


def test_operations_under_one_prefix_are_rows_of_their_own():
    a = [graph(name, peak * MIB, [block(MIB)]) for name, peak in (("Rms", 1), ("Gst", 9))] * 9
    b = [graph(name, peak * MIB, [block(MIB)]) for name, peak in (("Rms", 3), ("Gst", 9))] * 9
    compared = Comparison(store_of(a), store_of(b))
    assert [(n.label, n.verdict) for n in compared.names] == [
        ("Rms", "grew"),
        ("Gst", "no difference"),
    ]
    text, page, data = forms(compared)
    assert "FAILED: Rms: own peak grew by 200.0 % (same inputs)" in text and "Rms" in page
    names = {
        "task_name": "store-map",
        "task_names": ["store-map"],
        "operation": "Rms",
        "chain": None,
        "label": "Rms",
    }
    assert data["names"][0].items() >= names.items()
    assert data["failures"] == [names | {"why": "own peak grew by 200.0 % (same inputs)"}]


def test_chains_are_compared_with_the_same_chain():
    """Of one operation; the labels are numbered, and a line says which is which."""
    short, long = ["getitem", "smooth"], ["getitem", "overlap", "smooth"]
    a = [graph("smooth", n * MIB, [block(MIB)], c) for n, c in ((2, short), (8, long))] * 9
    b = [graph("smooth", n * MIB, [block(MIB)], c) for n, c in ((2, short), (9, long))] * 9
    compared = Comparison(store_of(a), store_of(b))
    assert [(n.label, n.verdict) for n in compared.names] == [
        ("smooth (2 of 2)", "grew"),
        ("smooth (1 of 2)", "no difference"),
    ]
    text, page, data = forms(compared)
    assert "smooth (2 of 2): getitem → overlap → smooth\n" in text
    assert "getitem → overlap → smooth" in page and data["names"][0]["chain"] == long
    only_one = Comparison(store_of(a), store_of(b), "overlap")
    assert [n.label for n in only_one.names] == ["smooth (2 of 2)"]
    with pytest.raises(NoSuchTask, match=r"no task is called 'no'; there are smooth \(1 of 2\), "):
        Comparison(store_of(a), store_of(b), "no")


def test_other_chains_of_a_name_are_shown_and_never_judged():
    """Another release of Dask fuses other tasks."""
    a = [graph("smooth", 2 * MIB, [block(MIB)], ["getitem", "smooth"])] * 9
    b = [graph("smooth", 8 * MIB, [block(MIB)], ["getitem", "smooth", "store"])] * 9
    compared = Comparison(store_of(a), store_of(b))
    (name,) = compared.names
    (d,) = name.differences
    assert (name.label, name.verdict, d.change, d.p) == ("smooth", "cannot tell", 3, None)
    assert d.note == "other chains: getitem → smooth in A, getitem → smooth → store in B"
    assert compared.objections(0.1) == []
    # with the same chain in both, what is left over is new
    compared = Comparison(store_of(a), store_of(a + b))
    assert [n.verdict for n in compared.names] == ["no difference", "new"]
    # several that are left over, in one row
    other = [graph("smooth", MIB, [block(MIB)], ["smooth", "store"])] * 3
    (name,) = Comparison(store_of(a + other), store_of(b)).names
    assert (name.a.count, name.b.count) == (12, 9) and "2 chains in A" in name.differences[0].note


def test_a_run_without_operations_is_compared_by_task_name():
    """As those of earlier versions."""
    a = [task("store-map", 2 * MIB)] * 18
    b = [graph(name, 2 * MIB, [block(MIB)], input_bytes=MIB) for name in ("Rms", "Gst")] * 9
    (name,) = Comparison(store_of(a), store_of(b)).names
    assert (name.label, name.verdict, name.b.count) == ("store-map", "no difference", 18)


@pytest.mark.parametrize(
    "inputs",
    [
        [block(MIB, lazy=True)],  # read from a file: the block is allocated inside the task
        [block(MIB, late=True)],
        [block(MIB, count=2)],
        [block(MIB), block(MIB)],
        [{"type": "ndarray", "dtype": "uint8", "shape": [MIB], "nbytes": 1, "logical_bytes": MIB}],
        [{"type": "Dataset", "dtype": None, "shape": None, "nbytes": None}],
        [],
    ],
    ids=repr,
)
def test_same_inputs_are_the_same_in_everything(inputs):
    d = only([graph("f", MIB, [block(MIB)])] * 9, [graph("f", 3 * MIB, inputs)] * 8).differences[0]
    assert d.basis != "same inputs"


def test_equal_inputs_with_a_count_are_those_that_are_listed():
    a, b = [block(MIB), block(MIB), block(8)], [block(8), block(MIB, count=2)]
    d = only([graph("f", MIB, a)] * 9, [graph("f", 3 * MIB, b)] * 9).differences[0]
    assert (d.basis, d.verdict) == ("same inputs", "grew")


def test_blocks_of_files_are_compared_per_byte():
    a = [graph("load", 2 * MIB, [block(MIB, lazy=True)])] * 9
    b = [graph("load", 16 * MIB, [block(8 * MIB, lazy=True)])] * 9
    d = only(a, b).differences[0]
    assert (d.basis, d.verdict) == ("per input byte", "no difference")
    assert "blocks: 1.0 MiB in A, 8.0 MiB in B" in d.note


def test_logical_bytes_are_the_size_of_a_block():
    """np.broadcast_to and da.ones have blocks of one number."""

    def one(size):
        return {"dtype": "uint8", "shape": [size], "nbytes": 1, "logical_bytes": size}

    a, b = ([graph("f", 2 * n * MIB, [one(n * MIB)], input_bytes=1)] * 9 for n in (1, 8))
    d = only(a, b).differences[0]
    assert (d.basis, d.verdict) == ("per input byte", "no difference")


def test_what_all_tasks_read_is_not_a_block():
    """The array that blocks are stored into is as large as before, with blocks of any size."""
    target = block(64 * MIB)
    a, b = ([graph("f", 2 * n * MIB, [block(n * MIB), target])] * 9 for n in (1, 8))
    d = only(a, b).differences[0]
    assert (d.basis, d.verdict) == ("per input byte", "no difference")


def test_inputs_that_do_not_explain_the_memory_raise_no_alarm():
    nothing = {"type": "NoneType", "dtype": None, "shape": None, "nbytes": 16}
    a = [graph("finalize", 20 * MIB, [nothing | {"count": 4}])] * 9
    b = [graph("finalize", 30 * MIB, [nothing | {"count": 2}])] * 9
    compared = Comparison(store_of(a), store_of(b))
    assert compared.names[0].verdict == "cannot tell" and compared.objections(0.1) == []
    assert "too small to explain" in compared.names[0].differences[0].note


def test_graph_tasks_without_inputs_are_alike_if_there_are_as_many():
    """A task that makes its block and returns a sum: other blocks are other numbers of tasks."""
    small = {"output": {"dtype": "float64", "shape": [], "nbytes": 8}, "output_bytes": 8}
    a = [graph("f", 2 * MIB, [], **small)] * 16
    other_blocks = only(a, [graph("f", 8 * MIB, [], **small)] * 4)
    assert (other_blocks.verdict, other_blocks.differences[0].basis) == ("cannot tell", "all tasks")
    assert only(a, [graph("f", 8 * MIB, [], **small)] * 16).verdict == "grew"


def test_few_tasks_are_not_judged():
    name = only([task("x", MIB)], [task("x", 2 * MIB)])
    assert (
        name.verdict == "cannot tell"
        and name.differences[0].note == "one each"
        and name.differences[0].change == 1
    )
    assert (
        only([task("x", MIB)] * 3, [task("x", 2 * MIB)] * 2).differences[0].note
        == "3 and 2 tasks are too few"
    )
    assert only([task("x", MIB)], [task("x", MIB)]).verdict == "no difference"


def test_the_largest_can_grow_alone():
    a = [task("x", 10 * MIB)] * 40
    b = [task("x", 10 * MIB)] * 32 + [task("x", 30 * MIB)] * 8
    compared = Comparison(store_of(a), store_of(b))
    (d,) = compared.names[0].differences
    assert (d.verdict, d.change, d.largest_change) == (
        "largest grew",
        0,
        2,
    ) and compared.objections(0.1) == [
        ("x", "own peak of the largest grew by 200.0 % (same inputs)")
    ]
    assert only(a, b[:33]).verdict == "within noise"  # one of many may be chance


def test_small_differences_are_none():
    assert only([task("x", 24)] * 20, [task("x", 20_000)] * 20).verdict == "no difference"
    assert (
        only([task("x", 100 * MIB)] * 20, [task("x", 100.5 * MIB)] * 20).verdict == "no difference"
    )
    assert only([task("x", 0)] * 20, [task("x", MIB)] * 20).verdict == "grew"


def test_without_accounting_growth_of_tasks_that_ran_alone():
    def plain(growth, overlap=0):
        return {
            "task_name": "x",
            "rss_before_bytes": 5,
            "rss_peak_bytes": 5 + growth,
            "overlap": overlap,
        }

    name = only([plain(10 * MIB)] * 9, [plain(20 * MIB)] * 9)
    assert (name.verdict, name.differences[0].quantity, name.differences[0].basis) == (
        "grew",
        "rss growth",
        "all tasks",
    )
    beside = only([plain(10 * MIB, 3)] * 9, [plain(20 * MIB, 3)] * 9)
    assert beside.verdict == "cannot tell" and "ran beside others" in beside.note


def test_own_peaks_that_miss_memory_are_not_compared():
    def polars(growth, overlap=0):
        return task(
            "x",
            24,
            rss_before_bytes=5,
            rss_peak_bytes=5 + growth,
            overlap=overlap,
            attribution="shared",
            attribution_reason="foreign-allocator polars",
        )

    name = only([polars(10 * MIB)] * 9, [polars(20 * MIB)] * 9)
    assert (name.verdict, name.differences[0].quantity) == ("grew", "rss growth")
    beside = only([polars(10 * MIB, 3)] * 9, [polars(20 * MIB, 3)] * 9)
    assert beside.verdict == "cannot tell" and "attribution_reason" in beside.note


def test_devices_are_compared_too():
    def on(peak):
        return task(
            "x", MIB, gpu=[{"device": 0, "peak_bytes": peak}, {"device": 1, "peak_bytes": 7}]
        )

    name = only([on(10 * MIB)] * 9, [on(15 * MIB)] * 9)
    assert [(d.quantity, d.verdict) for d in name.differences] == [
        ("own peak", "no difference"),
        ("gpu peak", "grew"),
    ] and name.verdict == "grew"


def test_killed_new_and_vanished():
    a = [task("x", MIB)] * 4 + [task("old", MIB)]
    b = [task("x", 9 * MIB, state="killed")] * 4 + [task("fresh", MIB)]
    compared = Comparison(store_of(a), store_of(b))
    assert [(n.label, n.verdict) for n in compared.names] == [
        ("x", "cannot tell"),
        ("fresh", "new"),
        ("old", "vanished"),
    ]
    assert compared.names[0].note == "none of its tasks ended well in B" and compared.objections(
        0.1
    ) == [("x", "4 killed, none in the reference")]


def forms(compared):
    out = io.StringIO()
    print_comparison(compared, 0.1, out)
    return out.getvalue(), page_of(compared, 0.1), json.loads(compared.to_json(0.1))


def test_empty_runs_and_damaged_fields():
    text, page, data = forms(Comparison(store_of([]), store_of([])))
    assert (
        "Neither run has a task." in text
        and "Neither run has a task." in page
        and data["names"] == []
    )
    store = store_of([task("x", MIB)] * 3)
    store._db.execute("UPDATE tasks SET inputs = '[{\"sha', gpu = '[{\"dev'")
    text, page, data = forms(Comparison(store, store))
    assert data["names"][0]["verdict"] == "no difference" and "1 task name: 1 no difference" in text
    assert forms(Comparison(store_of([]), store))[2]["names"][0]["verdict"] == "new"


@pytest.mark.parametrize(
    "name",
    [
        *(n for n in HOSTILE if isinstance(n, str)),
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
    ],
    ids=lambda n: repr(n)[:20],
)
def test_hostile_names(name):
    name = name.encode("utf-8", "replace").decode()
    store = store_of([task(name, MIB)] * 3 + [task("killed " + name, MIB, state="killed")])
    text, page, data = forms(Comparison(store_of([]), store))
    assert name in [row["task_name"] for row in data["names"]]
    assert len(text.splitlines()) == 8 and "\x1b" not in text and "\0" not in text
    assert "<script" not in page and "<img" not in page and "\0" not in page and len(page) < 20_000


def test_changes_for_people():
    assert [change_text(x) for x in (None, 0.0, 0.201, -0.03, 11.0, -0.0001)] == [
        "–",
        "0.0 %",
        "+20.1 %",
        "−3.0 %",
        "×12",
        "0.0 %",
    ]


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (60, "task verdict median change"),
        (80, "task verdict median change largest"),
        (100, "task verdict of median change largest"),
        (0, "task verdict of median change largest duration count failed compared by"),
    ],
)
def test_columns_go_by_importance(monkeypatch, columns, titles):
    """Whole titles and one line a row; what it was compared by stands below. 0: a pipe has all."""
    monkeypatch.setenv("COLUMNS", str(columns or 60))
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal() if columns else io.StringIO()
    names = [f"step-{i}-of-the-seismic-pipeline" for i in range(3)]
    a, b = (
        [row | {"task_name": name} for name in names for row in rows]
        for rows in (spread(12), spread(12, 1.5, seed=1))
    )
    print_comparison(Comparison(store_of(a), store_of(b)), None, out)
    lines = out.getvalue().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("task"))
    assert " ".join(lines[head].split()) == titles
    rows = lines[head + 1 : head + 4]
    assert sorted(row[:6] for row in rows) == ["step-0", "step-1", "step-2"]
    assert all(
        "grew" in row and "+49" in row and row.endswith("same inputs") != bool(columns)
        for row in rows
    )
    if columns:
        assert max(map(len, lines)) <= columns
        assert lines[head + 4].startswith("compared by same inputs: step-")
