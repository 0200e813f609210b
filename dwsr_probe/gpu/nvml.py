"""What the driver says of a device, through NVML (nvidia-ml-py): used and total bytes, this
process's share, utilisation.

Each way to have no answer is a state with a name; nothing here raises. Called by the monitor's
thread and by doctor, never on a task's path.
"""

import importlib
import os
import warnings

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


class Nvml:
    """state: one of _core.NVML_STATES. Opened at the first question, and again by `reopen` after
    the driver was lost."""

    def __init__(self):
        self.state = "none"
        self._nvml = None
        self._open = False
        self._handles = {}

    def open(self):
        # An old package of the same name warns that it is old. Not catch_warnings: that puts back
        # all filters, also those that the job sets meanwhile.
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

    def close(self):
        if self._open:
            self._ask("nvmlShutdown")
        self._open = False
        self.state = "none"
        self._handles.clear()

    def reopen(self):
        """After a loss: the driver may have been loaded again. Until it has, it is lost."""
        self.close()
        if self.open() != "ok":
            self.state = "lost"
        return self.state

    def works(self):
        return self._open and self.state in ("ok", "permission denied")

    def devices(self):
        """(uuid, name, total bytes) of all devices of this machine, whatever
        CUDA_VISIBLE_DEVICES says."""
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

    def find(self, uuid, pci_bus_id):
        """Remember the device with that UUID (as CUDA knows it, without prefix), else at that
        place on the bus; its full UUID, or None.

        CUDA numbers devices as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say, NVML does not:
        only these names mean the same in both.
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

    def read(self, full_uuid):
        """(used, total, this process's bytes, utilisation in percent); None where the driver
        does not say."""
        handle = self._handles.get(full_uuid)
        if handle is None or not self.works():
            return None, None, None, None
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        # in a container its pid may be another one
        own = next((p.usedGpuMemory for p in processes or () if p.pid == os.getpid()), None)
        used, total = (None, None) if memory is None else (int(memory.used), int(memory.total))
        return used, total, own, None if use is None else int(use.gpu)

    def _ask(self, function, *arguments):
        """The answer, or None; what the error means for all further questions is in `state`."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            state = self._state_of(error, None)
            if state is not None:
                self.state = state
            return None

    def _state_of(self, error, otherwise):
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
        return otherwise  # not supported, not found: of this question only


def _text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
