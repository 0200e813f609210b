"""One cell of the grid: an operator, a limit, a number of threads. All steps, in the order of work:
choose, run, try the rivals, time the best anew, and the largest block."""

import math
import time
from dataclasses import asdict, dataclass, field

import zarr

from dwsr_probe.fit import FitError, fit_blocks
from tests.bench import median
from tests.bench.fit import rivals
from tests.bench.fit.cluster import Cluster, Ran, job_of

_COUNT_MOST = 2000  # blocks of a rival: a scheduler in this process would disturb the next job
_ROUNDS = 5
_ROUNDS_OF_OTHERS = 0, 2, 4  # in which the other rivals run, too


@dataclass
class Choice:
    """What the fit answered, and what its block took. wall_s: of `fit_blocks`."""

    block: tuple[int, ...]
    bound_bytes: float
    expected_bytes: float
    allowed_bytes: float
    trials: int
    trial_s: float
    wall_s: float
    expected_s: float
    ran: Ran
    whole: list


@dataclass
class Cell:
    """tried: (block, Ran) of the candidates. medians: seconds, by who chose the block, of runs that
    took turns. runs: the single ones. blocks: of the rivals."""

    operator: str
    limit_bytes: int
    threads: int
    fastest: Choice | None = None
    largest: Choice | None = None
    blocks: dict = field(default_factory=dict)
    rivals: dict = field(default_factory=dict)
    tried: list = field(default_factory=list)
    runs: dict = field(default_factory=dict)
    error: str = ""

    def seconds(self, name, of=median):
        """Of the runs with this block; None: it did not run to its end."""
        found = self.runs.get(name)
        return of(found) if found else None

    def ratio(self, rival, of=median):
        """Seconds of our block beside the rival's; None: one of them did not end."""
        ours, other = self.seconds("ours", of), self.seconds(rival, of)
        return ours / other if ours and other else None

    def to_dict(self):
        return asdict(self)


def measured(operator, limit_bytes, threads, folder, seed):
    """The cell's steps. folder: where the array is, and where results go."""
    cell = Cell(operator.name, limit_bytes, threads)
    with Cluster(threads, limit_bytes) as cluster:

        def run(block, is_fresh=False):
            job = job_of(operator, f"{folder}/{operator.name}.zarr", block, f"{folder}/result.zarr")
            return cluster.run(job, is_fresh)

        try:
            plan, cell.fastest = _chosen(operator, limit_bytes, threads, folder, "time", run)
        except FitError as error:
            cell.error = str(error)
            return cell
        ours = cell.fastest.block
        cell.blocks = {
            "ours": ours,
            "auto": rivals.auto(operator),
            "even": rivals.even(operator, threads),
            "published": rivals.published(operator, plan),
        }
        known = {ours: cell.fastest.ran}
        for name in ("auto", "even", "published"):
            block = cell.blocks[name]
            if block is not None and block not in known:
                is_many = _count(operator, block) > _COUNT_MOST
                known[block] = Ran(failure="slow") if is_many else run(block)
            cell.rivals[name] = known.get(block)
        for block in rivals.candidates(operator, plan, seed):
            if block not in known:
                known[block] = run(block)
            cell.tried.append((block, known[block]))
        ended = [pair for pair in cell.tried if not pair[1].failure]
        if ended:
            cell.blocks["best"] = min(ended, key=lambda pair: pair[1].seconds)[0]
        cell.runs = _in_turn(cell.blocks, known, run)
        cell.largest = _chosen(operator, limit_bytes, threads, folder, "largest", run)[1]
    return cell


def _count(operator, block):
    return math.prod(-(-n // length) for n, length in zip(operator.shape, block, strict=True))


def _chosen(operator, limit_bytes, threads, folder, objective, run):
    array = zarr.open_array(f"{folder}/{operator.name}.zarr", mode="r")
    began = time.perf_counter()
    plan = fit_blocks(
        operator.function,
        array,
        memory=limit_bytes,
        threads=threads,
        workers=1,
        depth=operator.depth or 0,
        whole_axes=operator.whole if operator.is_told else None,
        objective=objective,
    )
    wall_s = time.perf_counter() - began
    return plan, Choice(
        plan.block,
        plan.bound_bytes,
        plan.expected_bytes,
        plan.allowed_bytes,
        len(plan.trials),
        plan.trial_seconds,
        wall_s,
        plan.seconds,
        run(plan.block, is_fresh=True),
        sorted(check.axis for check in plan.axes if check.must_stay_whole),
    )


def _in_turn(blocks, known, run):
    """Seconds of each, in runs that take turns. Those that failed before do not run again; blocks
    that are the same run once a round."""
    found = {name: [] for name in blocks}
    wanted = {name: block for name, block in blocks.items() if block and not known[block].failure}
    for number in range(_ROUNDS):
        done = {}
        for name, block in wanted.items():
            if name not in ("ours", "best") and number not in _ROUNDS_OF_OTHERS:
                continue
            if block not in done:
                done[block] = run(block).seconds
            if done[block] is not None:
                found[name].append(done[block])
    return found
