# cython: language_level=3, freethreading_compatible=True
"""What a block runs in, beside its thread: a greenlet, a generator, a coroutine, an async
generator, or a callback of an event loop. Called by tasks.pyx when a block begins and ends.

Other work of the thread runs while these are suspended, and its memory is not the block's.
A generator that contextlib drives (`@contextmanager`) is no context: its suspension is the body of
a `with` statement, and the context is the one of that statement.
"""
cimport cython
from cpython.ref cimport Py_DECREF, PyObject
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport uint64_t

import sys

cdef extern from *:
    """
    #include <stdint.h>
    #include <frameobject.h>

    static PyObject *dwsr_current_frame(void) { return (PyObject *)PyEval_GetFrame(); }

    static PyObject *dwsr_caller_of(PyObject *frame)
    {
        return (PyObject *)PyFrame_GetBack((PyFrameObject *)frame);
    }

    static PyObject *dwsr_generator_of(PyObject *frame)
    {
    #if PY_VERSION_HEX >= 0x030B0000
        return PyFrame_GetGenerator((PyFrameObject *)frame);
    #else
        PyObject *generator = ((PyFrameObject *)frame)->f_gen;
        Py_XINCREF(generator);
        return generator;
    #endif
    }

    static int dwsr_code_flags(PyObject *frame)
    {
        PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
        int flags = code->co_flags;
        Py_DECREF(code);
        return flags;
    }

    /* Each running generator has an entry on the thread's stack of handled exceptions. */
    static int dwsr_generator_runs(void)
    {
        PyThreadState *state = PyThreadState_Get();
        return state->exc_info != &state->exc_state;
    }

    /* Changes whenever a contextvars.Context is entered or left: in each step of asyncio, uvloop
     * and trio, and in each switch between greenlets. */
    static uint64_t dwsr_context_version(void) { return PyThreadState_Get()->context_ver; }
    """
    PyObject *dwsr_current_frame()  # a borrowed reference
    PyObject *dwsr_caller_of(object frame)
    PyObject *dwsr_generator_of(object frame)
    int dwsr_code_flags(object frame)
    bint dwsr_generator_runs()
    uint64_t dwsr_context_version()
    const int CO_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE, CO_ASYNC_GENERATOR

cdef int COROUTINE_LIKE = CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR
cdef dict modules = sys.modules
cdef object running_loop = None  # asyncio's own function, once the job has imported asyncio
cdef object in_trio = None  # trio's own function, once the job has imported trio
cdef object current_greenlet = None  # greenlet's own function, once the job has imported greenlet
cdef frozenset yields = None  # opcodes at which a generator or a coroutine may be suspended


cdef object owned(PyObject *reference):
    """The object of a new reference; None for NULL."""
    if reference == NULL:
        return None
    found = <object>reference
    Py_DECREF(found)
    return found


# -- what is loaded

cdef bint in_event_loop() except -1:
    """Whether this thread runs an event loop of asyncio (or uvloop) or trio."""
    global running_loop, in_trio
    if running_loop is None:
        module = modules.get("_asyncio")
        if module is not None:
            running_loop = module._get_running_loop
    if running_loop is not None and running_loop() is not None:
        return True
    if in_trio is None:
        module = modules.get("trio.lowlevel")
        if module is None:
            return False
        in_trio = getattr(module, "in_trio_run", bool)  # bool: an older trio
    return in_trio()


cdef object greenlet_now():
    """The greenlet that this thread runs; None if the job has not imported greenlet."""
    global current_greenlet
    if current_greenlet is None:
        module = modules.get("greenlet")
        if module is None:
            return None
        current_greenlet = getattr(module, "getcurrent", None)  # None: it is being imported
        if current_greenlet is None:
            return None
    return current_greenlet()


cdef bint of_contextlib(object frame):
    module = modules.get("contextlib")
    return module is not None and frame.f_globals is module.__dict__


# -- generators

cdef object innermost_generator():
    """The frame of the innermost generator, coroutine or async generator on this thread's stack
    that contextlib neither drives nor defines; None if there is none."""
    cdef PyObject *current = dwsr_current_frame()
    if current == NULL:
        return None
    frame = <object>current
    while frame is not None:
        caller = owned(dwsr_caller_of(frame))
        if (dwsr_code_flags(frame) & (CO_GENERATOR | COROUTINE_LIKE)
                and not of_contextlib(frame)
                and (caller is None or not of_contextlib(caller))):
            return frame
        frame = caller
    return None


cdef object frame_of(object generator):
    """The frame of a generator, coroutine or async generator; None if it has ended."""
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        frame = getattr(generator, name, None)
        if frame is not None:
            return frame
    return None


cdef bint may_yield(object code, int begin, int end) except -1:
    """Whether the code has a `yield` or an `await` between two instructions."""
    global yields
    cdef bytes instructions = code.co_code
    cdef int i
    if end < begin:  # a loop went back: somewhere in the code there is one
        return True
    if yields is None:
        import opcode
        yields = frozenset(
            number for name, number in opcode.opmap.items() if name.startswith("YIELD"))
    for i in range(begin, end, 2):
        if instructions[i] in yields:
            return True
    return False


# -- contexts

@cython.final
cdef class Context:
    """What a block began in. References are weak, because the job's data must not live longer."""

    cdef bint is_on_stack(self) except -1:
        """Whether this thread runs the context now. Otherwise the context is suspended or over."""
        if self.greenlet is not None and self.greenlet() is not greenlet_now():
            return False
        if self.generator is None:
            return not self.is_callback or dwsr_context_version() == self.version
        frame = frame_of(self.generator())
        # The frame of a suspended generator has no caller. (`ag_running` would be true while an
        # async generator is suspended in an `await`.)
        return frame is not None and frame.f_back is not None

    cdef switch switched(self, object error) except *:
        """Whether the context was suspended since the block began. error: what ends the block."""
        if not self.is_on_stack():
            return SWITCH_CERTAIN
        if self.kind & COROUTINE_LIKE or self.in_greenlet:
            if dwsr_context_version() != self.version:
                return SWITCH_CERTAIN
        if self.generator is None:
            return SWITCH_NONE
        if error is GeneratorExit or isinstance(error, GeneratorExit):
            return SWITCH_CERTAIN  # closed, or collected as garbage
        if self.kind & CO_COROUTINE and in_event_loop():
            return SWITCH_NONE
        # The version says nothing about a `yield`, nor about a coroutine that the job itself
        # drives.
        frame = frame_of(self.generator())
        if may_yield(frame.f_code, self.begin_at, frame.f_lasti):
            return SWITCH_POSSIBLE
        return SWITCH_NONE


cdef Context current_context():
    """The context of a block that begins now; None: the thread itself, which nothing suspends."""
    cdef Context context
    frame = innermost_generator() if dwsr_generator_runs() else None
    greenlet = greenlet_now()
    cdef bint is_callback = frame is None and in_event_loop()
    if frame is None and greenlet is None and not is_callback:
        return None
    context = Context.__new__(Context)
    context.version = dwsr_context_version()
    context.is_callback = is_callback
    if frame is not None:
        context.generator = PyWeakref_NewRef(owned(dwsr_generator_of(frame)), None)
        context.begin_at = frame.f_lasti
        context.kind = dwsr_code_flags(frame)
    if greenlet is not None:
        context.greenlet = PyWeakref_NewRef(greenlet, None)
        # gevent's and eventlet's loops also suspend the first greenlet of a thread
        context.in_greenlet = (
            greenlet.parent is not None or "gevent" in modules or "eventlet" in modules)
    return context
