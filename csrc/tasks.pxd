from libc.stdint cimport uint64_t

from csrc.frame cimport text

cdef extern from "tasks.h" nogil:
    struct task_begin:
        text name, key, inputs, operation, chain, params, params_values
        uint64_t input_bytes, input_count, inputs_omitted
        int reason, detached
        uint64_t worker
    struct task_end:
        int state
        text output
        uint64_t output_bytes, gc_freed_bytes, requested_bytes
        text inputs
        uint64_t input_bytes, inputs_omitted
        int reason, out_of_memory
