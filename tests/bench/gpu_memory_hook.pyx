# cython: language_level=3
"""The other way to see CuPy's memory, compiled: a MemoryHook that keeps a sum."""
from cupy.cuda.memory_hook import MemoryHook


class CompiledHook(MemoryHook):
    name = "compiled"

    def __init__(self):
        self.live = self.peak = 0

    def malloc_postprocess(self, device_id, size, mem_size, mem_ptr, pmem_id):
        self.live += mem_size
        if self.live > self.peak:
            self.peak = self.live

    def free_postprocess(self, device_id, mem_size, mem_ptr, pmem_id):
        self.live -= mem_size
