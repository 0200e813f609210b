from libc.stdint cimport uint64_t

from csrc.board_layout cimport task_device, task_fields, task_oom
from csrc.layout cimport layout

cdef extern from "frame.h" nogil:
    enum:
        TEXT_name, TEXT_key_prefix, TEXT_key_rest, TEXT_inputs, TEXT_output
        TEXT_reason_detail, TEXT_operation, TEXT_chain, TEXT_params, TEXT_params_values, TEXT_COUNT
    struct text:
        const char *at
        uint64_t len
    struct record:
        task_fields task
        text *texts
        uint64_t *numbers
        int devices_known
        unsigned int device_count
        task_device *devices
        task_oom oom
        text gpu_json, oom_json
    uint64_t frame_valid_bytes(const layout *l, const char *frame, uint64_t available)
    int frame_unpack(const layout *l, const char *frame, record *r)
