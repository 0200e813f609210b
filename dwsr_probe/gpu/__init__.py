"""Device memory: allocators for CuPy (hook.pyx, cupy_hook), and the driver's figures of the
devices (nvml, monitor)."""
