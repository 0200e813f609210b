"""A NumPy job whose blocks may be tasks, and the CPU time of a command with all its processes."""

import os
import subprocess

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
