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


cdef object coroutine_of_step():
    """The coroutine that this thread's event loop drives now; None if it drives none."""
    if running_loop is not None and running_loop() is not None:
        task = modules["asyncio.tasks"].current_task()
        if task is not None:
            return task.get_coro()
    if in_trio is not None and in_trio():
        return modules["trio.lowlevel"].current_task().coro
    return None


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


cdef bint is_driven_by_loop(object frame) except -1:
    """Whether an event loop drives this frame's coroutine, through those that await it.

    Otherwise code of the job does, with `send`, and the version does not change.
    """
    cdef bytes instructions
    if not in_event_loop():
        return False
    outermost = frame_of(coroutine_of_step())
    while frame is not outermost:
        frame = owned(dwsr_caller_of(frame))
        if frame is None:
            return False
        instructions = frame.f_code.co_code
        if instructions[instruction_at(instructions, frame.f_lasti)] not in opcodes.awaits:
            return False
    return True


# -- code: whether it can be suspended between two instructions

@cython.final
cdef class Opcodes:
    """Numbers of this Python's instructions, by what they do."""
    cdef frozenset yields  # may suspend a generator or a coroutine
    cdef frozenset awaits  # at which a coroutine is while it awaits another one that runs
    cdef frozenset jumps_by, jumps_back  # all; of these, backward
    cdef frozenset leaves  # the next instruction does not follow
    cdef int extended, cache

    def __cinit__(self):
        import opcode

        def named(*starts):
            return frozenset(
                number for name, number in opcode.opmap.items()
                if name.startswith(starts) and name != "RETURN_GENERATOR")

        self.yields = named("YIELD")
        self.awaits = named("YIELD", "SEND", "RESUME")  # while it is thrown into: the others
        self.jumps_by = frozenset(opcode.hasjrel)
        self.jumps_back = frozenset(
            number for number in opcode.hasjrel if "BACKWARD" in opcode.opname[number])
        self.leaves = named("JUMP_FORWARD", "JUMP_BACKWARD", "RETURN", "RERAISE", "RAISE")
        self.extended = opcode.EXTENDED_ARG
        self.cache = opcode.opmap.get("CACHE", -1)


cdef Opcodes opcodes = None  # made when the first block begins in a generator
cdef dict known_code = {}  # (code, begin, end) → whether it may yield in between
cdef int KNOWN_CODE_MOST = 1000


cdef bint may_yield(object code, int begin, int end) except -1:
    """Whether there is a `yield` or an `await` on a way through the code from one instruction to
    another one."""
    cdef bytes instructions
    if begin == end:  # one call, which has entered and left the block
        return False
    key = (code, begin, end)
    found = known_code.get(key)
    if found is None:
        instructions = code.co_code
        found = any_of(instructions, opcodes.yields) and passes_yield(
            code, instruction_at(instructions, begin), instruction_at(instructions, end))
        if len(known_code) >= KNOWN_CODE_MOST:
            known_code.clear()
        known_code[key] = found
    return found


cdef int instruction_at(bytes instructions, int at):
    """During a call, f_lasti may be that of the call's last cache entry."""
    while at > 0 and instructions[at] == opcodes.cache:
        at -= 2
    return at


cdef bint any_of(bytes instructions, frozenset numbers) except -1:
    cdef Py_ssize_t i
    for i in range(0, len(instructions), 2):
        if instructions[i] in numbers:
            return True
    return False


cdef bint passes_yield(object code, int begin, int end) except -1:
    """Ways that come back to `begin` are left out: a `with` statement is left before."""
    cdef bytes instructions = code.co_code
    cdef list handlers
    if not hasattr(code, "co_exceptiontable"):  # Python 3.10: handlers stand where they are written
        return end < begin or any_of(instructions[begin:end], opcodes.yields)
    handlers = exception_handlers(code, len(instructions))
    cdef bytearray seen = reachable(instructions, handlers, [begin], begin, end)
    cdef list found = [
        i for i in range(0, len(instructions), 2)
        if seen[i] and instructions[i] in opcodes.yields]
    return reachable(instructions, handlers, found, begin, end)[end]


cdef bytearray reachable(bytes instructions, list handlers, list ahead, int begin, int end):
    """For each byte of the code, whether the instruction there may be executed after those in
    `ahead`, and before `begin` and `end` are."""
    cdef Py_ssize_t size = len(instructions), i, following
    cdef bytearray seen = bytearray(size)
    cdef int number, argument, back
    while ahead:
        i = ahead.pop()
        number, argument = instructions[i], instructions[i + 1]
        targets = [] if handlers[i // 2] is None else [handlers[i // 2]]
        following = i + 2
        while following < size and instructions[following] == opcodes.cache:
            following += 2
        if number not in opcodes.leaves:
            targets.append(following)
        back = 1
        while i >= 2 * back and instructions[i - 2 * back] == opcodes.extended:
            argument |= instructions[i - 2 * back + 1] << 8 * back
            back += 1
        if number in opcodes.jumps_back:
            targets.append(following - 2 * argument)
        elif number in opcodes.jumps_by:
            targets.append(following + 2 * argument)
        for target in targets:
            if 0 <= target < size and not seen[target]:
                seen[target] = True
                if target != begin and target != end:
                    ahead.append(target)
    return seen


cdef list exception_handlers(object code, Py_ssize_t size):
    """For each instruction, where its exceptions are handled, or None."""
    cdef list numbers = [], handlers = [None] * (size // 2)
    cdef Py_ssize_t i, first
    cdef int byte, value = 0
    for byte in code.co_exceptiontable:  # numbers of six bits, the highest first
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for i in range(0, len(numbers) - 3, 4):  # start, length, target, depth of the stack
        first = numbers[i]
        for at in range(first, min(first + numbers[i + 1], size // 2)):
            handlers[at] = 2 * numbers[i + 2]
    return handlers


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
        cdef bint same_version = dwsr_context_version() == self.version
        if not self.is_on_stack():
            return SWITCH_CERTAIN
        # A function that the block itself runs in another context (`Context.run`) changes the
        # version, too. Nothing tells it from a switch between greenlets.
        if self.in_greenlet and not same_version:
            return SWITCH_CERTAIN
        if self.generator is None:
            return SWITCH_NONE
        if error is GeneratorExit or isinstance(error, GeneratorExit):
            return SWITCH_CERTAIN  # closed, or collected as garbage
        frame = frame_of(self.generator())
        if not may_yield(frame.f_code, self.begin_at, frame.f_lasti):
            return SWITCH_NONE
        # The version says nothing about a `yield`, nor about a coroutine that the job itself
        # drives.
        if self.kind & COROUTINE_LIKE and not same_version:
            return SWITCH_CERTAIN
        if self.kind & CO_COROUTINE and is_driven_by_loop(frame):
            return SWITCH_NONE
        return SWITCH_POSSIBLE


cdef Context current_context():
    """The context of a block that begins now; None: the thread itself, which nothing suspends."""
    global opcodes
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
        if opcodes is None:
            opcodes = Opcodes()
        context.generator = PyWeakref_NewRef(owned(dwsr_generator_of(frame)), None)
        context.begin_at = frame.f_lasti
        context.kind = dwsr_code_flags(frame)
    if greenlet is not None:
        context.greenlet = PyWeakref_NewRef(greenlet, None)
        # gevent's and eventlet's loops also suspend the first greenlet of a thread
        context.in_greenlet = (
            greenlet.parent is not None or "gevent" in modules or "eventlet" in modules)
    return context
