# cython: language_level=3, freethreading_compatible=True
"""Begin and end of a task, and the blocks that programs write: `task` and `adopt`.

Called by programs (dwsr_probe.task), the decorator and, through tasks.pxd, by graph_tasks.pyx.
"""
cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from csrc.board_layout cimport (
    ABSENT, REASON_COROUTINE, REASON_FOREIGN_ALLOCATOR, REASON_NONE, TASK_CANCELLED, TASK_ERROR,
    TASK_OK)
from csrc.frame cimport text
from csrc.handle cimport NOBODY, is_somebody, task_handle
from csrc.hold cimport hold
from csrc.params cimport params, params_close, params_open
from csrc.probe cimport (
    probe_active, probe_adopt, probe_instance, probe_live_bytes, probe_task_begin,
    probe_task_detach, probe_task_end)
from csrc.tasks cimport task_begin, task_end
from csrc.unowned cimport unowned_name, unowned_next_unnamed
from dwsr_probe._core cimport report_missing_room
from dwsr_probe.binding.contexts cimport (
    SWITCH_CERTAIN, SWITCH_NONE, Context, current_context, switch)
from dwsr_probe.binding.features cimport byte_count, describe_returned, fill_listing, listing
from dwsr_probe.binding.params cimport add_arguments, add_features, is_recording

from dwsr_probe import outcome

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyEval_SaveThread() nogil
    void PyEval_RestoreThread(PyThreadState *state) nogil


cdef object collect = None  # gc.collect, or None: no collections
cdef bint collect_after = False
cdef object foreign_counter = None  # counts allocations that the accounting does not see, or None
cdef begin_check check_before_begin = NULL
cdef object name_threads = None  # of dwsr_probe.follow.threads
# thread → its open blocks that have a context, in the order of their begins. Another thread may end
# a block, at the same time in a Python without GIL: it only removes the block from the list. Lists
# are made, extended and removed by their own thread.
cdef dict blocks_in_contexts = {}


def use_gc(function, bint after):
    """function: collects garbage before each task; None: no collections.

    after: also collect after each task, to measure what the task left as garbage.
    """
    global collect, collect_after
    collect, collect_after = function, after


def use_foreign_counter(function):
    """`function` counts allocations that the accounting does not see (those of Arrow's pool).

    If the count changes during a task, the task's attribution is shared. None: no such function.
    """
    global foreign_counter
    foreign_counter = function


def use_thread_names(function):
    """`function` names the threads that allocate for no task while tasks run (unnamed_thread,
    name_thread). None: no such function, and they are not counted."""
    global name_threads
    name_threads = function


def unnamed_thread():
    """(entry, id) of a thread that has allocated for no task and has no name yet, or None."""
    cdef uint32_t thread = 0
    cdef uint32_t entry = unowned_next_unnamed(&thread)
    return (entry, thread) if entry else None


def name_thread(uint32_t entry, bytes name, bint counts):
    """counts: tasks are marked if this thread takes much memory while they run."""
    unowned_name(entry, text(at=<const char *>name, len=len(name)), counts)


cdef int name_new_threads() except -1:
    """At each begin and end: what a thread has taken before is no evidence against a new task."""
    cdef uint32_t thread
    if unowned_next_unnamed(&thread):
        try:
            name_threads()
        except Exception:  # names are the job's objects
            pass
    return 0


cdef void set_begin_check(begin_check check) noexcept:
    """Have `check` called before each task begins; NULL: no check."""
    global check_before_begin
    check_before_begin = check


cdef object count_foreign_allocations():
    try:
        return foreign_counter()
    except Exception:
        return None


cdef bytes as_bytes(object value):
    """A name or key in UTF-8, whatever object the job uses as one."""
    if isinstance(value, bytes):
        return <bytes>value
    try:
        return str(value).encode("utf-8", "replace")
    except Exception:
        return type(value).__name__.encode("utf-8", "replace")


# -- the GIL during a boundary (hold.h)

cdef struct gil:
    hold hold  # the first member: a boundary gets its address
    PyThreadState *state


cdef void release_gil(hold *h) noexcept nogil:
    (<gil *>h).state = PyEval_SaveThread()


cdef void retake_gil(gil *held) noexcept nogil:
    """After a boundary, which releases the GIL if it has to wait."""
    if held.hold.released:
        PyEval_RestoreThread(held.state)


# -- begin and end

@cython.final
@cython.freelist(64)
cdef class OpenTask:
    """A task that has begun. Hooks of frameworks keep it until they end the task."""

    def __dealloc__(self):
        free(self.inputs)


cdef OpenTask begin_task(
        bytes name, bytes key, const listing *inputs, const params *given, bytes operation,
        bytes chain, int reason, uint64_t worker):
    """inputs and given may be NULL. operation, chain: of a graph's task, or empty.

    reason: not REASON_NONE if other work runs in the thread meanwhile.
    """
    cdef OpenTask opened = OpenTask.__new__(OpenTask)
    cdef task_begin b
    cdef gil held
    cdef task_handle begun
    if collect is not None:
        collect()
    if foreign_counter is not None:
        opened.foreign_count = count_foreign_allocations()
    b.name = text(at=<const char *>name, len=len(name))
    b.key = text(at=<const char *>key, len=len(key))
    b.operation = text(at=<const char *>operation, len=len(operation))
    b.chain = text(at=<const char *>chain, len=len(chain))
    b.params = b.params_values = text(at=NULL, len=0)
    if given != NULL:
        b.params = text(at=&given.names[0], len=given.names_len)
        b.params_values = text(at=<const char *>&given.values[0], len=given.values_len)
    b.inputs = text(at=NULL, len=0)
    b.input_bytes = ABSENT
    b.input_count = b.inputs_omitted = 0
    if inputs != NULL:
        b.inputs = text(at=&inputs.text[0], len=inputs.size)
        b.input_bytes, b.input_count = inputs.total_bytes, inputs.count
        b.inputs_omitted = inputs.omitted
    b.reason = reason
    b.detached = reason != REASON_NONE
    b.worker = worker
    if name_threads is not None:
        name_new_threads()
    if check_before_begin != NULL:
        check_before_begin()
    if blocks_in_contexts:
        detach_suspended_blocks()
    opened.probe_instance = probe_instance()
    opened.thread = PyThread_get_thread_ident()
    held.hold.release, held.hold.released = release_gil, 0
    begun = probe_task_begin(&b, &held.hold)
    retake_gil(&held)
    opened.handle = begun
    if not is_somebody(opened.handle):
        report_missing_room()
    return opened


cdef int end_task(
        OpenTask opened, const listing *inputs, bytes output, uint64_t output_bytes,
        bint cancelled, object error) except -1:
    """inputs: if not NULL, what the task has turned out to read. output: JSON.

    error: the exception that ended the task, its class, or None.
    """
    cdef task_end e
    cdef gil held
    # After a fork or a restart of the probe the task belongs to another board.
    if not is_somebody(opened.handle) or opened.probe_instance != probe_instance():
        forget_block(opened)
        return 0
    e.state = TASK_CANCELLED if cancelled else TASK_OK
    e.output_bytes = output_bytes
    e.gc_freed_bytes = e.requested_bytes = ABSENT
    e.reason, e.out_of_memory = REASON_NONE, 0
    e.inputs = text(at=NULL, len=0)
    if inputs != NULL:
        e.inputs = text(at=&inputs.text[0], len=inputs.size)
        e.input_bytes, e.inputs_omitted = inputs.total_bytes, inputs.omitted
    try:  # Ctrl-C may arrive in any of these, and the task ends all the same
        if error is not None:
            set_end_state(&e, error)
        if foreign_counter is not None:
            if count_foreign_allocations() != opened.foreign_count:
                e.reason = REASON_FOREIGN_ALLOCATOR
        if name_threads is not None:
            name_new_threads()
        if opened.context is not None and leave_context(opened, error) != SWITCH_NONE:
            e.reason = REASON_COROUTINE
        if blocks_in_contexts:
            detach_suspended_blocks()
        if collect is not None and collect_after:
            e.gc_freed_bytes = freed_by_collection(opened.handle)
    finally:
        e.output = text(at=<const char *>output, len=len(output))
        held.hold.release, held.hold.released = release_gil, 0
        probe_task_end(opened.handle, &e, &held.hold)
        retake_gil(&held)
        opened.handle = NOBODY
    return 0


cdef int set_end_state(task_end *e, object error) except -1:
    """Failed or cancelled, and whether memory was lacking, by the exception that ended the task."""
    try:
        if e.state != TASK_CANCELLED:
            e.state = TASK_ERROR
            if outcome.is_cancellation(error):
                e.state = TASK_CANCELLED
        e.out_of_memory = outcome.lacks_host_memory(error)
        if e.out_of_memory:
            e.requested_bytes = byte_count(outcome.requested_bytes(error))
    except Exception:  # the metaclass of the job's own exception
        pass
    return 0


cdef uint64_t freed_by_collection(task_handle handle):
    """Bytes of the task's own memory that a collection frees.

    Finalizers are the job's code: Python itself reports the exceptions they raise.
    """
    cdef uint64_t before = probe_live_bytes(handle), after
    collect()
    after = probe_live_bytes(handle)
    if before == ABSENT or after == ABSENT:
        return ABSENT
    return before - after if before > after else 0


# -- blocks in coroutines, generators and greenlets

cdef void enter_context(OpenTask opened, Context context):
    opened.context = context
    blocks_in_contexts.setdefault(opened.thread, []).append(opened)


cdef switch leave_context(OpenTask opened, object error) except *:
    """At the end of a block: whether its thread has done other work in between."""
    cdef switch found = SWITCH_CERTAIN
    try:
        if opened.thread == PyThread_get_thread_ident():
            found = opened.context.switched(error)
    except Exception:  # what cannot be known is not exact
        pass
    forget_block(opened)
    if found == SWITCH_CERTAIN:
        detach_block(opened)
    return found


cdef void forget_block(OpenTask opened):
    """Its context stays: another thread may be looking at it."""
    blocks = blocks_in_contexts.get(opened.thread)
    if blocks is None:
        return
    try:
        blocks.remove(opened)
    except ValueError:  # detached before, or no block in a context
        pass
    if not blocks and opened.thread == PyThread_get_thread_ident():
        blocks_in_contexts.pop(opened.thread, None)


cdef void detach_block(OpenTask opened):
    cdef gil held
    if opened.probe_instance != probe_instance():
        return
    held.hold.release, held.hold.released = release_gil, 0
    probe_task_detach(opened.handle, &held.hold)
    retake_gil(&held)


cdef void detach_suspended_blocks():
    """Detach the open blocks of this thread whose context is suspended or over."""
    cdef OpenTask opened
    cdef bint on_stack
    cdef unsigned long me = PyThread_get_thread_ident()
    blocks = blocks_in_contexts.get(me)
    if not blocks:  # none, or other threads have ended them
        blocks_in_contexts.pop(me, None)
        return
    for opened in reversed(list(blocks)):  # the inner ones first
        try:
            on_stack = opened.context.is_on_stack()
        except Exception:
            on_stack = False
        if not on_stack:
            forget_block(opened)
            detach_block(opened)


# -- the blocks

cdef class task:
    """A block of work whose memory is measured: `with task("glcm", inputs=[volume]):`.

    name: what the table groups by.
    inputs: arrays that the work reads. Their types, shapes and sizes are recorded, never their
    contents, and they are not kept alive.
    features: numbers and booleans that are known about the data, as in {"nnz": n}: recorded as
    `params`.
    key: names this one execution.
    output: assign the result to this attribute inside the block to have its size recorded.

    As a decorator, `@task("glcm")`: the arguments are the inputs, numbers and booleans among them
    are `params`, and the returned value is the output (not for generator functions: they return at
    once). Blocks may nest and may run in any thread. A block in a coroutine that is suspended
    meanwhile has no figures of its own. Without a probe in the process a block does nothing.
    """
    cdef object name, inputs, key
    cdef dict features
    cdef public object output
    # Kept for the next time that the same block is entered: the inputs themselves may be gone.
    cdef listing *described
    cdef params *given
    cdef list entered  # an OpenTask per time: a block may be entered again, and in several threads

    def __init__(self, name, inputs=None, *, features=None, key=None):
        if callable(name) and not isinstance(name, type):
            raise TypeError("a task needs a name: write @dwsr_probe.task('name')")
        self.name = name
        if features is not None and not isinstance(features, dict):
            raise TypeError(
                f"the features of a task are a dict of numbers, not a {type(features).__name__}")
        self.inputs = inputs
        self.features = None if features is None else dict(features)
        self.key = key

    def __dealloc__(self):
        free(self.described)
        free(self.given)

    cdef int list_params(self, object function, tuple args, dict kwargs, Py_ssize_t first):
        """List the features, and the arguments of a call from position `first` on. function: None
        for a block."""
        cdef params *found
        if not is_recording() or self.given != NULL:
            return 0
        found = <params *>malloc(sizeof(params))
        if found == NULL:
            return 0
        params_open(found)
        try:
            if self.features is not None:
                wrong = add_features(found, self.features)
                if wrong is not None:
                    say_wrong_features(self.name, wrong)
            if function is not None:
                add_arguments(found, function, args, kwargs, first)
        except Exception:  # the job comes first
            pass
        params_close(found)
        with cython.critical_section(self):
            if self.given == NULL:
                self.given, found = found, NULL
        free(found)  # another thread has entered the block meanwhile
        return 0

    def __enter__(self):
        cdef OpenTask opened
        cdef Context context
        cdef int reason
        if probe_active():
            if self.inputs is not None and self.described == NULL:
                self.described = <listing *>malloc(sizeof(listing))
                if self.described != NULL:
                    fill_listing(self.described, self.inputs)
            self.list_params(None, None, None, 0)
            try:
                context, reason = current_context(), REASON_NONE
            except Exception:  # what cannot be known is not exact
                context, reason = None, REASON_COROUTINE
            opened = begin_task(
                as_bytes(self.name), b"" if self.key is None else as_bytes(self.key),
                self.described, self.given, b"", b"", reason, ABSENT)
            if context is not None:
                enter_context(opened, context)
            with cython.critical_section(self):
                if self.entered is None:
                    self.entered = []
                self.entered.append(opened)
        self.inputs = None  # the job may free their memory inside the block
        return self

    cdef OpenTask pop_entered(self):
        """The task that this thread opened last, else the one that was opened last, else None."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef Py_ssize_t i
        with cython.critical_section(self):
            if not self.entered:
                return None
            for i in range(len(self.entered) - 1, -1, -1):
                if (<OpenTask>self.entered[i]).thread == me:
                    return self.entered.pop(i)
            return self.entered.pop()

    def __exit__(self, kind, value, trace):
        cdef OpenTask opened
        cdef bytes described = b""
        cdef uint64_t nbytes = ABSENT
        output, self.output = self.output, None
        if self.entered is None or (opened := self.pop_entered()) is None:
            return None
        if output is not None:
            described = describe_returned(output, None, &nbytes)
            output = None
        end_task(opened, NULL, described, nbytes, False, kind if value is None else value)
        return None

    def __call__(self, function):
        from dwsr_probe.decorator import wrap_function
        return wrap_function(function, self.name, self.inputs, self.key, self.features)


def call_block(
        task block not None, object function, tuple args not None, dict kwargs not None,
        Py_ssize_t first):
    """The block, with the numbers among the arguments of a call as parameters. first: the position
    of the first argument that is no `self`."""
    block.list_params(function, args, kwargs, first)
    return block


cdef void say_wrong_features(object name, object wrong):
    from dwsr_probe.say import say_once
    say_once(
        "features",
        f"task {as_bytes(name).decode('utf-8', 'replace')[:64]!r}: {wrong}: this feature is left"
        " out of the record")


cdef class adopt:
    """Work for a task from another thread: `with adopt(block):`, `block` being its open block.

    Allocations of this thread inside count for that task, as long as the task runs and this thread
    runs no task of its own.
    """
    cdef task block
    cdef task_handle before

    def __init__(self, task block not None):
        self.block = block

    def __enter__(self):
        cdef OpenTask opened
        cdef task_handle handle = NOBODY
        with cython.critical_section(self.block):
            if self.block.entered:
                opened = self.block.entered[len(self.block.entered) - 1]
                if opened.probe_instance == probe_instance():
                    handle = opened.handle
        self.before = probe_adopt(handle)
        return self.block

    def __exit__(self, kind, value, trace):
        probe_adopt(self.before)
        return None
