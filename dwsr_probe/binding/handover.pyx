# cython: language_level=3, freethreading_compatible=True
"""Work that a task hands to other threads keeps the task's handle: steps of asyncio's event loops,
and calls in pools of threads.

Called by follow/loops.py and follow/thread_pools.py. Compiled, because a step of an event loop
takes about a microsecond. Compiled functions also have no frame, so asyncio's debug mode, which
counts frames, reports the same lines as without dwsr-probe.
"""
cimport cython
from cpython.contextvars cimport (
    PyContext_CheckExact, PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit,
    PyContextVar_New, PyContextVar_Reset, PyContextVar_Set, get_value)
from cpython.object cimport PyObject_GetItem
from cpython.sequence cimport PySequence_Contains
from libc.stdint cimport uint64_t

from csrc.handle cimport NOBODY, is_somebody, task_handle
from csrc.probe cimport probe_adopt, probe_current

# In a context: the handle of the task that the context's work belongs to, 0 for no task. asyncio
# copies the context of whoever creates a coroutine's task, a callback or a call of `to_thread`, so
# everything that follows from the first callback has the variable, too.
cdef object variable = PyContextVar_New("dwsr_probe_task", NULL)


# -- event loops

cdef object copy_with_handle(uint64_t handle):
    """A copy of the caller's context with this handle in it.

    The copy is not entered: that would look like a switch to blocks in coroutines (contexts.pyx).
    """
    token = PyContextVar_Set(variable, handle)
    try:
        return PyContext_CopyCurrent()
    finally:
        PyContextVar_Reset(variable, token)


cdef int set_handle(object context, uint64_t handle) except -1:
    """In a context that only the calling thread enters."""
    PyContext_Enter(context)
    try:
        PyContextVar_Set(variable, handle)
    finally:
        PyContext_Exit(context)
    return 0


@cython.final
cdef class FollowedCallback:
    """A callback for which the job has passed a context of its own. The context has the handle
    while the callback runs, and is as the job knows it otherwise."""
    cdef object callback
    cdef task_handle task

    def __call__(self, *args):
        cdef task_handle before = probe_adopt(self.task)
        token = PyContextVar_Set(variable, self.task.word)
        try:
            return self.callback(*args)
        finally:
            PyContextVar_Reset(variable, token)
            probe_adopt(before)


def around_call_soon_threadsafe(original, may_follow):
    """A replacement for BaseEventLoop.call_soon_threadsafe, which is the way into an event loop
    from another thread. Inside a task, the callback's context gets the task's handle.

    may_follow(loop): whether the loop's work may belong to tasks.
    """
    def call_soon_threadsafe(self, callback, *args, context=None):
        cdef task_handle task = probe_current()
        cdef FollowedCallback followed
        # A thread without a task may be in a context that has a handle.
        if is_somebody(task) or get_value(variable) is not None:
            try:
                if not may_follow(self):
                    if context is None and get_value(variable):
                        context = copy_with_handle(0)
                elif is_somebody(task) and context is None:
                    context = copy_with_handle(task.word)
                elif is_somebody(task):
                    followed = FollowedCallback.__new__(FollowedCallback)
                    followed.callback, followed.task = callback, task
                    callback = followed
            except Exception:  # the job's callback comes first
                pass
        if context is None:
            return original(self, callback, *args)
        return original(self, callback, *args, context=context)

    return call_soon_threadsafe


def around_run(original):
    """A replacement for asyncio's Handle._run, which runs every step of an event loop. The thread
    works for the step's task, if it has one, for the length of the step.

    Also if that task has ended: the step is then nobody's work, whomever the thread works for
    otherwise.
    """
    def _run(self):
        cdef task_handle task = task_of_step(self), before
        if not is_somebody(task):
            return original(self)
        before = probe_adopt(task)
        try:
            return original(self)
        finally:
            probe_adopt(before)

    return _run


cdef task_handle task_of_step(object step):
    """The task in the step's context."""
    try:
        context = step._context
        if PyContext_CheckExact(context) and PySequence_Contains(context, variable):
            return task_handle(word=PyObject_GetItem(context, variable))
    except Exception:  # the original reports what is wrong with the step
        pass
    return NOBODY


def around_write(original):
    """A replacement for the methods of asyncio's transports that write to a socket. What is
    received next belongs to the task that has written last: it is the answer.

    Without this, a connection that is used again would receive for the task that opened it.
    """
    def write(self, data):
        try:
            reader = self._loop._selector.get_key(self._sock_fd).data[0]
            if reader is not None:
                task = probe_current()
                if is_somebody(task) or is_somebody(task_of_step(reader)):
                    set_handle(reader._context, task.word)
        # closed, or reading is paused, or this is the reader's own step: the job's call comes first
        except Exception:
            pass
        return original(self, data)

    return write


# -- calls

@cython.final
cdef class FollowedCall:
    """A function that works for a task, in whatever thread it is called."""
    cdef object function
    cdef task_handle task

    def __call__(self, *args, **kwargs):
        cdef task_handle before = probe_adopt(self.task)
        try:
            return self.function(*args, **kwargs)
        finally:
            probe_adopt(before)


def follow_call(function):
    """The function, made to work for the task that the calling thread works for now. Without such
    a task: the function itself."""
    cdef FollowedCall call
    cdef task_handle task = probe_current()
    if not is_somebody(task):
        return function
    call = FollowedCall.__new__(FollowedCall)
    call.function, call.task = function, task
    return call
