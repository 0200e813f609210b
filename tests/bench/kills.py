"""SIGKILL at random moments of a busy 8-thread job: what does the board still say?

A board that differs from the witness is kept in a directory of its own under /tmp, and what
differs is printed.
"""

import random
import shutil
import tempfile
from pathlib import Path

from dwsr_probe import _core
from dwsr_probe.board import explain
from tests.bench import Section
from tests.integration.test_killed import check_board, kill_busy_job


def run(quick=False, kills=None):
    kills, chance, tasks, bad = kills or (20 if quick else 500), random.Random(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(kills):
            # From none to 100,000 tasks, in the mean 9,000; the ring holds about 13,600. The delay
            # makes the moment random.
            path, counts = kill_busy_job(
                Path(folder) / "boards",
                Path(folder),
                int(10 ** chance.uniform(0, 5)) - 1,
                chance.random() * 0.01,
            )
            try:
                newest, differences = check_board(path, counts)
                tasks += newest
            except _core.BoardError as error:
                differences = [explain(path, error), f"counted {counts}"]
            if differences:
                bad += 1
                kept = shutil.copy(path, tempfile.mkdtemp(prefix="dwsr-kills-"))
                print(f"kept as {kept}", *differences, sep="\n  ", flush=True)
            path.unlink()
    section = Section(
        f"{kills} SIGKILLs at random moments of a busy 8-thread job",
        "500 readable boards, no torn record, no lost finished record that the ring still held",
        ("kills", "boards readable and complete", "tasks finished before the kills"),
    )
    section.rows.append((kills, kills - bad, f"{tasks:,}"))
    section.notes.append(
        "Each thread counts its finished tasks in a shared file outside the probe; the board must"
        " hold all of them, by thread, without gaps, and at most one more of each thread."
    )
    return section
