from libc.stdint cimport uint64_t

cdef extern from "layout.h" nogil:
    enum:
        LAYOUT_LIVE, LAYOUT_TASK, LAYOUT_TASK_DEVICE, LAYOUT_OOM, LAYOUT_DEVICE
        LAYOUT_TOTAL, LAYOUT_TOTAL_DEVICE
    struct layout:
        pass
    int layout_parse(layout *l, const char *text, uint64_t len)
    const char *const *layout_names(int list)
