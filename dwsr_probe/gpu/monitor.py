"""A thread that reads the driver's figures of the devices in use, ten times a second, and puts
them on the board.

Started by the first allocation on a device (hook.pyx), stopped and restarted around forks and at
the end by dwsr_probe.probe. Everything that is slow about a device (its name, its UUID, the start
of NVML) happens in this thread, never in a task.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from dwsr_probe import _core
from dwsr_probe.gpu.nvml import Nvml, Reading

PERIOD_S = 0.1
REOPEN_EVERY = 100  # periods after the driver was lost
JOIN_S = 0.5  # a driver that hangs must not delay the job's exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_cupy: Any = None
_thread: threading.Thread | None = None
_stop: threading.Event | None = None
_hanging: threading.Thread | None = None  # did not end when it was stopped
# Taken without waiting: if another thread has it, that thread starts the monitor.
_starting = threading.Lock()


def use(cupy: Any) -> None:
    """The module whose devices are read; None: start no more threads."""
    global _cupy
    _cupy = cupy


def start() -> None:
    """Start the thread unless it runs. Called inside an allocation, in any thread: nothing raises
    that could fail the allocation."""
    global _thread, _stop
    if _thread is not None or _cupy is None or not _starting.acquire(blocking=False):
        return
    try:
        # Beside a thread that hangs in the driver, a second one would hang, too.
        if _thread is None and not (_hanging is not None and _hanging.is_alive()):
            stop_ = threading.Event()
            thread = threading.Thread(
                target=_work, args=(_cupy, stop_), name="dwsr-nvml", daemon=True
            )
            thread.start()
            _stop, _thread = stop_, thread
    except RuntimeError:  # the user's limit on threads, or the interpreter is shutting down
        _core.note_nvml(_core.NVML_FAILED)
    finally:
        _starting.release()


def start_again() -> None:
    """Start the thread if a device is in use: after a fork, in the parent, and after a restart of
    the probe."""
    if _core.gpu_devices_used():
        start()


def stop() -> None:
    """Also called before a fork: Python warns of forks in programs with threads."""
    global _thread, _hanging
    thread, _thread = _thread, None
    if thread is not None and _stop is not None:
        _stop.set()
        deadline = time.monotonic() + JOIN_S
        thread.join(JOIN_S)
        # The kernel counts a thread for a moment after its join, and Python reads that count.
        while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
            time.sleep(0.0001)
        if thread.is_alive():
            _hanging = thread


def reset_after_fork() -> None:
    """Called in a forked child, which has none of the parent's threads."""
    global _thread, _hanging, _starting
    _thread = _hanging = None
    _starting = threading.Lock()
    _core.note_nvml(_core.NVML_NONE)


def _work(cupy: Any, stop: threading.Event) -> None:
    nvml, periods_lost = Nvml(), 0
    uuids: dict[int, str | None] = {}  # NVML's, by CUDA's number of the device
    try:
        # The thread was started inside a task, but its own allocations are not the task's.
        _core.adopt_handle(0)
        _core.note_nvml(_core.NVML_STATES[nvml.open()])
        stopping, period = False, 0.0
        while not stopping:  # read once more at the end: a short job ends before the second time
            stopping, period = stop.wait(period), PERIOD_S
            if nvml.state == "lost":
                periods_lost += 1
                if periods_lost % REOPEN_EVERY == 0:
                    nvml.reopen()
                    uuids.clear()
            for device in _core.gpu_devices_used():
                if device not in uuids:
                    uuids[device] = _identify(cupy, nvml, device)
                _note(device, nvml.read(uuids[device]))
            _core.note_nvml(_core.NVML_STATES[nvml.state])
        nvml.close()
    except Exception:
        _core.note_nvml(_core.NVML_FAILED)


def _note(device: int, reading: Reading) -> None:
    rmm_bytes, rmm_peak_bytes = _rmm_bytes(device)
    _core.note_device(
        device,
        used_bytes=reading.used_bytes,
        total_bytes=reading.total_bytes,
        process_bytes=reading.process_bytes,
        utilisation_percent=reading.utilisation_percent,
        rmm_bytes=rmm_bytes,
        rmm_peak_bytes=rmm_peak_bytes,
    )


def _identify(cupy: Any, nvml: Nvml, device: int) -> str | None:
    """Put the device's name and UUID on the board; return NVML's full UUID of it, or None."""
    name = uuid = pci = ""
    total = None
    try:
        properties = cupy.cuda.runtime.getDeviceProperties(device)
        name, total = properties["name"], int(properties["totalGlobalMem"])
        raw = properties.get("uuid") or b""
        uuid = raw.hex() if isinstance(raw, bytes) and len(raw) == 16 else ""
        uuid = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])) if uuid else ""
        pci = cupy.cuda.runtime.deviceGetPCIBusId(device)
    except Exception:
        pass  # this release of CUDA does not say; the device still has its number
    full = nvml.find(uuid, pci) if nvml.works() else None
    _core.note_device_identity(
        device,
        name if isinstance(name, bytes) else str(name).encode(),
        (full or (f"GPU-{uuid}" if uuid else "")).encode(),
        total,
    )
    return full


def _rmm_bytes(device: int) -> tuple[int | None, int | None]:
    """(live, peak) of RMM's statistics, if the job has enabled them for this device."""
    mr: Any = sys.modules.get("rmm.mr")
    if mr is None:
        return None, None
    try:
        counts = mr.get_per_device_resource(device).allocation_counts
        return int(counts.current_bytes), int(counts.peak_bytes)
    except Exception:  # no statistics on this device
        return None, None
