from libc.stdint cimport uint64_t

cdef extern from "limit.h" nogil:
    uint64_t limit_bytes(const char *proc_root, const char *cgroup_root)
