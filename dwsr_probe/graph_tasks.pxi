# Tasks of a graph, begun and ended by the hooks in dwsr_probe/dask. Included in _core.pyx: this is a worker's hot path.

cdef object split_key = None  # dask.utils.key_split
cdef dict prefixes = {}  # the part of a key that tells the work, by the part that tells the name


def use_key_split(function):
    global split_key
    split_key = function


cdef bytes prefix_of(object key):
    """The task's name: Dask's own prefix of its key. Keys of one collection share their first word, so that most are found here."""
    stem = (<tuple>key)[0] if type(key) is tuple and key else key
    if type(stem) is not str:
        return as_bytes(split_key(key))
    found = prefixes.get(stem)
    if found is None:
        if len(prefixes) > 8192:
            prefixes.clear()
        found = prefixes[stem] = as_bytes(split_key(stem))
    return found


cdef int list_graph_inputs(listing *l, object node, object data, object sizes) noexcept:
    cdef Py_ssize_t i = 0
    open_listing(l)
    try:
        if type(data) is dict:
            for name, value in (<dict>data).items():
                if is_enough(l, len(<dict>data) - i, False):
                    break
                list_value(l, value, 1, None if sizes is None else (<dict>sizes).get(name), False)
                i += 1
        elif data is not None:
            list_items(l, data, SEQUENCE, 0, False)
        if node is not None:
            list_node(l, node, 0)
    except BaseException:
        l.total = C_ABSENT
    if sizes is not None and l.total == C_ABSENT and l.count > VALUES_MOST:  # too many to tell, but Dask knows their sum
        try:
            l.total = bytes_word(sum((<dict>sizes).values()))
        except Exception:
            pass
    close_listing(l)
    return 0


cdef object register_worker = None, input_sizes = None  # of dwsr_probe.dask.workers


def use_workers(register, sizes_of_inputs):
    global register_worker, input_sizes
    register_worker, input_sizes = register, sizes_of_inputs


cdef bint is_cancelled(object worker, object key):
    """Whether nobody wants the task's result any more. It has run to its end all the same: threads are not stopped."""
    try:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"
    except Exception:
        return False


def begin_graph_task(object key, object node, object data, object worker=None, bint shared=False):
    """An Entry for end_graph_task, or None without a probe.

    data: what the task depends on, by key, or a list. node: the task, for its constants. worker: distributed's, which knows the sizes of what is
    more than arrays.
    """
    cdef listing l
    if not probe_active():
        return None
    try:
        index = None
        if worker is not None:
            try:
                index = worker._dwsr_probe_index
            except AttributeError:
                index = register_worker(worker)
        list_graph_inputs(&l, node, data, None)
        if not l.plain and worker is not None:
            sizes = input_sizes(worker, key)
            if type(sizes) is dict:
                list_graph_inputs(&l, node, data, sizes)
        return begin_task(prefix_of(key), as_bytes(key), &l, shared, C_ABSENT if index is None else <uint64_t>index)
    except Exception:  # the job comes first
        return None


def end_graph_task(Entry entry, object output, object nbytes=None, object error=None, bint cancelled=False):
    """nbytes: the output's size if somebody knows it better. error: the exception that ended it, or None."""
    cdef bytes described = b""
    cdef uint64_t size = C_ABSENT
    if entry is None:
        return
    try:
        if error is None and output is not None:
            described = describe_one(output, nbytes, &size)
        output = None
        end_task(entry, described, size, TASK_CANCELLED if cancelled else state_of(error), error)
    except Exception:
        pass


def end_with_message(Entry entry, object message, object worker, object key):
    """distributed answers with a dict: the result and its size, or the exception."""
    if entry is None:
        return
    if type(message) is not dict:
        end_graph_task(entry, None, None, RuntimeError)
    elif (<dict>message).get("op") == "task-finished":
        end_graph_task(entry, (<dict>message).get("result"), (<dict>message).get("nbytes"), None, worker is not None and is_cancelled(worker, key))
    else:
        end_graph_task(entry, None, None, (<dict>message).get("actual_exception") or RuntimeError)
