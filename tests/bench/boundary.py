"""A begin/end pair, beyond the kernel's own calls; and a block when no probe runs."""

import time

from tests.bench import Section, in_fresh_python, kernel, spread


def once(floor):
    """Microseconds: pair flat, its kernel calls, pair with a reset, its kernel calls, a block
    without a probe."""
    import dwsr_probe

    library, now, n, touched = kernel(), time.perf_counter, 20_000, 1 << 20

    def loop(count=n):
        begin = now()
        for _ in range(count):
            with dwsr_probe.task("pair"):
                pass
        return (now() - begin) / count * 1e6

    def around_work(count=2000):
        """Only what begin and end take, with work in between that leaves the caches as real work
        does."""
        total = 0.0
        for _ in range(count):
            block = dwsr_probe.task("pair")
            t0 = now()
            block.__enter__()
            t1 = now()
            library.touch_and_free(touched)
            t2 = now()
            block.__exit__(None, None, None)
            total += t1 - t0 + now() - t2
        return total / count * 1e6

    idle = loop(200_000)
    assert dwsr_probe.start()
    around_work()
    results = [
        loop(),
        library.kernel_calls(n, 0, floor) / 1e3,
        around_work(),
        library.kernel_calls(2000, touched, floor) / 1e3,
    ]
    dwsr_probe.stop()
    return [*results, idle]


def run(quick=False):
    section = Section(
        'A begin/end pair, `with task("x"):` from Python',
        "≤ 5 µs beyond the kernel's own calls",
        ("case", "pair, µs", "kernel calls alone, µs", "**beyond them, µs**"),
    )
    ballast = bytearray(200 << 20)  # what a child inherits as the floor of its ru_maxrss
    for floor, where in ((0, ""), (1, ", below the floor inherited from a 200 MiB parent")):
        results = [
            in_fresh_python(
                f"from tests.bench import boundary; print(*boundary.once({floor}))",
                inherit_floor=bool(floor),
            )
            for _ in range(2 if quick else 9)
        ]
        flat, flat_kernel, reset, reset_kernel, idle = zip(*results, strict=True)
        for name, pair, calls in (
            ("rss flat", flat, flat_kernel),
            ("1 MiB touched and freed inside: the mark is reset", reset, reset_kernel),
        ):
            section.rows.append(
                (
                    name + where,
                    spread(pair),
                    spread(calls),
                    spread([a - b for a, b in zip(pair, calls, strict=True)]),
                )
            )
    section.rows.append(("no probe in the process", spread(idle, 3), "–", "–"))
    del ballast
    return section
