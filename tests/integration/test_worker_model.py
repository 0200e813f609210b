"""The model inside the workers of real clusters: by plugin, by preload and under `run`."""

import json
import textwrap

import pytest

from tests.integration.test_dask import script

pytest.importorskip("distributed")

# In the workers: their figures, and an answer as soon as it is there
ASK = """
def figures():
    from dwsr_probe import worker_model
    return worker_model.figures()
def wait_for(condition):
    until = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < until, figures()
        time.sleep(0.02)
    return found
def ask(n, group, seen):
    from dwsr_probe import worker_model
    wait_for(lambda: figures()["learned"] >= seen)
    inputs = [{"type": "ndarray", "dtype": "float64", "shape": [n], "nbytes": 8 * n}]
    found = wait_for(lambda: worker_model.forecast(inputs, group))
    return [found.mean, found.bound, found.n, found.trust]
def smooth(x):
    y = x[:-1] + x[1:]
    return y * y
"""


def cluster(body, workers=1, threads=2, before="", processes=True):
    return (
        ASK
        + textwrap.dedent(f"""
if __name__ == "__main__":
    {before}
    with (
        LocalCluster(n_workers={workers}, threads_per_worker={threads}, processes={processes},
                     dashboard_address=None, memory_limit=0) as cluster,
        Client(cluster) as client,
    ):
""")
        + textwrap.indent(textwrap.dedent(body), " " * 8)
    )


def test_a_worker_answers_for_a_shape_that_it_has_not_seen(cli):
    """Each worker of its own records, with the nanny; off again with the plugin."""
    found = script(
        cli,
        cluster(
            """
        client.register_plugin(dwsr_probe.dask.Probe(worker_model=True))
        addresses = list(client.scheduler_info()["workers"])
        answers = {}
        for address in addresses:
            for n in (200_000, 400_000, 600_000, 800_000):
                x = client.submit(np.ones, n, pure=False, workers=[address])
                client.gather([
                    client.submit(smooth, x, pure=False, workers=[address]) for _ in range(3)
                ])
        for address in addresses:
            answers.update(client.run(ask, 5_000_000, "smooth", 16, workers=[address]))
        truth = []
        for address in addresses:
            x = client.submit(np.ones, 5_000_000, pure=False, workers=[address])
            client.submit(smooth, x, pure=False).result()
        frame = dwsr_probe.dask.records(client)
        truths = frame[(frame.task_name == "smooth") & (frame.input_bytes > 20_000_000)]
        on = client.run(figures)
        client.unregister_worker_plugin("dwsr-probe")
        off = wait_for(lambda: list(client.run(figures).values()) == [None, None])
        print(json.dumps([list(answers.values()), [int(n) for n in truths.alloc_peak_bytes],
                          list(on.values())]))
""",
            workers=2,
        ),
    )
    answers, truths, figures = found
    assert len(answers) == len(truths) == len(figures) == 2
    for (mean, bound, n, trust), truth in zip(answers, truths, strict=True):
        assert mean == pytest.approx(truth, rel=0.05) and mean <= bound < 1.3 * truth, answers
        assert n == 12 and trust in ("fair", "good")
    for found in figures:
        assert not found["failed"] and found["lost"] == found["refused"] == 0


def test_the_successor_of_a_killed_worker_learns_what_was_killed(cli):
    """Its nanny starts it; it takes over the board."""
    mean, bound, n, trust = script(
        cli,
        cluster(
            """
        client.register_plugin(dwsr_probe.dask.Probe(worker_model=True))
        before = client.submit(os.getpid).result()
        x = client.scatter(np.ones(1000))
        client.gather([client.submit(np.sum, x, pure=False) for _ in range(500)])
        def doomed(x):
            kept = np.ones(10_000_000)
            time.sleep(0.1)  # the board has it
            os.kill(os.getpid(), 9)
        try: client.submit(doomed, np.ones(2000), retries=0).result()
        except Exception as error: assert "KilledWorker" in type(error).__name__, error
        after = lambda: client.submit(os.getpid, pure=False).result() != before
        wait_for(after)
        wait_for(lambda: any(found for found in client.run(figures).values()))
        def killed():
            from dwsr_probe import worker_model
            model = worker_model._current._model
            return model is not None and "doomed" in model.names()
        wait_for(lambda: any(client.run(killed).values()))
        (found,) = client.run(ask, 2000, "doomed", 1).values()
        print(json.dumps(found))
""",
            threads=1,
        ),
        DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0",
    )
    assert n == 0 and bound > 80_000_000 and mean > 80_000_000 and trust == "low"


@pytest.mark.parametrize("option", ["on", "off"])
def test_under_run_it_is_an_option(cli, option):
    """Figures are on the board, so that the port of the run has them."""
    body = cluster(
        """
        x = client.submit(np.ones, 500_000)
        client.gather([client.submit(smooth, x, pure=False) for _ in range(5)])
        print(json.dumps([
            client.run(ask, 500_000, "smooth", 6) if OPTION == "on" else None,
            list(client.run(lambda: [n for n in sys.modules if "dwsr_probe.worker_model" in n
                                     or "dwsr_probe.predict" in n]).values()),
        ]))
        if OPTION == "on":
            from dwsr_probe.board import Board, list_boards
            boards = os.environ["DWSR_PROBE_BOARD_DIR"]
            def published():
                for path in list_boards(boards):
                    found = Board(path).facts().get("worker_model")
                    if found and found["learned"] >= 6: return found
            wait_for(published)
"""
    ).replace("OPTION", repr(option))
    from tests.integration.test_dask import CLUSTER

    words = ["--worker-model"] if option == "on" else []
    done, _ = cli.job(CLUSTER + "import json\n" + body, *words)
    assert done.returncode == 0, done.stderr
    answers, modules = json.loads(done.stdout.splitlines()[-1])
    if option == "off":
        assert modules == [[]]
        return
    ((mean, _, n, _),) = answers.values()
    assert n == 5 and mean == pytest.approx(2 * 4_000_000, rel=0.05)


def test_many_tiny_tasks_on_a_cluster(cli):
    """The thread keeps its budget, every record is counted, and failures are among those that
    were learned."""
    found = script(
        cli,
        cluster(
            """
        client.register_plugin(dwsr_probe.dask.Probe(worker_model=True))
        def tiny(i): return i
        def failing(i): raise ValueError(i)
        began = time.monotonic()
        failed = []
        for part in range(6):
            client.gather(client.map(tiny, range(1000 * part, 1000 * part + 1000)))
            future = client.submit(failing, part)
            failed.append(repr(future.exception()))
        def counted():
            from dwsr_probe import worker_model
            from dwsr_probe.live.process import MODEL_OUTCOMES
            found = figures()
            return sum(found[n] for n in MODEL_OUTCOMES) + len(worker_model._current._waiting)
        wait_for(lambda: list(client.run(counted).values()) == [6006])
        elapsed = time.monotonic() - began
        (found,) = client.run(figures).values()
        print(json.dumps([found, elapsed]))
"""
        ),
    )
    figures, elapsed = found
    assert figures["cpu_seconds"] <= 0.25 + 0.01 * (elapsed + 5) + 0.05, found
    assert figures["skipped_early"] == figures["lost"] == 0 and not figures["failed"]
    assert figures["expected"] + figures["skipped_repeat"] > 5000


def test_workers_in_one_process_share_it(cli):
    found = script(
        cli,
        cluster(
            """
        client.register_plugin(dwsr_probe.dask.Probe(worker_model=True))
        x = client.submit(np.ones, 500_000)
        client.gather([client.submit(smooth, x, pure=False) for _ in range(5)])
        wait_for(lambda: figures()["learned"] >= 6)
        names = [thread.name for thread in threading.enumerate()]
        print(json.dumps([names.count("dwsr-model"), ask(500_000, "smooth", 6)[2]]))
""",
            workers=2,
            processes=False,
        ),
    )
    assert found == [1, 5]


def test_its_thread_marks_no_task(cli):
    """What the thread allocates is nobody's, and tasks beside it stay exact."""
    found = script(
        cli,
        cluster(
            """
        client.register_plugin(dwsr_probe.dask.Probe(worker_model=True))
        def slow(x):
            time.sleep(1)
            return len(bytes(100_000))
        for n in range(20): client.submit(np.ones, 1000 + n).result()
        client.gather([client.submit(slow, i) for i in range(4)])
        frame = dwsr_probe.dask.records(client)
        slow = frame[frame.task_name == "slow"]
        print(json.dumps([list(slow.attribution), int(slow.alloc_peak_bytes.max())]))
"""
        ),
    )
    assert found[0] == ["exact"] * 4 and found[1] < 3 << 20
