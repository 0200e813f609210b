# What the units of frameworks (graph_tasks, gpu/hook) use of tasks.pyx.
from libc.stdint cimport uint64_t

from csrc.handle cimport task_handle
from csrc.params cimport params
from dwsr_probe.binding.contexts cimport Context
from dwsr_probe.binding.features cimport listing

cdef class OpenTask:
    cdef task_handle handle
    cdef uint64_t probe_instance
    cdef unsigned long thread
    cdef Context context  # of a block; None: the thread itself
    cdef object foreign_count  # of allocations that the accounting does not see, at the begin
    cdef listing *inputs  # of a graph's task with sources inside; else NULL
    cdef Py_ssize_t count_at_begin  # of these inputs
    cdef bint makes_output  # its output is one of these inputs, too
    cdef readonly object node  # to be run in place of the task: its sources are observed

ctypedef int (*begin_check)() except -1

cdef bytes as_bytes(object value)
cdef OpenTask begin_task(
    bytes name, bytes key, const listing *inputs, const params *given, bytes operation, bytes chain,
    int reason, uint64_t worker)
cdef int end_task(
    OpenTask opened, const listing *inputs, bytes output, uint64_t output_bytes, bint cancelled,
    object error) except -1
cdef void set_begin_check(begin_check check) noexcept
