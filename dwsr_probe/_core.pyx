# cython: language_level=3, freethreading_compatible=True
"""Binding of csrc/: convert, call, convert back. The probe of this process, the `task` block, and the reader of boards."""
cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, intptr_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import os
import sys


cdef extern from "board_layout.h" nogil:
    enum:
        BOARD_CLOSED, BOARD_CLOSED_ERROR
        TASK_OK, TASK_ERROR, TASK_CANCELLED
        ATTRIBUTION_EXACT, ATTRIBUTION_SHARED
    const uint64_t C_ABSENT "ABSENT"
    const uint64_t C_BOARD_VERSION "BOARD_VERSION"
    const uint64_t C_BOARD_VERSION_OLDEST "BOARD_VERSION_OLDEST"
    const uint64_t C_BOARD_BYTES "BOARD_BYTES"
    struct board_header:
        uint64_t version, slot_count, device_count, total_count
    struct board_live:
        uint64_t state, totals_used
    struct slot_fields:
        uint64_t alloc_serial, alloc_live_bytes, alloc_peak_bytes, alloc_count, gpu_serial
    struct task_fields:
        uint64_t serial, seq, alloc_peak_bytes, alloc_end_bytes, alloc_count, pinned_peak_bytes, pinned_end_bytes
    struct task_device:
        uint64_t device, live_bytes, peak_bytes
    struct task_oom:
        uint64_t count
    enum:
        TASK_DEVICES
        TOTAL_CELLS, BARE_CELLS
    struct device_fields:
        uint64_t present
    struct device:
        device_fields fields
        const char *name
        const char *uuid
    struct sample:
        uint64_t time_ns
    struct facts:
        uint64_t len
        char text[1]
    struct total_fields:
        uint64_t name
    struct total_device:
        uint64_t device
    struct total:
        total_fields fields
        total_device *devices
        uint32_t *alloc
        uint32_t *growth
        uint32_t *duration
        uint32_t *bare

cdef extern from "layout.h" nogil:
    enum:
        LAYOUT_LIVE, LAYOUT_TASK, LAYOUT_TASK_DEVICE, LAYOUT_OOM, LAYOUT_DEVICE, LAYOUT_TOTAL, LAYOUT_TOTAL_DEVICE
    struct layout:
        pass
    int layout_parse(layout *l, const char *text, uint64_t len)
    const char *const *layout_names(int list)

cdef extern from "frame.h" nogil:
    enum:
        TEXT_name, TEXT_key_prefix, TEXT_key_rest, TEXT_inputs, TEXT_output, TEXT_COUNT
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
    uint64_t frame_whole(const layout *l, const char *frame, uint64_t available)
    int frame_unpack(const layout *l, const char *frame, record *r)

cdef extern from "tasks.h" nogil:
    struct task_begin:
        text name, key, inputs
        uint64_t input_bytes, input_count, inputs_omitted
        int attribution, detached
        uint64_t worker
    struct task_end:
        int state
        text output
        uint64_t output_bytes, gc_freed_bytes, requested_bytes
        int shared, out_of_memory

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*call)(void *) noexcept, void *argument)

cdef extern from "clock.h" nogil:
    uint64_t now_ns()

cdef extern from "handle.h" nogil:
    ctypedef struct task_handle:
        uint64_t word  # to carry it through Python; 0: nobody
    const task_handle NOBODY
    bint is_somebody(task_handle task)

cdef extern from "hold.h" nogil:
    struct hold:
        void (*let_go)(hold *h) noexcept nogil
        int gone

cdef extern from "probe.h" nogil:
    struct probe_settings:
        const char *directory
        const char *run
        const char *host
        const char *task_name
        const char *worker
        const char *python
        const char *proc_root
        const char *cgroup_root
        uint64_t period_ns, alloc_from
        int keep_peak, alloc
        int (*is_python_thread)() noexcept nogil
    const int PROBE_DESCRIPTORS_LEAST
    int probe_check_limits(const char **failed_step)
    int probe_start(const probe_settings *s, const char **failed_step)
    void probe_stop(int state, int at_exit, int remove)
    int probe_active()
    uint64_t probe_generation()
    int probe_board_path(char *path, size_t size)
    void probe_expect_tasks()
    int probe_room_failure(int *error, const char **failed_step)
    task_handle probe_task_begin(const task_begin *begin, hold *h)
    void probe_task_end(task_handle task, const task_end *end, hold *h)
    task_handle probe_adopt(task_handle task)
    task_handle probe_current()
    uint64_t probe_live_bytes(task_handle task)
    void probe_fork_announced()
    void probe_fork_done()
    int probe_set_facts(const char *text, uint64_t len)
    void probe_note_hooks(uint64_t kind)
    int probe_say_first(unsigned kind)
    void probe_note_exec()
    void probe_note_unprobed_child()

cdef extern from "board_read.h" nogil:
    enum:
        BOARD_NOT_READY, BOARD_FOREIGN, BOARD_VERSION_UNKNOWN, BOARD_DAMAGED, BOARD_CUT_SHORT, BOARD_UNREADABLE
    const char *board_header_names[1]
    const char *board_text_names[1]
    const char *board_sample_names[1]
    struct board_reader:
        int fd
        uint64_t inode
        board_header header
        layout layout
        char layout_text[1]
    struct running_task:
        slot_fields slot
        task_device *gpu
        task_fields task
        text name, key, inputs
    const char *board_reader_text(const board_reader *r, int index, uint64_t *len)
    int board_reader_open(board_reader *r, const char *path)
    void board_reader_close(board_reader *r)
    int board_read_live(const board_reader *r, board_live *live)
    int board_read_facts(const board_reader *r, facts *f)
    int board_read_device(const board_reader *r, uint64_t index, device *d)
    int board_read_slot(board_reader *r, uint64_t index, running_task *task)
    int64_t board_read_records(board_reader *r, uint64_t *position, char *frames, uint64_t size, uint64_t most)
    int64_t board_read_texts(board_reader *r, uint64_t *position, char *texts, uint64_t size)
    int board_read_total(board_reader *r, uint64_t index, total *t)
    int64_t board_read_samples(const board_reader *r, uint64_t *index, sample *samples, uint64_t most)

cdef extern from "board.h" nogil:
    struct board:
        pass
    struct board_settings:
        const char *directory
        uint64_t pid
    int board_create(board *b, const board_settings *s, const char **failed_step)
    int board_grow(board *b, const char **failed_step)
    void board_unmap(board *b, int remove)

cdef extern from "gpu.h" nogil:
    enum:
        C_GPU_PINNED "GPU_PINNED"
        C_OOM_HOST "OOM_HOST"

cdef extern from "alloc.h" nogil:
    const uint64_t ALLOC_LARGE
    int alloc_start(uint64_t large_from)
    void alloc_stop(int at_exit)
    int alloc_holds()

cdef extern from "patch.h" nogil:
    const char *patch_provider()

cdef extern from "limit.h" nogil:
    uint64_t limit_bytes(const char *proc_root, const char *cgroup_root)

cdef extern from "errno.h" nogil:
    int errno

cdef tuple names(const char **list):
    cdef int i = 0
    found = []
    while list[i] != NULL:
        found.append(list[i].decode())
        i += 1
    return tuple(found)


ABSENT = C_ABSENT
BOARD_VERSION = C_BOARD_VERSION
BOARD_VERSION_OLDEST = C_BOARD_VERSION_OLDEST
BOARD_BYTES = C_BOARD_BYTES
DESCRIPTORS_LEAST = PROBE_DESCRIPTORS_LEAST
PINNED, OOM_ON_HOST = C_GPU_PINNED, C_OOM_HOST  # in place of a device's number
HEADER_FIELDS = names(<const char **>board_header_names)[:-1]  # without the checksum
HEADER_TEXTS = names(<const char **>board_text_names)
SAMPLE_FIELDS = names(<const char **>board_sample_names)
LIVE_FIELDS = names(<const char **>layout_names(LAYOUT_LIVE))
TASK_FIELDS = names(<const char **>layout_names(LAYOUT_TASK))
TASK_DEVICE_FIELDS = names(<const char **>layout_names(LAYOUT_TASK_DEVICE))
OOM_FIELDS = names(<const char **>layout_names(LAYOUT_OOM))
DEVICE_FIELDS = names(<const char **>layout_names(LAYOUT_DEVICE))
TOTAL_FIELDS = names(<const char **>layout_names(LAYOUT_TOTAL))
TOTAL_DEVICE_FIELDS = names(<const char **>layout_names(LAYOUT_TOTAL_DEVICE))


cdef extern from "Python.h" nogil:
    void *PyGILState_GetThisThreadState()


cdef int is_python_thread() noexcept nogil:
    return PyGILState_GetThisThreadState() != NULL


# -- the probe of this process --------------------------------------------------------------------------------------------------------

def start(bytes directory, bytes run, bytes host, bytes task_name, bytes worker, bytes python, uint64_t period_ns, bint keep_peak, bint alloc,
          uint64_t alloc_from=ALLOC_LARGE, bytes proc_root=b"/proc", bytes cgroup_root=b"/sys/fs/cgroup"):
    """Start the probe; OSError(errno, what was being done) if it cannot."""
    cdef probe_settings s = probe_settings(
        directory=directory, run=run, host=host, task_name=task_name, worker=worker, python=python, proc_root=proc_root,
        cgroup_root=cgroup_root, period_ns=period_ns, keep_peak=keep_peak, alloc=alloc, alloc_from=alloc_from, is_python_thread=is_python_thread)
    cdef const char *failed_step = NULL
    cdef int e
    with nogil:
        e = probe_start(&s, &failed_step)
    if e < 0:
        raise OSError(-e, failed_step.decode())


def stop(bint error=False, bint at_exit=False, bint remove=False):
    cdef int state = BOARD_CLOSED_ERROR if error else BOARD_CLOSED
    with nogil:
        probe_stop(state, at_exit, remove)


def expect_tasks():
    """Make room for tasks now, not when the first one begins."""
    with nogil:
        probe_expect_tasks()
    say_no_room()


cdef object when_no_room = None


def use_no_room(call):
    """call(OSError) where there is no room for tasks; at most once a start."""
    global when_no_room
    when_no_room = call


cdef void say_no_room():
    cdef int e = 0
    cdef const char *failed_step = NULL
    if probe_room_failure(&e, &failed_step) and when_no_room is not None:
        try:
            when_no_room(OSError(e, failed_step.decode()))
        except Exception:
            pass


def active():
    return probe_active() != 0


def board_path():
    """Path of this process's board, or None."""
    cdef char path[512]
    return os.fsdecode(path) if probe_board_path(path, sizeof(path)) == 0 else None


def fork_announced():
    probe_fork_announced()


cdef uint64_t restart_ns = 0  # when the sampler may come back


cdef int restart_sampler(void *unused) noexcept:
    """A pending call may come while fork's own handlers run: then it is put off, again and again for that moment."""
    if now_ns() < restart_ns and Py_AddPendingCall(restart_sampler, NULL) == 0:
        return 0
    with nogil:
        probe_fork_done()
    return 0


def fork_done(bint later):
    """In the parent. later: some milliseconds later, when the main thread is in Python code, or with the next task."""
    global restart_ns
    restart_ns = now_ns() + 5_000_000 if later else 0
    restart_sampler(NULL)


def say_first(unsigned kind):
    """Whether nobody of this process and its forked relatives has said this yet."""
    return probe_say_first(kind) != 0


def note_exec():
    probe_note_exec()


def set_facts(bytes text):
    """JSON about this program for readers of its board; False if there is none, or it is too long."""
    return probe_set_facts(<const char *>text, len(text)) == 0


def note_hooks(uint64_t kind):
    probe_note_hooks(kind)


def note_unprobed_child():
    probe_note_unprobed_child()


def try_board(bytes directory):
    """Create a board there and remove it; OSError(errno, what was being done) if it cannot be."""
    cdef board b
    cdef board_settings s
    cdef const char *failed_step = NULL
    memset(&s, 0, sizeof(s))
    s.directory = directory
    s.pid = os.getpid()
    cdef int e = probe_check_limits(&failed_step)
    if e == 0:
        e = board_create(&b, &s, &failed_step)
    if e == 0:
        e = board_grow(&b, &failed_step)
        board_unmap(&b, 1)
    if e < 0:
        raise OSError(-e, failed_step.decode())


def try_accounting():
    """Where malloc comes from, and whether its calls can be seen in this interpreter. For doctor; not beside a running probe."""
    if probe_active():
        return os.fsdecode(patch_provider()), alloc_holds() != 0
    cdef bint works = alloc_start(ALLOC_LARGE) == 0
    alloc_stop(0)
    return os.fsdecode(patch_provider()), works


def memory_limit(bytes proc_root=b"/proc", bytes cgroup_root=b"/sys/fs/cgroup"):
    cdef uint64_t limit = limit_bytes(proc_root, cgroup_root)
    return None if limit == C_ABSENT else limit


def adopt_handle(uint64_t handle):
    """Work for that task, 0 for none; the handle it was before. For pools: people use `adopt`."""
    return probe_adopt(task_handle(word=handle)).word


def current_handle():
    """The task that this thread works for, or 0."""
    return probe_current().word


# -- tasks ----------------------------------------------------------------------------------------------------------------------------

cdef object collect = None  # gc.collect, or None: no collections
cdef bint collect_after = False
cdef object foreign_count = None  # of allocations that are not seen (pyarrow's pool), a function, or None


def use_gc(function, bint after):
    """Collect before each task, and after it, too, to tell floating garbage from what the task keeps."""
    global collect, collect_after
    collect, collect_after = function, after


def use_foreign_count(function):
    """Allocations that we do not see are counted by this; a task during which the count changes is not exact."""
    global foreign_count
    foreign_count = function


cdef object count_foreign():
    try:
        return foreign_count()
    except Exception:
        return None


cdef bytes as_bytes(object value):
    """UTF-8 of any name, whatever it is."""
    if isinstance(value, bytes):
        return <bytes>value
    try:
        return str(value).encode("utf-8", "replace")
    except Exception:
        return type(value).__name__.encode("utf-8", "replace")


cdef object running_loop = None  # asyncio's own function, once asyncio is there
cdef dict modules = sys.modules


cdef bint in_event_loop() except -1:
    """Whether this thread runs an event loop: other coroutines may run inside the block, and it is never this task's alone."""
    global running_loop
    if running_loop is None:
        module = modules.get("_asyncio")
        if module is None:
            return False
        running_loop = module._get_running_loop
    return running_loop() is not None


cdef uint64_t bytes_word(object nbytes):
    """A count of bytes for the board; what is unknown or absurd is ABSENT."""
    return <uint64_t>nbytes if type(nbytes) is int and 0 <= nbytes < 1 << 62 else C_ABSENT


include "features.pxi"
include "gpu/hook.pxi"


cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyEval_SaveThread() nogil
    void PyEval_RestoreThread(PyThreadState *state) nogil


cdef struct gil:
    hold hold  # the first: a boundary is given its address
    PyThreadState *state


cdef void let_gil_go(hold *h) noexcept nogil:
    (<gil *>h).state = PyEval_SaveThread()


cdef void take_gil_again(gil *held) noexcept nogil:
    """After a boundary: if it had to wait, others have had the GIL meanwhile."""
    if held.hold.gone:
        PyEval_RestoreThread(held.state)


@cython.final
@cython.freelist(64)
cdef class Entry:
    """A task that has been begun, to be ended: what the hooks of a framework hold on to."""
    cdef task_handle handle
    cdef uint64_t generation
    cdef unsigned long thread
    cdef object foreign  # the count of unseen allocations at begin


cdef Entry begin_task(bytes name, bytes key, const listing *inputs, bint shared, uint64_t worker):
    """shared: in an event loop other work runs meanwhile."""
    cdef Entry entry = Entry.__new__(Entry)
    cdef task_begin b
    cdef gil held
    cdef task_handle begun
    if collect is not None:
        collect()
    if foreign_count is not None:
        entry.foreign = count_foreign()
    b.name = text(at=<const char *>name, len=len(name))
    b.key = text(at=<const char *>key, len=len(key))
    b.inputs = text(at=NULL, len=0)
    b.input_bytes = C_ABSENT
    b.input_count = b.inputs_omitted = 0
    if inputs != NULL:
        b.inputs = text(at=&inputs.text[0], len=inputs.size)
        b.input_bytes, b.input_count, b.inputs_omitted = inputs.total, inputs.count, inputs.omitted
    b.attribution = ATTRIBUTION_SHARED if shared else ATTRIBUTION_EXACT
    b.detached = shared
    b.worker = worker
    if get_allocator is not None:
        stay_in_place()
    entry.generation = probe_generation()
    entry.thread = PyThread_get_thread_ident()
    held.hold.let_go, held.hold.gone = let_gil_go, 0
    begun = probe_task_begin(&b, &held.hold)
    take_gil_again(&held)
    entry.handle = begun
    if not is_somebody(entry.handle):
        say_no_room()
    return entry


cdef int state_of(object error):
    """ok, error or cancelled, by the exception (or its class) that ended a task."""
    if error is None:
        return TASK_OK
    kind = error if isinstance(error, type) else type(error)
    return TASK_CANCELLED if kind.__name__ in ("CancelledError", "KeyboardInterrupt", "Reschedule") else TASK_ERROR


cdef uint64_t requested_of(object error):
    """Bytes that NumPy could not have, by its MemoryError; ABSENT of any other."""
    try:
        return bytes_word(error._total_size)
    except Exception:
        return C_ABSENT


cdef bint lacks_host_memory(object error):
    """A MemoryError that is not CuPy's: that one is about a device, and if it was this task's, the hook has seen it."""
    kind = error if isinstance(error, type) else type(error)
    return issubclass(kind, MemoryError) and not str(kind.__module__).startswith("cupy.")


cdef int end_task(Entry entry, bytes output, uint64_t output_bytes, int state, object error) except -1:
    """error: the exception that ended it, its class, or None."""
    cdef task_end e
    cdef gil held
    if not is_somebody(entry.handle) or entry.generation != probe_generation():  # forked or restarted since: that task belongs to another board
        return 0
    e.state = state
    e.output_bytes = output_bytes
    e.gc_freed_bytes = C_ABSENT
    e.shared = 0
    e.out_of_memory = error is not None and lacks_host_memory(error)
    e.requested_bytes = requested_of(error) if e.out_of_memory else C_ABSENT
    try:
        e.shared = foreign_count is not None and count_foreign() != entry.foreign
        if collect is not None and collect_after:
            e.gc_freed_bytes = freed_by_collection(entry.handle)
    finally:
        e.output = text(at=<const char *>output, len=len(output))
        held.hold.let_go, held.hold.gone = let_gil_go, 0
        probe_task_end(entry.handle, &e, &held.hold)
        take_gil_again(&held)
        entry.handle = NOBODY
    return 0


cdef uint64_t freed_by_collection(task_handle handle):
    """Bytes of the task's own memory that a collection frees. Its finalizers are the job's: what they raise, Python reports."""
    cdef uint64_t before = probe_live_bytes(handle), after
    collect()
    after = probe_live_bytes(handle)
    return C_ABSENT if before == C_ABSENT or after == C_ABSENT else before - after if before > after else 0


cdef class task:
    """A block of work whose memory is measured: `with task("glcm", inputs=[volume]):`, or a decorator.

    name    what the table groups by. inputs: arrays the work reads; their types, shapes and sizes are recorded, never their contents,
            and they are not kept alive.
    key     names this one run. output: assign the result to it inside the block to have its size recorded.
    As a decorator the arguments are the inputs and the returned value is the output (not for generator functions: they return at once).
    Blocks may nest and run in any thread. Without a probe in the process this does nothing.
    """
    cdef object name, inputs, key
    cdef public object output
    cdef bint shared
    cdef listing *described  # the inputs, once looked at: the block may be entered again after they are gone
    cdef list entries  # of each time it was entered: one object may be entered again, and in several threads

    def __init__(self, name, inputs=None, *, key=None, bint shared=False):
        if callable(name) and not isinstance(name, type):
            raise TypeError("a task needs a name: write @dwsr_probe.task('name')")
        self.name = name
        self.inputs = inputs
        self.key = key
        self.shared = shared

    def __dealloc__(self):
        free(self.described)

    def __enter__(self):
        cdef Entry entry
        if probe_active():
            if self.inputs is not None and self.described == NULL:
                self.described = <listing *>malloc(sizeof(listing))
                if self.described != NULL:
                    list_inputs(self.described, self.inputs)
            entry = begin_task(as_bytes(self.name), b"" if self.key is None else as_bytes(self.key), self.described,
                               self.shared or in_event_loop(), C_ABSENT)
            with cython.critical_section(self):
                if self.entries is None:
                    self.entries = []
                self.entries.append(entry)
        self.inputs = None  # the job may want their memory back inside the block
        return self

    cdef Entry take_entry(self):
        """This thread's innermost entry, else the newest, else None."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef Py_ssize_t i
        with cython.critical_section(self):
            if not self.entries:
                return None
            for i in range(len(self.entries) - 1, -1, -1):
                if (<Entry>self.entries[i]).thread == me:
                    return self.entries.pop(i)
            return self.entries.pop()

    def __exit__(self, kind, value, trace):
        cdef Entry entry
        cdef bytes described = b""
        cdef uint64_t nbytes = C_ABSENT
        output, self.output = self.output, None
        if self.entries is None or (entry := self.take_entry()) is None:
            return None
        if output is not None:
            described = describe_one(output, None, &nbytes)
            output = None
        end_task(entry, described, nbytes, state_of(kind), kind if value is None else value)
        return None

    def __call__(self, function):
        from dwsr_probe.decorator import wrap_function
        return wrap_function(function, self.name, self.inputs, self.key)


include "graph_tasks.pxi"


cdef class adopt:
    """Work for a task from another thread: `with adopt(block):` where `block` is the task's open block.

    What this thread allocates inside counts for that task, as long as it runs and this thread runs no task of its own.
    """
    cdef task block
    cdef task_handle before

    def __init__(self, task block not None):
        self.block = block

    def __enter__(self):
        cdef Entry entry
        cdef task_handle handle = NOBODY
        with cython.critical_section(self.block):
            if self.block.entries:
                entry = self.block.entries[len(self.block.entries) - 1]
                if entry.generation == probe_generation():
                    handle = entry.handle
        self.before = probe_adopt(handle)
        return self.block

    def __exit__(self, kind, value, trace):
        probe_adopt(self.before)
        return None


# -- reading boards -------------------------------------------------------------------------------------------------------------------

class BoardError(Exception):
    """A board cannot be read. `reason` is one of REASONS, `detail` a version or an errno."""

    def __init__(self, reason, detail=None):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


REASONS = {
    BOARD_NOT_READY: "not ready", BOARD_FOREIGN: "foreign", BOARD_VERSION_UNKNOWN: "version", BOARD_DAMAGED: "damaged",
    BOARD_CUT_SHORT: "cut short", BOARD_UNREADABLE: "unreadable"}


cdef tuple words(const void *start, uint64_t count):
    """The words as integers, ABSENT as None. Nothing that is written comes near 2**63: such a word was not written by us."""
    cdef const uint64_t *w = <const uint64_t *>start
    cdef uint64_t i
    for i in range(count):
        if w[i] >> 63 and w[i] != C_ABSENT:
            raise BoardError(REASONS[BOARD_DAMAGED])
    return tuple([None if w[i] == C_ABSENT else w[i] for i in range(count)])


cdef str decoded(text t):
    return t.at[:t.len].decode("utf-8", "replace") if t.len else ""


cdef tuple devices_tuple(const task_device *devices, int count):
    """The devices among them, as words by TASK_DEVICE_FIELDS; not page-locked memory."""
    return tuple([words(&devices[i], sizeof(task_device) // 8) for i in range(count) if 0 < devices[i].device <= GPU_PINNED])


cdef tuple running_tuple(running_task *t):
    """Of a slot: with what the sampler last saw of this very task."""
    cdef int i
    gpu = None
    if t.slot.alloc_serial == t.task.serial:
        t.task.alloc_peak_bytes, t.task.alloc_end_bytes, t.task.alloc_count = t.slot.alloc_peak_bytes, t.slot.alloc_live_bytes, t.slot.alloc_count
    if t.slot.gpu_serial == t.task.serial:
        gpu = devices_tuple(t.gpu, TASK_DEVICES)
        for i in range(TASK_DEVICES):
            if t.gpu[i].device == GPU_PINNED + 1:
                t.task.pinned_peak_bytes, t.task.pinned_end_bytes = t.gpu[i].peak_bytes, t.gpu[i].live_bytes
    return words(&t.task, sizeof(task_fields) // 8), decoded(t.name), decoded(t.key), decoded(t.inputs), "", gpu, None


cdef dict cells(const uint32_t *counts, int most):
    cdef int i
    found = {}
    for i in range(most):
        if counts[i]:
            found[i] = counts[i]
    return found


@cython.final
cdef class Layout:
    """The lists of fields that a board, or a stored run, says it has. Unpacks its frames; ValueError if it makes no sense."""
    cdef layout layout
    cdef readonly bytes text

    def __init__(self, bytes text not None):
        self.text = text
        if layout_parse(&self.layout, <const char *>text, len(text)) < 0:
            raise ValueError("a layout of frames makes no sense")

    cdef str text_at(self, record *r, int index, list texts):
        if r.numbers[index] == C_ABSENT:
            return decoded(r.texts[index])
        if r.numbers[index] >= <uint64_t>len(texts):
            raise ValueError("a record names a text that is not there")
        return texts[r.numbers[index]]

    cdef tuple tuple_of(self, const char *frame, list texts):
        cdef record r
        if frame_unpack(&self.layout, frame, &r) < 0:
            raise ValueError("a record cannot be unpacked")
        gpu = devices_tuple(r.devices, r.device_count) if r.devices_known else decoded(r.gpu_json) or None
        oom = words(&r.oom, sizeof(task_oom) // 8) if r.oom.count else decoded(r.oom_json) or None
        key = self.text_at(&r, TEXT_key_rest, texts)
        if r.texts[TEXT_key_prefix].len or r.numbers[TEXT_key_prefix] != C_ABSENT:
            key = self.text_at(&r, TEXT_key_prefix, texts) + key
        return (words(&r.task, sizeof(task_fields) // 8), self.text_at(&r, TEXT_name, texts), key,
                self.text_at(&r, TEXT_inputs, texts), self.text_at(&r, TEXT_output, texts), gpu, oom)

    def records(self, bytes packed not None, list texts not None):
        """The frames as tuples: words by TASK_FIELDS, name, key, inputs, output (texts), devices (words by TASK_DEVICE_FIELDS,
        JSON from boards before version 6, or None: not followed), failed allocation (the same, by OOM_FIELDS)."""
        cdef const char *at = packed
        cdef uint64_t left = len(packed), size
        found = []
        while left:
            size = frame_whole(&self.layout, at, left)
            if size == 0:
                raise ValueError("a record is damaged")
            found.append(self.tuple_of(at, texts))
            at += size
            left -= size
        return found


cdef class Reader:
    """A board file, read safely in any state; BoardError if it is not one or makes no sense."""
    cdef board_reader reader
    cdef readonly Layout layout

    def __cinit__(self, path):
        self.reader.fd = -1
        cdef bytes encoded = os.fsencode(path)
        self.check(board_reader_open(&self.reader, encoded))
        self.layout = Layout(<bytes>self.reader.layout_text)

    def __dealloc__(self):
        board_reader_close(&self.reader)

    cdef int64_t check(self, int64_t result) except -1:
        if result >= 0:
            return result
        detail = None
        if result == BOARD_VERSION_UNKNOWN:
            detail = self.reader.header.version
        elif result == BOARD_UNREADABLE:
            detail = errno
        raise BoardError(REASONS[result], detail)

    def close(self):
        board_reader_close(&self.reader)

    def header(self):
        """Every field but the last, the checksum, which has been verified."""
        return words(&self.reader.header, len(HEADER_FIELDS))

    def inode(self):
        return self.reader.inode

    def texts(self):
        cdef uint64_t size
        cdef const char *at
        found = []
        for i in range(len(HEADER_TEXTS)):
            at = board_reader_text(&self.reader, i, &size)
            found.append(at[:size])
        return tuple(found)

    def live(self):
        cdef board_live live
        self.check(board_read_live(&self.reader, &live))
        return words(&live, sizeof(board_live) // 8)

    def facts(self):
        """What the program says about itself, as bytes of JSON; empty: nothing."""
        cdef facts *f = <facts *>malloc(sizeof(facts))
        if f == NULL:
            raise MemoryError
        try:
            self.check(board_read_facts(&self.reader, f))
            return (<char *>f.text)[:f.len]
        finally:
            free(f)

    def devices(self):
        """(number, fields, name, uuid) of each GPU that the process has allocated on."""
        cdef device d
        cdef uint64_t i
        found = []
        for i in range(self.reader.header.device_count):
            if self.check(board_read_device(&self.reader, i, &d)):
                found.append((i, words(&d.fields, sizeof(device_fields) // 8), <bytes>d.name, <bytes>d.uuid))
        return found

    def slots(self, uint64_t running):
        """(slot, task) of the running tasks; looks at no more slots than it must to find `running` of them."""
        cdef running_task *s = <running_task *>malloc(sizeof(running_task))
        cdef uint64_t i
        found = []
        if s == NULL:
            raise MemoryError
        try:
            for i in range(self.reader.header.slot_count):
                if <uint64_t>len(found) >= running:
                    break
                if self.check(board_read_slot(&self.reader, i, s)):
                    found.append((i, running_tuple(s)))
        finally:
            free(s)
        return found

    def frames(self, uint64_t position, uint64_t most=100_000, uint64_t after=0, uint64_t size=262144):
        """Finished tasks from `position` on, at most so many, as they are packed on the board, without those whose seq is not above
        `after`: (position behind them, whether any were read, packed, count, first seq, last seq, last serial, how many texts they name).
        None were read: no more. All of them can be unpacked."""
        cdef char *buffer = <char *>malloc(size)
        cdef const char *at
        cdef int64_t left
        cdef uint64_t frame, serial = 0, seq = 0, first = 0, read = 0, skipped = 0, texts = 0
        cdef record r
        cdef int i
        if buffer == NULL:
            raise MemoryError
        try:
            left = self.check(board_read_records(&self.reader, &position, buffer, size, most))
            at = buffer
            while left:
                frame = frame_whole(&self.reader.layout, at, left)
                if frame_unpack(&self.reader.layout, at, &r) < 0:
                    raise BoardError(REASONS[BOARD_DAMAGED])
                serial, seq = r.task.serial, r.task.seq
                for i in range(TEXT_COUNT):
                    if r.numbers[i] != C_ABSENT and r.numbers[i] >= texts:
                        texts = r.numbers[i] + 1
                if seq <= after:
                    skipped = at - buffer + frame
                elif first == 0:
                    first = seq
                if seq > after:
                    read += 1
                at += frame
                left -= frame
            return position, at > buffer, (buffer + skipped)[:at - buffer - skipped], read, first, seq, serial, texts
        finally:
            free(buffer)

    def texts_from(self, uint64_t position, size_t size=65536):
        """Texts of the board from that byte on, in the order of their numbers, and the next byte."""
        cdef char *buffer = <char *>malloc(size)
        cdef int64_t left
        cdef const char *at
        cdef uint64_t length
        found = []
        if buffer == NULL:
            raise MemoryError
        try:
            while True:
                left = self.check(board_read_texts(&self.reader, &position, buffer, size))
                if left == 0:
                    return found, position
                at = buffer
                while left:
                    length = (<const uint32_t *>at)[0]
                    found.append((at + 8)[:length].decode("utf-8", "replace"))
                    at += 8 + (length + 7) // 8 * 8
                    left -= 8 + (length + 7) // 8 * 8
        finally:
            free(buffer)

    def totals(self):
        """(words by TOTAL_FIELDS, devices by TOTAL_DEVICE_FIELDS, cells of own peak, growth, duration, growth without own figures)
        of each entry; cells as a dict, number → count. An entry that changes all the time is left out."""
        cdef total *t = <total *>malloc(sizeof(total))
        cdef board_live live
        cdef uint64_t i
        cdef int k
        found = []
        if t == NULL:
            raise MemoryError
        try:
            self.check(board_read_live(&self.reader, &live))
            for i in range(0 if live.totals_used == C_ABSENT else min(live.totals_used, self.reader.header.total_count)):
                if not self.check(board_read_total(&self.reader, i, t)):
                    continue
                devices = tuple([words(&t.devices[k], sizeof(total_device) // 8) for k in range(TASK_DEVICES) if t.devices[k].device])
                found.append((words(&t.fields, sizeof(total_fields) // 8), devices, cells(t.alloc, TOTAL_CELLS), cells(t.growth, TOTAL_CELLS),
                              cells(t.duration, TOTAL_CELLS), cells(t.bare, BARE_CELLS)))
        finally:
            free(t)
        return found

    def samples(self, uint64_t index, uint64_t most=16384):
        """Samples from number `index` on as packed words (SAMPLE_FIELDS each), and the number behind them. Empty: no more."""
        cdef sample *buffer = <sample *>malloc(most * sizeof(sample))
        cdef int64_t count
        if buffer == NULL:
            raise MemoryError
        try:
            count = self.check(board_read_samples(&self.reader, &index, buffer, most))
            return (<char *>buffer)[:count * sizeof(sample)], index
        finally:
            free(buffer)
