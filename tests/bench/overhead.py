"""CPU of a 10 s NumPy job under `run`, its parent and the sampler included, against the bare
job. Interleaved, with an A/A control."""

import os
import subprocess
import tempfile
from pathlib import Path

from tests.bench import PY, Section, spread

JOB = """
import sys
import numpy as np
import dwsr_probe

def block(volume):
    spectrum = np.fft.rfft(volume, axis=-1)
    return (
        np.abs(spectrum).sum(axis=-1)
        + volume.std(axis=-1)
        + np.sqrt(volume * volume + 1).mean(axis=-1)
    )

volumes = [
    np.random.default_rng(n).standard_normal((24, 96, 512 + 128 * n), dtype=np.float32)
    for n in range(4)
]
total = 0.0
for i in range(int(sys.argv[1])):
    if {marked}:
        with dwsr_probe.task("block", inputs=[volumes[i % 4]]):
            total += float(block(volumes[i % 4]).sum())
    else:
        total += float(block(volumes[i % 4]).sum())
print(total)
"""


def cpu_of(command):
    """User and system seconds of a command and all it waited for."""
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    # or a checkout is compiled anew in each run, as no installed package is
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    assert job.returncode == 0
    return usage.ru_utime + usage.ru_stime


def run(quick=False):
    section = Section(
        "CPU of a 10 s NumPy job",
        "≤ 1.02 of bare, `run`'s parent included",
        (
            "job",
            "bare, CPU s",
            "bare again / bare (control)",
            "run / bare",
            "**run / bare, least of each**",
            "tasks/s",
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        for marked in (False, True):
            job = Path(folder) / f"job{marked}.py"
            job.write_text(JOB.format(marked=marked))
            once = cpu_of([PY, job, "50"])
            count = max(50, int(50 * (1.0 if quick else 10.0) / max(once - 0.1, 0.05)))
            bare, again, ours = [], [], []
            for n in range(3 if quick else 7):
                bare.append(cpu_of([PY, job, str(count)]))
                ours.append(
                    cpu_of(
                        [
                            PY,
                            "-m",
                            "dwsr_probe",
                            "run",
                            "-o",
                            f"{folder}/{marked}-{n}",
                            PY,
                            job,
                            str(count),
                        ]
                    )
                )
                again.append(cpu_of([PY, job, str(count)]))
            section.rows.append(
                (
                    "every block a task" if marked else "no task marked",
                    spread(bare),
                    spread([b / a for a, b in zip(bare, again, strict=True)], 3),
                    spread([2 * o / (a + b) for a, b, o in zip(bare, again, ours, strict=True)], 3),
                    f"{min(ours) / min(bare + again):.3f}",
                    f"{count / sorted(bare)[len(bare) // 2]:.0f}",
                )
            )
    section.notes.append(
        "One thread. `run / bare` compares each run with the mean of the bare runs before and after"
        " it; the least of each is freer of the machine's noise. With every block a task and memory"
        " moving all the time, the sampler holds 1 kHz: an empty loop of that rate has its cost in"
        " the sampler's table; `--period 10` wakes it a tenth as often."
    )
    return section
