"""The board of the GPU stand-in from Python: create it, read the truth, turn the knobs, in this
process or for others. Mirrors board.h.

Called by tests and by install.py. Devices are numbered as NVML numbers them, whatever
CUDA_VISIBLE_DEVICES says.
"""

import ctypes
import fcntl
import mmap
import os
import struct
from pathlib import Path

DEVICES, SLOTS = 16, 128
NVML_MODES = (
    "works",
    "no driver",
    "no permission",
    "no utilization",
    "lost",
    "no memory info",
    "no process bytes",
)


class Device(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("capacity_bytes", "fail_next")]


class Use(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64) for name in ("occupied_bytes", "live_bytes", "mallocs", "frees")
    ]


class Slot(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("pid", "pinned_bytes", "launches")] + [
        ("use", Use * DEVICES)
    ]


class Layout(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("size", "devices", "nvml_mode")] + [
        ("device", Device * DEVICES),
        ("slot", Slot * SLOTS),
    ]


class Board:
    """Opens the board in `folder`; with `devices` creates it first."""

    def __init__(self, folder, devices=None, capacity_bytes=1 << 30):
        self.folder = Path(folder)
        path = self.folder / "board"
        if devices is not None:
            new = Layout(size=ctypes.sizeof(Layout), devices=devices)
            for device in new.device:
                device.capacity_bytes = capacity_bytes
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(bytes(new))
            part.rename(path)  # whoever opens it sees all of it
        self._file = open(path, "r+b")  # noqa: SIM115 - asked for locks as long as this object lives
        self._layout = Layout.from_buffer(mmap.mmap(self._file.fileno(), 0))
        if self._layout.size != ctypes.sizeof(Layout):
            raise RuntimeError(
                f"standin: {path} has another layout ({self._layout.size} bytes): remove it"
            )

    @property
    def devices(self):
        return self._layout.devices

    def processes(self):
        """pid -> slot of every process that lives and has called CUDA."""
        return {
            slot.pid: slot
            for i, slot in enumerate(self._layout.slot)
            if slot.pid and self._owned(i)
        }

    def total(self, field, device=0, pid=None):
        """Sum of a field of `Use` over one process or all that live."""
        return sum(
            getattr(slot.use[device], field)
            for owner, slot in self.processes().items()
            if pid in (None, owner)
        )

    def live_bytes(self, device=0, pid=None):
        return self.total("live_bytes", device, pid)

    def occupied_bytes(self, device=0, pid=None):
        return self.total("occupied_bytes", device, pid)

    def mallocs(self, device=0, pid=None):
        return self.total("mallocs", device, pid)

    def frees(self, device=0, pid=None):
        return self.total("frees", device, pid)

    def set_capacity(self, capacity_bytes, device=0):
        self._layout.device[device].capacity_bytes = capacity_bytes

    def fail_next(self, count, device=0):
        """The next `count` mallocs on the device fail with cudaErrorMemoryAllocation."""
        self._layout.device[device].fail_next = count

    def nvml(self, mode):
        """From now on NVML behaves so, in every process: one of NVML_MODES."""
        self._layout.nvml_mode = NVML_MODES.index(mode)

    def _owned(self, slot):
        query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
        # 36: F_OFD_GETLK (fcntl has no name for it)
        return struct.unpack("hhqqi4x", fcntl.fcntl(self._file, 36, query))[0] != fcntl.F_UNLCK
