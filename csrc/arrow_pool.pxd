from libc.stdint cimport uint64_t

cdef extern from "arrow_pool.h" nogil:
    struct arrow_trial:
        uint64_t allocated_bytes, old_bytes, new_bytes, freed_bytes
    int arrow_pool_find(const char *path)
    void arrow_pool_trial_begin()
    void arrow_pool_trial_end(arrow_trial *seen)
    int arrow_pool_wrap()
    void arrow_pool_unwrap()
