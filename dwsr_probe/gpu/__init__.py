"""Device memory: CuPy's allocators (hook.pyx, cupy_hook), and what the driver says of the
devices (nvml, monitor)."""
