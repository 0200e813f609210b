# What the other units use of _core.pyx.

cdef void report_missing_room() noexcept
