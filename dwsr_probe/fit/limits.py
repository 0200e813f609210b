"""What a worker may use, where the user does not say: Dask's limit of the workers of the running
cluster, or the limit of this process's cgroup and machine."""

from __future__ import annotations

import os
import sys
from numbers import Integral
from typing import Any, NamedTuple

from dwsr_probe.fit.error import FitError
from dwsr_probe.words import bytes_text, parse_bytes

# Of a worker's limit: Dask writes data to disk from here on (distributed.worker.memory.spill)
SPILL_SHARE = 0.7
AUTO = "auto"  # the number of threads or workers with which the job is fastest
_MACHINE = "/proc/meminfo"


class WorkerLimits(NamedTuple):
    """memory_bytes: the limit of one worker. base_bytes: its resident size without blocks; None:
    not known. source: where memory_bytes comes from, in words. device_bytes: memory of the device
    that its threads share; None: not known."""

    memory_bytes: float
    threads: int
    workers: int
    base_bytes: float | None
    source: str
    device_bytes: float | None = None


def find_limits(
    memory: Any = None, threads: Any = None, workers: Any = None, client: Any = None
) -> WorkerLimits:
    """What is given counts; the rest is asked of the client's cluster, or of this machine."""
    for number, name in ((threads, "threads"), (workers, "workers")):
        is_count = isinstance(number, Integral) and not isinstance(number, bool)
        if number is not None and not (is_count and number > 0):
            raise FitError(f"{name} is a whole number from 1, not {number!r}")
    client = client if client is not None else running_client()
    known = list(_cluster_workers(client)) if client is not None else []
    if client is not None and not known and (memory is None or threads is None):
        raise FitError(
            "the cluster has no workers yet; wait for them (client.wait_for_workers(1)), or give"
            " memory= and threads="
        )
    if memory is not None:
        limit, source = parse_bytes(memory), "as given"
        if not limit:
            raise FitError("a worker without memory runs nothing; give its limit, such as 8GiB")
        here = machine_bytes()
        if not known and limit > here:
            raise FitError(
                f"{bytes_text(limit)} for a worker is more than the {bytes_text(here)} of this"
                " machine; give what a worker has, or connect a Client of the cluster it belongs to"
            )
    elif limits := [w["memory_limit"] for w in known if w.get("memory_limit")]:
        limit, source = float(min(limits)), "limit of the cluster's workers"
    else:
        limit, source = float(available_limit_bytes()), "limit of this machine or its cgroup"
    base = [w["metrics"]["memory"] for w in known if w.get("metrics", {}).get("memory")]
    return WorkerLimits(
        limit,
        threads or (max(w["nthreads"] for w in known) if known else os.cpu_count() or 1),
        workers or len(known) or 1,
        float(max(base)) if base else None,
        source,
    )


def find_splits(
    memory: Any, threads: int | str | None, workers: int | str | None, client: Any = None
) -> list[WorkerLimits]:
    """One, or where threads or workers are AUTO: all ways in which the CPUs of this machine can be
    given to workers. `memory` is then that of all workers together."""
    whole = find_limits(
        memory,
        None if threads == AUTO else threads,
        None if workers == AUTO else workers,
        client,
    )
    if AUTO not in (threads, workers):
        return [whole]
    if client is not None or running_client() is not None:
        raise FitError("threads and workers of a cluster that is connected are given, not auto")
    cpus = len(os.sched_getaffinity(0))
    found = []
    for at_once in range(1, cpus + 1):
        count = cpus // at_once if workers == AUTO else whole.workers
        is_asked = at_once == whole.threads if threads != AUTO else cpus // count == at_once
        if not count or (not is_asked and (threads != AUTO or workers != AUTO)):
            continue
        limit = whole.memory_bytes / count
        found.append(whole._replace(memory_bytes=limit, threads=at_once, workers=count))
    return found or [whole]


def running_client() -> Any:
    """The Client that this program has connected; None without one."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.get_client()
    except ValueError:
        return None


def _cluster_workers(client: Any) -> list[dict[str, Any]]:
    try:
        info = client.scheduler_info(n_workers=-1)
    except TypeError:  # before 2025.7 all workers were listed
        info = client.scheduler_info()
    found: list[dict[str, Any]] = list(info["workers"].values())
    return found


def machine_bytes() -> int:
    return _of_machine("MemTotal:")


def machine_available_bytes() -> int:
    """What new memory could take without swapping."""
    return min(_of_machine("MemAvailable:"), available_limit_bytes())


def _of_machine(field: str) -> int:
    with open(_MACHINE) as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def available_limit_bytes() -> int:
    """The least limit of this process's cgroup and machine, as the probe reads it."""
    from dwsr_probe import _core

    return int(_core.memory_limit() or machine_bytes())
