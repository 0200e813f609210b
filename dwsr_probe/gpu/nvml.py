"""What the driver says of a device, through NVML (nvidia-ml-py): used and total bytes, the bytes
of this process, utilisation.

Each reason for having no answer is a state with a name. Nothing here raises. Called by the thread
of monitor.py and by doctor, never by a task.
"""

from __future__ import annotations

import importlib
import os
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ADVICE = {
    "no module": (
        "pip install nvidia-ml-py (or dwsr-probe[gpu]) to see what the driver says of the devices"
    ),
    "no driver": "no NVIDIA driver is loaded here",
    "permission denied": (
        "the driver does not tell this user which process holds what: process bytes are missing"
    ),
    "lost": "the driver answered before and does not any more: see its log (dmesg)",
}


class Reading:
    """A device as the driver sees it; None where the driver does not say."""

    __slots__ = ("process_bytes", "total_bytes", "used_bytes", "utilisation_percent")

    def __init__(
        self,
        used_bytes: int | None = None,
        total_bytes: int | None = None,
        process_bytes: int | None = None,
        utilisation_percent: int | None = None,
    ) -> None:
        self.used_bytes = used_bytes
        self.total_bytes = total_bytes
        self.process_bytes = process_bytes
        self.utilisation_percent = utilisation_percent


class Nvml:
    """The library and the devices that were found in it. state: a key of _core.NVML_STATES."""

    def __init__(self) -> None:
        self.state = "none"
        self._nvml: Any = None
        self._open = False
        self._handles: dict[str, Any] = {}  # by full UUID

    def open(self) -> str:
        """Load and start the library; the state."""
        # An old package of the same name warns that it is old. Not catch_warnings: at its end that
        # restores all filters, also those that the job has set meanwhile.
        warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            self.state = "no module"
            return self.state
        try:
            self._nvml.nvmlInit()
            self._open = True
            self.state = "ok"
        except self._nvml.NVMLError as error:
            self.state = self._state_of(error, "no driver")
        return self.state

    def close(self) -> None:
        if self._open:
            self._ask("nvmlShutdown")
        self._open = False
        self.state = "none"
        self._handles.clear()

    def reopen(self) -> str:
        """After a loss: the driver may have been loaded again. If not, the state stays "lost"."""
        self.close()
        if self.open() != "ok":
            self.state = "lost"
        return self.state

    def works(self) -> bool:
        return self._open and self.state in ("ok", "permission denied")

    def devices(self) -> list[tuple[str, str, int | None]]:
        """(UUID, name, total bytes) of all devices of this machine. CUDA_VISIBLE_DEVICES has no
        effect here."""
        found = []
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
                found.append(
                    (
                        _text(self._ask("nvmlDeviceGetUUID", handle)),
                        _text(self._ask("nvmlDeviceGetName", handle)),
                        None if memory is None else int(memory.total),
                    )
                )
        return found

    def find(self, uuid: str, pci_bus_id: str) -> str | None:
        """The full UUID of the device with that UUID (without prefix, as CUDA has it), else of
        the device at that place on the PCI bus; None if there is none. `read` takes the result.

        The number of a device is not used: CUDA numbers devices by CUDA_VISIBLE_DEVICES and
        CUDA_DEVICE_ORDER, NVML does not.
        """
        handle = None
        for prefix in ("GPU-", "MIG-") if uuid else ():
            handle = handle or self._ask("nvmlDeviceGetHandleByUUID", (prefix + uuid).encode())
        if handle is None and pci_bus_id:
            handle = self._ask("nvmlDeviceGetHandleByPciBusId", pci_bus_id.encode())
        if handle is None:
            return None
        full = _text(self._ask("nvmlDeviceGetUUID", handle))
        self._handles[full] = handle
        return full

    def read(self, full_uuid: str | None) -> Reading:
        handle = None if full_uuid is None else self._handles.get(full_uuid)
        if handle is None or not self.works():
            return Reading()
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        # In a container the driver may know this process by another pid. Then None.
        own = next((p.usedGpuMemory for p in processes or () if p.pid == os.getpid()), None)
        return Reading(
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            process_bytes=own,
            utilisation_percent=None if use is None else int(use.gpu),
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer, or None after an error. An error that concerns all further calls changes
        `state`."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            state = self._state_of(error, None)
            if state is not None:
                self.state = state
            return None

    def _state_of(self, error: Any, otherwise: Any) -> Any:
        """The state that an NVMLError leads to; `otherwise` if it concerns one call only."""
        nvml, code = self._nvml, error.value
        if code in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return "no driver"
        if code == nvml.NVML_ERROR_NO_PERMISSION:
            return "permission denied"
        if code in (
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_UNKNOWN,
        ):
            return "lost"
        return otherwise  # not supported, not found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
