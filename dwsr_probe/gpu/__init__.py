"""Device memory: CuPy's allocators (hook.pxi, cupy_hook), and what the driver says of the
devices (nvml, monitor)."""
