"""SIGKILL at random moments of a busy 8-thread job: what does the board still say?"""
import random
import tempfile
from pathlib import Path

from tests.bench import Section
from tests.integration.test_killed import kill_and_read


def run(quick=False):
    kills, chance, tasks, bad = 20 if quick else 500, random.Random(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(kills):
            try:
                tasks += kill_and_read(Path(folder) / "boards", Path(folder), chance.random() * 0.1)
            except AssertionError as error:
                print(error)
                bad += 1
                for path in (Path(folder) / "boards").glob("*.board"):
                    path.unlink()
    section = Section(f"{kills} SIGKILLs at random moments of a busy 8-thread job", "500 readable boards, no torn record, no lost finished record that the ring still held",
                      ("kills", "boards readable and complete", "tasks finished before the kills"))
    section.rows.append((kills, kills - bad, f"{tasks:,}"))
    section.notes.append("Each thread counts its finished tasks in a shared file outside the probe; the board must hold all of them, without gaps.")
    return section
