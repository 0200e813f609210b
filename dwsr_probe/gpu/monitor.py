"""A thread that asks the driver about the devices in use, ten times a second, and puts the answers on the board.

Begins with the first allocation on a device. Everything that is slow about a device (its name, its UUID, NVML's start) happens here, never in a task.
"""
import sys
import threading

from dwsr_probe import _core
from dwsr_probe.gpu.nvml import Nvml

PERIOD_S = 0.1
REOPEN_EVERY = 100  # periods after the driver was lost
JOIN_S = 0.5  # a driver that hangs must not hold up the job's exit
_thread = _stop = _cupy = None


def use(cupy):
    global _cupy
    _cupy = cupy


def start():
    """A device is in use: idempotent, from any thread."""
    global _thread, _stop
    if _thread is None and _cupy is not None:
        _stop = threading.Event()
        _thread = threading.Thread(target=_work, args=(_cupy, _stop), name="dwsr-nvml", daemon=True)
        _thread.start()


def stop():
    """Also before a fork: Python warns of forks in programs with threads. True if it ran."""
    global _thread
    thread, _thread = _thread, None
    if thread is None:
        return False
    _stop.set()
    thread.join(JOIN_S)
    return True


def _work(cupy, stop):
    nvml, names, periods_lost = Nvml(), {}, 0
    try:
        _core.note_nvml(nvml.open())
        stopping, period = False, 0
        while not stopping:  # once more at the end: a short job is over before the second look
            stopping, period = stop.wait(period), PERIOD_S
            if nvml.state == "lost":
                periods_lost += 1
                if periods_lost % REOPEN_EVERY == 0:
                    nvml.reopen()
                    names.clear()
            for device in _core.gpu_devices_used():
                if device not in names:
                    names[device] = _identify(cupy, nvml, device)
                _core.note_device(device, *nvml.read(names[device]), *_rmm_bytes(device))
            _core.note_nvml(nvml.state)
        nvml.close()
    except Exception:
        _core.note_nvml("failed")


def _identify(cupy, nvml, device):
    """The device's full UUID for NVML; None if NVML does not know it."""
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
        pass  # this CUDA does not say; the device still has its number
    full = nvml.find(uuid, pci) if nvml.works() else None
    _core.identify_device(device, name if isinstance(name, bytes) else str(name).encode(), (full or (f"GPU-{uuid}" if uuid else "")).encode(), total)
    return full


def _rmm_bytes(device):
    """(live, peak) of RMM's statistics, if the job has enabled them for this device."""
    mr = sys.modules.get("rmm.mr")
    if mr is None:
        return None, None
    try:
        counts = mr.get_per_device_resource(device).allocation_counts
        return int(counts.current_bytes), int(counts.peak_bytes)
    except Exception:  # no statistics on this device
        return None, None
