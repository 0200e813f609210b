# cython: language_level=3, freethreading_compatible=True
"""Tasks of a Dask graph, begun and ended by the hooks in dwsr_probe/dask: a worker's hot path."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from csrc.board_layout cimport ABSENT, REASON_NONE
from csrc.params cimport params, params_close, params_open
from csrc.probe cimport probe_active
from dwsr_probe.binding.features cimport (
    SEQUENCE, VALUES_MOST, add_items, add_value, byte_count, close_listing, describe_returned,
    listing, omit_rest_if_full, open_listing, reopen_listing)
from dwsr_probe.binding.graph cimport Walk, add_late_value
from dwsr_probe.binding.params cimport is_recording
from dwsr_probe.binding.tasks cimport OpenTask, as_bytes, begin_task, end_task

cdef object split_key = None  # dask.utils.key_split
cdef dict prefixes = {}  # first word of a key → the task's name
cdef object register_worker = None, input_sizes = None  # of dwsr_probe.dask.workers


def use_key_split(function):
    """function: dask.utils.key_split."""
    global split_key
    split_key = function


def use_workers(register, sizes_of_inputs):
    """register(worker): the worker's index in the facts.

    sizes_of_inputs(worker, key): dict, key of an input → its bytes.
    """
    global register_worker, input_sizes
    register_worker, input_sizes = register, sizes_of_inputs


cdef bytes prefix_of(object key):
    """The task's name: Dask's own prefix of its key.

    The keys of one collection share their first word, so most prefixes are in the cache.
    """
    first_word = (<tuple>key)[0] if type(key) is tuple and key else key
    if type(first_word) is not str:
        return as_bytes(split_key(key))
    found = prefixes.get(first_word)
    if found is None:
        if len(prefixes) > 8192:
            prefixes.clear()
        found = prefixes[first_word] = as_bytes(split_key(first_word))
    return found


cdef Walk list_graph_inputs(listing *l, object node, object data, object sizes):
    """List what the task reads; return the walk, which knows its functions.

    sizes: Dask's own measurements by key, or None.
    """
    cdef Py_ssize_t i = 0
    cdef Walk walk = Walk.__new__(Walk)
    walk.inputs, walk.data, walk.sizes = l, data, sizes
    open_listing(l)
    try:
        walk.run(node)
        if type(data) is dict:
            for name, value in (<dict>data).items():
                i += 1
                if name in walk.done:
                    continue
                if omit_rest_if_full(l, len(<dict>data) - i + 1, False):
                    break
                add_value(l, value, 1, None if sizes is None else (<dict>sizes).get(name), False)
        elif data is not None:
            add_items(l, data, SEQUENCE, 0, False)
    except BaseException:
        l.total_bytes = ABSENT
    walk.makes_output = walk.makes_output and walk.gives_little(0)
    # Too many values to describe, but Dask knows the sum of their sizes.
    if sizes is not None and l.total_bytes == ABSENT and l.count > VALUES_MOST:
        try:
            l.total_bytes = byte_count(sum((<dict>sizes).values()))
        except Exception:
            pass
    close_listing(l)
    return walk


cdef int expect_late_inputs(OpenTask opened, Walk walk, const listing *l) except -1:
    """Have the sources inside the task observed: what they return becomes input at the end. If the
    task itself is the source, so does its output."""
    opened.inputs = <listing *>malloc(sizeof(listing))
    if opened.inputs == NULL:
        return 0
    memcpy(opened.inputs, l, sizeof(listing))
    reopen_listing(opened.inputs)
    opened.inputs.late = True
    opened.count_at_begin = l.count
    opened.makes_output = walk.makes_output
    if walk.sources is None:
        return 0
    try:
        opened.node = walk.observed(opened)
    except Exception:  # a task of a kind that cannot be copied runs unobserved
        opened.node = None
    return 0


cdef void list_params(params *p, Walk walk) noexcept:
    params_open(p)
    try:
        walk.add_params(p)
    except Exception:  # arguments of the job's own classes
        pass
    params_close(p)


def begin_graph_task(object key, object node, object data, object worker=None, int reason=0):
    """Begin a task; return an OpenTask for end_graph_task, or None without a probe.

    data: the task's dependencies, a dict by key or a list. node: the task, for its constants.
    worker: distributed's Worker, which knows the sizes of values that are not arrays.
    reason: why its figures are shared (REASON_COROUTINE, REASON_EVENT_LOOP), or 0.
    """
    cdef listing l
    cdef params given
    cdef Walk walk
    cdef OpenTask opened
    cdef bint has_params
    if not probe_active():
        return None
    try:
        index = None
        if worker is not None:
            try:
                index = worker._dwsr_probe_index
            except AttributeError:
                index = register_worker(worker)
        walk = list_graph_inputs(&l, node, data, None)
        if not l.arrays_only and worker is not None:
            sizes = input_sizes(worker, key)
            if type(sizes) is dict:
                walk = list_graph_inputs(&l, node, data, sizes)
        has_params = node is not None and is_recording()
        if has_params:
            list_params(&given, walk)
        opened = begin_task(
            prefix_of(key), as_bytes(key), &l, &given if has_params else NULL,
            walk.operation_text(), walk.chain(), reason,
            ABSENT if index is None else <uint64_t>index)
        if (walk.sources is not None or walk.makes_output) and reason == REASON_NONE:
            expect_late_inputs(opened, walk, &l)
        return opened
    except Exception:  # the job comes first
        return None


def end_graph_task(
        OpenTask opened, object output, object nbytes=None, object error=None,
        bint cancelled=False):
    """nbytes: the output's size as Dask measured it. error: the exception that ended the task."""
    cdef bytes described = b""
    cdef uint64_t size = ABSENT
    cdef bint has_late_inputs = False
    if opened is None:
        return
    opened.node = None  # it refers to `opened`
    try:
        if error is None and output is not None:
            described = describe_returned(output, nbytes, &size)
            if opened.makes_output:
                add_late_value(opened.inputs, output, nbytes)
        output = None
        if opened.inputs != NULL and opened.inputs.count > opened.count_at_begin:
            close_listing(opened.inputs)
            has_late_inputs = True
        end_task(
            opened, opened.inputs if has_late_inputs else NULL, described, size, cancelled, error)
    except Exception:
        pass


def end_with_message(OpenTask opened, object message, object worker, object key):
    """End a task as distributed's message says: a dict with the result and its size, or with the
    exception. worker may be None.

    Reading the message in Python would add 0.14 us to the 4.9 us of a begin and an end.
    """
    cdef bint cancelled
    cdef dict fields
    if opened is None:
        return
    if type(message) is not dict:
        end_graph_task(opened, None, None, RuntimeError)
        return
    fields = message
    if fields.get("op") == "task-finished":
        cancelled = worker is not None and is_cancelled(worker, key)
        end_graph_task(opened, fields.get("result"), fields.get("nbytes"), None, cancelled)
    else:
        end_graph_task(opened, None, None, fields.get("actual_exception") or RuntimeError)


cdef bint is_cancelled(object worker, object key):
    """Whether nobody wants the result any more. Such a task has run to its end all the same,
    because threads cannot be stopped."""
    try:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"
    except Exception:
        return False
