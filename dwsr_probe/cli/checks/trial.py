"""Checks of `doctor` that run the probe: peaks and the sampler in a fresh interpreter for 0.3 s,
and whether allocations can be accounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from dwsr_probe.cli.checks import Finding, failed, limited, ok
from dwsr_probe.cli.checks.machine import package_directory

_SCRIPT = """\
import json, time
import dwsr_probe
from dwsr_probe import _core
from dwsr_probe.board import Board

assert dwsr_probe.start()
end = time.monotonic() + 0.3
with dwsr_probe.task("trial"):
    while time.monotonic() < end:
        bytearray(4 << 20)  # memory changes, so the sampler keeps its base period
board = Board(_core.board_path())
samples, _ = board.samples(0)
period_ns = board.header["period_ns"]
times_ns = [time_ns for time_ns, _, _, period in samples if period == period_ns]
print(json.dumps({"header": board.header, "live": board.live(), "times_ns": times_ns}))
"""


@dataclass(frozen=True)
class Trial:
    """What the board of the trial said."""

    header: dict[str, Any]
    live: dict[str, Any]
    times_ns: list[int]  # of the samples taken at the base period


class TrialError(Exception):
    """The trial failed; the text is the probe's message or the last line on stderr. Returned, not
    raised, so that `cache` keeps it for the other check."""


def run_python(script: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter that imports this dwsr_probe, not one in the current
    directory, and without the settings of this process."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DWSR_PROBE") or name.endswith("BOARD_DIR")
    }
    if not os.path.samefile(".", package_directory()):
        script = "import sys; sys.path = [place for place in sys.path if place]\n" + script
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environ,
        timeout=timeout_s,
    )


@cache
def _run_trial() -> Trial | TrialError:
    try:
        done = run_python(_SCRIPT, timeout_s=60)
        if done.returncode == 0:
            return Trial(**json.loads(done.stdout))
        lines = done.stderr.strip().splitlines()
    except Exception as error:
        return TrialError(str(error))
    # A message of the probe, else the last line of a traceback
    messages = [line for line in lines if line.startswith("dwsr-probe: ")] or lines
    return TrialError("".join(messages[-1:]))


def peaks() -> Finding:
    from dwsr_probe import _core

    trial = _run_trial()
    if isinstance(trial, TrialError):
        return failed(
            "peaks",
            f"the trial failed: {trial}",
            (
                "see the board directory above"
                if "dwsr-probe: " in str(trial)
                else f"a traceback shows where: {sys.executable} -c 'import dwsr_probe;"
                " dwsr_probe.start()'"
            ),
        )
    error_mib = trial.header["rss_error_bytes"] / 2**20
    error = f"the kernel's counters are within {error_mib:.2f} MiB here"
    if trial.live["rss_source"] == _core.RSS_KERNEL:
        return ok(
            "peaks", f"from the kernel's high-water mark (/proc/self/clear_refs works); {error}"
        )
    return limited(
        "peaks",
        f"sampled: /proc/self/clear_refs cannot be written here; {error}",
        "short peaks may be missed; in a container allow writing to /proc/self/clear_refs, or"
        " sample faster with `run --period`",
    )


def sampler() -> Finding:
    trial = _run_trial()
    if isinstance(trial, TrialError):
        return failed("sampler", "the trial failed")
    overloaded = "the machine is overloaded; task peaks do not depend on the sampler"
    times_ns, count = trial.times_ns, len(trial.times_ns)
    if count < 3:
        text = f"took {count} sample{'' if count == 1 else 's'} in 0.3 s"
        return limited("sampler", text, overloaded)
    gaps_ns = sorted(after - before for before, after in pairwise(times_ns))
    rate = 1e9 * len(gaps_ns) / (times_ns[-1] - times_ns[0])
    p99_ms = gaps_ns[min(len(gaps_ns) - 1, int(0.99 * len(gaps_ns)))] / 1e6
    wanted = 1e9 / trial.header["period_ns"]
    text = (
        f"{rate:,.0f} samples/s of {wanted:,.0f} asked for, p99 gap {p99_ms:.2f} ms,"
        f" {trial.live['samples_late']} late"
    )
    return limited("sampler", text, overloaded) if rate < 0.5 * wanted else ok("sampler", text)


def allocations() -> Finding:
    from dwsr_probe import _core

    provider, works = _core.try_accounting()
    known = (kind for kind in ("jemalloc", "mimalloc", "tcmalloc") if kind in provider)
    name = next(known, "glibc" if "libc.so" in provider else provider)
    if works:
        return ok("allocations", f"each task's own are accounted; malloc is {name}")
    return limited(
        "allocations",
        "cannot be accounted: no call slot of this interpreter leads to malloc",
        "another tool (memray, for one) holds them, or the interpreter is linked statically",
    )
