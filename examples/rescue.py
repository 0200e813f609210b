"""A job that dies of memory is measured, fitted, and finishes: `make rescue`.

    python examples/rescue.py [FOLDER]

It runs examples/seismic.py on a worker with a memory limit. FOLDER receives the volume, the runs,
the results and a page; without it, everything is in a temporary folder that is removed at the end.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

JOB = Path(__file__).with_name("seismic.py")
PROBE = [sys.executable, "-m", "dwsr_probe"]
BLOCK, MEMORY, THREADS = "192,192,192", "700MB", "2"


class Failed(Exception):
    """A step did not do what it should. The text says what it printed."""


def step(number, text):
    print(f"\n{number}. {text}", flush=True)


def call(words, may_fail=False):
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode and not may_fail:
        shown = " ".join(map(str, words))
        raise Failed(f"{shown}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def job(folder, block, memory, result="result.zarr"):
    limits = ["--memory", memory, "--threads", THREADS]
    return [sys.executable, JOB, folder, "--block", block, *limits, "--result", result]


def last_line(text):
    return text.strip().splitlines()[-1]


def killed_task(folder):
    """The killed task that had taken most, from the records of a run."""
    done = call([*PROBE, "report", folder, "--format", "json"])
    killed = [r for r in map(json.loads, done.stdout.splitlines()) if r["state"] == "killed"]
    tasks = [r for r in killed if r["kind"] == "task"]
    if not tasks:
        raise Failed("no task was killed: this machine may have given the worker more memory")
    return max(tasks, key=lambda r: r["alloc_peak_bytes"] or 0)


def rescue(folder):
    first, second = folder / "run-that-died", folder / "run-that-finished"

    step(1, "The job without a limit, for its values")
    call(job(folder, "96,192,192", "0", "expected.zarr"))
    print("   done")

    step(2, f"Blocks of {BLOCK} on a worker with {MEMORY}: the job alone")
    done = call(job(folder, BLOCK, MEMORY), may_fail=True)
    if done.returncode == 0:
        raise Failed("the job did not die: there is nothing to rescue")
    print(f"   exit code {done.returncode}: {last_line(done.stderr)[:160]} …")

    step(3, "The same under dwsr-probe run")
    done = call([*PROBE, "run", "-q", "-o", first, *job(folder, BLOCK, MEMORY)], may_fail=True)
    task = killed_task(first)
    print(f"   exit code {done.returncode}, as before. Killed was a task of {task['operation']}:")
    for line in call([*PROBE, "report", first]).stdout.splitlines()[:3]:
        print(f"   {line[:160]}")

    step(4, "dwsr-probe fit: which block fits?")
    fit = [*PROBE, "fit", first, "--data", folder / "volume.zarr"]
    for line in call(fit).stdout.split("\n\n")[0].splitlines():
        print(f"   {line}")
    plan = json.loads(call([*fit, "--format", "json"]).stdout)
    block = ",".join(map(str, plan["block"]))

    step(5, f"The job with blocks of {block}, on the same worker with {MEMORY}")
    call([*PROBE, "run", "-q", "-o", second, *job(folder, block, MEMORY)])
    for line in call([*PROBE, "report", second]).stdout.splitlines()[:1]:
        print(f"   {line}")
    found, expected = (
        zarr.open_array(f"{folder}/{name}.zarr", mode="r")[:] for name in ("result", "expected")
    )
    if not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
        raise Failed("the values differ from those of the run without a limit")
    print("   its values are those of the run without a limit")

    step(6, "dwsr-probe fit again: a run that finished says more")
    fit = [*PROBE, "fit", second, "--data", folder / "volume.zarr", "--format", "json"]
    plan = json.loads(call(fit).stdout)
    print(f"   next time: blocks of {','.join(map(str, plan['block']))}, trust {plan['trust']}")

    step(7, "The page of the run")
    page = folder / "rescue.html"
    call([*PROBE, "report", second, "--format", "html", "-o", page])
    print(f"   {page}")


def main():
    try:
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
            folder.mkdir(parents=True, exist_ok=True)
            rescue(folder)
        else:
            with tempfile.TemporaryDirectory() as folder:
                rescue(Path(folder))
    except Failed as error:
        sys.exit(f"rescue failed: {error}")
    print("\nThe job was rescued.")


if __name__ == "__main__":
    main()
