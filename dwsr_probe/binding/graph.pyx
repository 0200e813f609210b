# cython: language_level=3, freethreading_compatible=True
"""What the graph of one Dask task says before the task runs: what it reads, in the order of its
arguments; the functions inside it, in the order of their execution (`chain`); and the job's own
function among them (`operation`).

Used by graph_tasks.pyx at each begin. Covers GraphNodes (dask._task_spec), subgraphs of fused
tasks, and the tuples of older graphs inside a SubgraphCallable. Each task is walked, because tasks
of one layer may have different chains; only names are kept from task to task. Code of the job is
never run.
"""
cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from csrc.board_layout cimport ABSENT
from csrc.params cimport PARAMS_MOST, params
from dwsr_probe.binding.features cimport (
    add_value, close_listing, is_hashable_type, listing, module_of, open_listing)
from dwsr_probe.binding.functions cimport (
    APPLY, COMPOSE, CONCATENATE, GETTER, HIDDEN, ITEM, LIBRARIES, PARTIAL, PLAIN, STORE, SUBGRAPH,
    SUBGRAPH_CALLABLE, TASK_LIST, Function, function_of, is_callable_object, may_be_function,
    shape_of, unwrapped)
from dwsr_probe.binding.params cimport (
    ARGUMENTS_MOST, add_number, kind_of_number_of, name_at, name_of_keyword, names_of_arguments)
from dwsr_probe.binding.selection cimport add_selection, is_lazy

cdef enum:
    SEARCHED_MOST = 16  # keys that are compared one by one
    NODES_MOST = 512  # bounds the time that a begin takes
    DEPTH_MOST = 48
    NAMES_MOST = 4096  # kept names and chains
    CHAIN_MOST = 500  # bytes of JSON
    SOURCES_MOST = 8  # that are observed in one task
    GIVEN_MOST = 4096  # bytes that a source is given at most

cdef enum node_kind:
    NODE_NONE, NODE_TASK, NODE_REFERENCE, NODE_DATA

cdef bytes ALIAS = b'"alias"', RECHUNK = b'"rechunk"'
cdef dict chains = {}  # names → JSON
cdef dict node_kinds = {}  # type → node_kind, of types that the job does not define


cdef int kind_of_node(type t):
    if not is_hashable_type(t):
        return NODE_NONE
    found = node_kinds.get(t)
    if found is not None:
        return found
    cdef int kind = NODE_NONE
    module = module_of(t)
    if module == "dask._task_spec":
        for base in t.__mro__:
            name = base.__name__
            kind = (
                NODE_TASK if name == "Task" else NODE_DATA if name == "DataNode"
                else NODE_REFERENCE if name in ("Alias", "TaskRef") else NODE_NONE)
            if kind != NODE_NONE:
                break
    elif type(module) is not str or module.partition(".")[0] not in LIBRARIES:
        return NODE_NONE  # a class of the job's must not be kept alive
    node_kinds[t] = kind
    return kind


@cython.final
cdef class Scope:
    """The keys that mean something inside a subgraph.

    inkeys: names of arguments, or a dict with the arguments themselves. arguments: of the task
    that runs the subgraph, of which number `first` belongs to the first inkey. legacy: tasks are
    tuples, and keys stand for themselves.
    """

    cdef object argument(self, object key):
        """The argument that a key stands for, a node of the outer scope; None: no such key."""
        cdef Py_ssize_t at = self.first
        if type(self.inkeys) is dict:
            return (<dict>self.inkeys).get(key)
        if len(self.inkeys) > SEARCHED_MOST:
            if self.places is None:
                self.places = {item: i for i, item in enumerate(self.inkeys)}
            found = self.places.get(key)
            if found is None:
                return None
            at += found
        else:
            for item in self.inkeys:
                if item is key or item == key:
                    break
                at += 1
            else:
                return None
        return self.arguments[at] if at < len(self.arguments) else None

    cdef void replace(self, object key, object node):
        """Replace a node in a copy of the subgraph."""
        if self.copied is None:
            self.copied = dict(self.graph)
        self.copied[key] = node


cdef int add_late_value(listing *l, object value, object known_bytes) except -1:
    """Add what a source has returned, unless that is small, too."""
    cdef uint64_t before = l.total_bytes
    cdef listing old
    memcpy(&old, l, sizeof(listing))
    add_value(l, value, 1, known_bytes, True)
    if before == ABSENT or l.total_bytes == ABSENT or l.total_bytes - before > GIVEN_MOST:
        return 0
    if b"logical_bytes" not in l.text[old.size:l.size]:
        memcpy(l, &old, sizeof(listing))
    return 0


@cython.final
cdef class Observed:
    """A function inside a task that makes data: what it returns is an input, known late."""
    cdef object function
    cdef OpenTask opened

    def __call__(self, *args, **kwargs):
        value = self.function(*args, **kwargs)
        try:
            add_late_value(self.opened.inputs, value, None)
        except Exception:  # the job comes first
            pass
        return value


cdef object graph_like(object original, dict graph):
    """A graph in the form of the original: a dict, a list of tasks, or a data node with either."""
    if kind_of_node(type(original)) == NODE_DATA:
        node = copy_of_task(original)
        node.value = graph_like(original.value, graph)
        return node
    return list(graph.values()) if type(original) is list else graph


cdef object copy_of_task(object node):
    """A node with the same slots. Those of a task that was unpickled may be missing."""
    t = type(node)
    copied = t.__new__(t)
    for base in t.__mro__:
        for slot in getattr(base, "__slots__", ()):
            try:
                setattr(copied, slot, getattr(node, slot))
            except AttributeError:
                pass
    return copied


@cython.final
cdef class Walk:
    """One walk over one task. Create, set inputs, data and sizes, run once."""

    cdef int run(self, object node) except -1:
        self.root = node
        self.done = {}
        self.names = []
        self.operation = self.handed = None
        self.handed_callable = self.call = None
        self.left = NODES_MOST
        self.tasks = self.blocks = self.again = 0
        self.sources = None
        if kind_of_node(type(node)) == NODE_REFERENCE:
            self.names.append(ALIAS)  # runs nothing: another name for a result
        self.visit(node, None, False, DEPTH_MOST)
        if self.tasks == 1:
            self.sources = None  # what it makes is the output
        self.makes_output = self.sources is None and not self.blocks
        return 0

    cdef bint gives_little(self, uint64_t before) noexcept:
        """Whether inputs since then are no data: a number, the state of a random generator."""
        return (
            self.inputs.total_bytes != ABSENT and self.inputs.total_bytes - before <= GIVEN_MOST)

    cdef object observed(self, OpenTask opened):
        """The task with its sources observed: copies of the nodes on the way to them. None if no
        source can be replaced."""
        cdef Scope scope
        cdef Observed source
        copied = None
        for scope, key, inner in self.sources:
            if not self.is_found(scope, key, inner):
                continue
            source = Observed.__new__(Observed)
            source.function, source.opened = inner.func, opened
            copied = copy_of_task(inner)
            copied.func = source
            while True:
                scope.replace(key, copied)
                copied = copy_of_task(scope.node)
                copied.args = (graph_like(scope.node.args[0], scope.copied), *scope.node.args[1:])
                if scope.outer is None:
                    break
                key, scope = scope.key, scope.outer
        return copied

    cdef bint is_found(self, Scope scope, object key, object node) except -1:
        """Whether the way from the task to a node inside it leads through graphs by their keys, so
        that copies along the way mean the same task."""
        while scope is not None:
            if scope.node is None or scope.graph.get(key) is not node:
                return False
            key, node, scope = scope.key, scope.node, scope.outer
        return node is self.root

    cdef bytes operation_text(self):
        return b"" if self.operation is None else self.operation.name[1:-1]  # JSON's quotes

    cdef bytes chain(self):
        """JSON, or b"" if there is only one function, which the task is named for."""
        if len(self.names) < 2 and not (self.names and self.names[0] is ALIAS):
            return b""
        key = tuple(self.names)
        found = chains.get(key)
        if found is None:
            text, left = [], CHAIN_MOST
            for name in key:
                left -= len(name) + 1
                if left < 8:
                    text.append(b'"..."')
                    break
                text.append(name)
            found = b"[" + b",".join(text) + b"]"
            if len(chains) > NAMES_MOST:
                chains.clear()
            chains[key] = found
        return found

    cdef int visit(self, object node, Scope scope, bint in_library, int depth) except -1:
        """in_library: the node is an argument of a library's function."""
        cdef int kind = kind_of_node(type(node))
        self.left -= 1
        if self.left < 0 or depth < 0:
            return 0
        if kind == NODE_TASK:
            if self.was_done(id(node)):
                return 0
            return self.visit_task(node.func, node.args, node.kwargs, scope, depth - 1, node)
        if kind == NODE_REFERENCE:
            return self.visit_key(target_of(node), scope, in_library, depth - 1)
        if kind == NODE_DATA:
            node = node.value
        elif scope is not None and scope.legacy:
            if type(node) is tuple and node and callable((<tuple>node)[0]):
                return self.visit_task((<tuple>node)[0], (<tuple>node)[1:], None, scope, depth - 1)
            if type(node) is str and (node in scope.graph or node in scope.inkeys):
                return self.visit_key(node, scope, in_library, depth - 1)
        if type(node) is list or type(node) is tuple:
            return self.visit_siblings(node, scope, in_library, depth - 1)
        if type(node) is dict:
            return self.visit_siblings((<dict>node).values(), scope, in_library, depth - 1)
        if may_be_function(node) or in_library and is_callable_object(node):
            if in_library:
                self.take_handed(node, depth)
            return 0
        add_value(self.inputs, node, 1, None, True)
        return 0

    cdef int visit_siblings(
            self, object nodes, Scope scope, bint in_library, int depth) except -1:
        """Visit nodes beside each other. Those that run the same functions as the first one or the
        one before count once: neighbours that an overlap reads, arguments that were loaded."""
        cdef Py_ssize_t begin, size, first = -1, first_size = 0, before = -1, before_size = 0
        for item in nodes:
            if self.left < 0:
                break
            begin = len(self.names)
            self.visit(item, scope, in_library, depth)
            size = len(self.names) - begin
            if size == 0:
                continue
            if first < 0:
                first, first_size = begin, size
            elif same_names(self.names, first, first_size, begin, size) or same_names(
                    self.names, before, before_size, begin, size):
                del self.names[begin:]
                continue
            before, before_size = begin, size
        return 0

    cdef int take_handed(self, object function, int depth) except -1:
        """A function among the arguments of a library's: it is what the library calls. One of the
        job's comes first."""
        cdef Function f = function_of(unwrapped(function, depth))
        if f.name and (
                self.handed is None or f.ours > self.handed.ours
                or f.names_task > self.handed.names_task):
            self.handed, self.handed_callable = f, function
        return 0

    cdef int visit_key(self, object key, Scope scope, bint in_library, int depth) except -1:
        while scope is not None:
            found = scope.graph.get(key)
            if found is not None:
                return self.visit_inner(key, found, scope, in_library, depth - 1)
            node, scope = scope.argument(key), scope.outer
            if node is None:
                continue  # a key of the graph around this one
            if kind_of_node(type(node)) != NODE_REFERENCE:
                return self.visit(node, scope, in_library, depth - 1)
            key = target_of(node)
        return self.add_dependency(key)

    cdef int visit_inner(
            self, object key, object node, Scope scope, bint in_library, int depth) except -1:
        """Visit a node of a subgraph. A task that is given no data is a source."""
        cdef int tasks = self.tasks, blocks = self.blocks, again = self.again
        cdef uint64_t given = self.inputs.total_bytes
        if kind_of_node(type(node)) != NODE_TASK or scope.node is None:
            return self.visit(node, scope, in_library, depth)
        if self.was_done(id(node)):
            return 0
        self.visit_task(node.func, node.args, node.kwargs, scope, depth - 1, node, key)
        if (self.tasks != tasks + 1 or self.blocks != blocks or self.again != again
                or not self.gives_little(given)):
            return 0
        if self.sources is None:
            self.sources = []
        if len(self.sources) < SOURCES_MOST:
            self.sources.append((scope, key, node))
        return 0

    cdef bint was_done(self, object key) except -1:
        """Whether a node was visited before. What it gives is not listed again, but it is given."""
        found = self.done.get(key)
        if found is None:
            self.done[key] = True
            return False
        self.again += found is True
        return True

    cdef int add_dependency(self, object key) except -1:
        cdef uint64_t given = self.inputs.total_bytes
        if type(self.data) is not dict or key not in <dict>self.data or self.was_done(key):
            return 0
        size = None if self.sizes is None else (<dict>self.sizes).get(key)
        add_value(self.inputs, (<dict>self.data)[key], 1, size, False)
        self.done[key] = not self.gives_little(given)
        return 0

    cdef int visit_task(
            self, object function, object args, object kwargs, Scope scope, int depth,
            object node=None, object key=None) except -1:
        """node: the Task, and key: of the Task in its subgraph, where there are such."""
        cdef Function f
        cdef Scope inner
        cdef bint in_library
        cdef int shape
        if type(args) is not tuple:
            return 0
        shape = shape_of(type(function))
        while shape == PARTIAL and depth > 0:
            if function.args:  # they come first among the arguments
                args = (*function.args, *<tuple>args)
            if function.keywords:
                kwargs = {**function.keywords, **(kwargs or {})}
            function = function.func
            shape = shape_of(type(function))
            depth -= 1
        if shape == SUBGRAPH_CALLABLE and type(function.dsk) is dict:
            inner = Scope.__new__(Scope)
            inner.graph, inner.inkeys, inner.legacy = function.dsk, function.inkeys, True
            inner.arguments, inner.first, inner.outer = args, 0, scope
            return self.visit_key(function.outkey, inner, False, depth - 1)
        if shape == COMPOSE and hasattr(function, "first"):
            return self.visit_compose(function, args, kwargs, scope, depth)
        f = function_of(function)
        if f.role == APPLY and args:
            return self.visit_applied(args, scope, depth - 1)
        if f.role in (SUBGRAPH, TASK_LIST) and len(<tuple>args) >= 3:
            inner = subgraph_of(f, args, scope)
            if inner is not None:
                inner.node, inner.key = node, key
                return self.visit_key(
                    data_of((<tuple>args)[1 if f.role == SUBGRAPH else 2]), inner, False,
                    depth - 1)
        self.tasks += 1
        if f.role in (GETTER, ITEM) and len(<tuple>args) >= 2 and self.add_block(
                f, (<tuple>args)[0], (<tuple>args)[1], scope):
            self.add_name(f)
            return 0
        if f.role == STORE:
            self.visit((<tuple>args)[0], scope, False, depth)
            if len(<tuple>args) > 1 and self.value_of((<tuple>args)[1], scope) is not None:
                self.done[self.value_key] = True
            self.add_name(f)
            return 0
        in_library = not f.ours
        given = <tuple>args
        outer, outer_callable = self.handed, self.handed_callable
        self.handed = self.handed_callable = None
        if type(kwargs) is dict and kwargs:
            args = (*<tuple>args, *[
                item for name, item in (<dict>kwargs).items()
                if name != "_meta" and name != "meta"])  # an empty example of the result
        self.visit_siblings(args, scope, in_library, depth)
        if self.handed is not None and (self.handed.names_task or f.role == HIDDEN):
            self.add_called(self.handed, self.handed_callable, given, kwargs, scope, function)
        self.handed, self.handed_callable = outer, outer_callable
        if f.role == CONCATENATE and is_rechunk(self.root.key if key is None else key):
            self.names.append(RECHUNK)
        else:
            self.add_called(f, function, given, kwargs, scope, None)
        return 0

    cdef int visit_applied(self, tuple args, Scope scope, int depth) except -1:
        """apply(function, arguments, keyword arguments), each perhaps a node of the graph."""
        arguments = args[1] if len(args) > 1 else ()
        if kind_of_node(type(arguments)) == NODE_TASK:  # makes a list or a tuple
            arguments = arguments.args
        if type(arguments) is list:
            arguments = tuple(arguments)
        function = self.value_of(args[0], scope)
        return self.visit_task(
            args[0] if function is None else function, arguments,
            keywords_of(args[2]) if len(args) > 2 else None, scope, depth)

    cdef int visit_compose(
            self, object function, tuple args, object kwargs, Scope scope, int depth) except -1:
        self.visit_task(function.first, args, kwargs, scope, depth - 1)
        for later in function.funcs:
            self.visit_task(later, (), None, scope, depth - 1)
        return 0

    cdef int add_name(self, Function f) except -1:
        if not f.name or f.role == HIDDEN:
            return 0
        self.names.append(f.name)
        if f.names_task and (self.operation is None or f.ours > self.operation.ours):
            self.operation = f
        return 0

    cdef int add_called(
            self, Function f, object function, tuple args, object kwargs, Scope scope,
            object caller) except -1:
        """add_name, and remember the call if it is the operation's, or the first one as long as
        there is no operation. caller: the function that is given `function`, or None."""
        cdef Function before = self.operation
        self.add_name(f)
        if self.operation is not before or (
                before is None and self.call is None and f.role == PLAIN):
            self.call, self.call_kwargs = args, kwargs
            self.call_function, self.call_scope, self.caller = function, scope, caller
        return 0

    cdef int add_params(self, params *p) except -1:
        """Add the arguments of the operation or, without one, of the task's only function."""
        cdef Scope scope
        cdef tuple args, names
        cdef Py_ssize_t i = 0
        cdef int depth = DEPTH_MOST
        if self.call is None or self.operation is None and len(self.names) != 1:
            return 0
        function, scope, args = self.call_function, self.call_scope, self.call
        kwargs = self.call_kwargs if type(self.call_kwargs) is dict else {}
        if self.caller is not None:
            args, kwargs = self.passed_on(p, self.caller, args, kwargs, scope)
            while shape_of(type(function)) == PARTIAL and depth > 0:
                args = (*function.args, *args)
                kwargs = {**function.keywords, **kwargs}
                function = function.func
                depth -= 1
        names = names_of_arguments(function)
        for i in range(min(len(args), ARGUMENTS_MOST)):
            self.add_param(p, name_at(names, i), args[i], scope)
        for name, node in (<dict>kwargs).items():
            if i >= 2 * ARGUMENTS_MOST or p.count == PARAMS_MOST:
                break
            i += 1
            self.add_param(p, name_of_keyword(name), node, scope)
        return 0

    cdef tuple passed_on(
            self, params *p, object caller, tuple args, dict kwargs, Scope scope):
        """(args, kwargs) with which a library's function calls the one that it is given. Its own
        arguments are added."""
        cdef tuple names
        cdef Py_ssize_t i
        name = getattr(caller, "__name__", None) if may_be_function(caller) else None
        if name == "_pass_extra_kwargs" and len(args) > 1:
            keys = self.value_of(args[1], scope)
            return args[2 + len(items_of(self.value_task if keys is None else keys)):], kwargs
        if name == "map_chunk":
            found = kwargs.get("kwargs", args[3] if len(args) > 3 else None)
            return (), keywords_of(found)
        names = names_of_arguments(caller)
        for i in range(min(len(names), len(args))):
            self.add_param(p, name_at(names, i), args[i], scope)
        return args[len(names):], kwargs

    cdef int add_param(self, params *p, bytes name, object node, Scope scope) except -1:
        cdef int kind
        if name is None or p.count == PARAMS_MOST:
            return 0
        kind = kind_of_number_of(node)
        if not kind:
            node = self.value_of(node, scope)
            kind = kind_of_number_of(node)
        return add_number(p, name, node, kind) if kind else 0

    cdef object value_of(self, object node, Scope scope):
        """The constant or the dependency behind a node; None if a task makes it.

        value_key: the key of the dependency, or None. value_task: the task, or None.
        """
        cdef int kind, left = DEPTH_MOST
        self.value_key = self.value_task = None
        while left > 0:
            left -= 1
            kind = kind_of_node(type(node))
            if kind == NODE_DATA:
                return node.value
            if kind == NODE_TASK:
                self.value_task = node
                return None
            if kind == NODE_REFERENCE:
                key = target_of(node)
            elif scope is not None and scope.legacy and type(node) is str:
                key = node
            else:
                return node
            while True:
                if scope is None:
                    if type(self.data) is not dict:
                        return None
                    self.value_key = key
                    return (<dict>self.data).get(key)
                node = scope.graph.get(key)
                if node is not None:
                    break
                node, scope = scope.argument(key), scope.outer
                if node is not None:
                    break
        return None

    cdef bint add_block(
            self, Function f, object source, object selection, Scope scope) except -1:
        """Add what a getter reads; False if its source is not a whole array that exists."""
        array = self.value_of(source, scope)
        key = self.value_key
        if array is None or f.role == ITEM and not is_lazy(array):
            return False
        chosen = self.value_of(selection, scope)
        if type(chosen) is not tuple:
            if chosen is None:
                return False
            chosen = (chosen,)
        if not add_selection(self.inputs, array, chosen):
            return False
        self.done[key] = True  # the whole array is no input
        self.blocks += 1
        return True


cdef bint is_rechunk(object key):
    word = (<tuple>key)[0] if type(key) is tuple and key else key
    return type(word) is str and "rechunk" in word


cdef object data_of(object node):
    """The value of a data node; anything else as it is."""
    return node.value if kind_of_node(type(node)) == NODE_DATA else node


cdef dict keywords_of(object node):
    """Keyword arguments, in any of the forms that a graph has for a dict."""
    node = data_of(node)
    if type(node) is dict:
        return node
    try:
        return dict(pairs_of(node))
    except Exception:  # a form that is not known
        return {}


cdef object pairs_of(object node):
    """(name, value) of each item of a dict that a graph makes."""
    found = ()
    if kind_of_node(type(node)) == NODE_TASK:
        constructor = getattr((node.kwargs or {}).get("constructor"), "__qualname__", None)
        if constructor == "Dict.constructor":  # name, value, name, value ...
            return zip(map(data_of, node.args[::2]), node.args[1::2])
        # before Dask 2024.12: values ..., names
        if getattr(node.func, "__name__", None) == "_to_dict":
            return zip(node.args[-1], node.args)
        found = node.args if node.func is dict else ()
    elif type(node) is tuple and node and node[0] is dict:
        found = node[1:]  # (dict, [[name, value], ...])
    return [items_of(pair) for pair in items_of(found[0])] if len(found) == 1 else ()


cdef object items_of(object node):
    """The items of a list or a tuple in a graph."""
    node = data_of(node)
    if kind_of_node(type(node)) == NODE_TASK:
        if node.func is list or node.func is tuple:
            return items_of(node.args[0]) if len(node.args) == 1 else ()
        if getattr(node.func, "__name__", None) in ("_identity_cast", "to_container"):
            node = node.args
    return node if type(node) is list or type(node) is tuple else ()


cdef Scope subgraph_of(Function f, tuple args, Scope outer):
    """The scope of a task that runs a graph; None if its arguments are not as we know them."""
    cdef Scope inner = Scope.__new__(Scope)
    graph = data_of(args[0])
    inner.arguments, inner.first, inner.outer = args, 3, outer
    if f.role == TASK_LIST:
        inner.inkeys = data_of(args[1])
        if type(graph) is not list or type(inner.inkeys) is not dict:
            return None
        graph = {task.key: task for task in graph}
    else:
        inner.inkeys = data_of(args[2])
        if type(inner.inkeys) is dict and len(args) > 3:  # Dask before 2024.12
            more = data_of(args[3])
            if type(more) is dict:
                inner.inkeys = {**inner.inkeys, **more}
    if type(graph) is not dict:
        return None
    inner.graph = graph
    return inner


cdef object target_of(object reference):
    """The key that an Alias or a TaskRef stands for."""
    found = getattr(reference, "target", None)
    if found is None:
        return reference.key
    return found.key if kind_of_node(type(found)) == NODE_REFERENCE else found


cdef bint same_names(
        list names, Py_ssize_t first, Py_ssize_t first_size, Py_ssize_t second,
        Py_ssize_t second_size) except -1:
    cdef Py_ssize_t i
    if first_size != second_size:
        return False
    for i in range(first_size):
        if names[first + i] is not names[second + i] and names[first + i] != names[second + i]:
            return False
    return True


def walk_task(node, data=None):
    """(inputs as JSON, operation or None, chain as a list of names).

    For tests."""
    cdef listing l
    cdef Walk walk = Walk.__new__(Walk)
    open_listing(&l)
    walk.inputs, walk.data, walk.sizes = &l, data, None
    walk.run(node)
    close_listing(&l)
    return (
        l.text[:l.size], walk.operation_text().decode() or None,
        [name[1:-1].decode() for name in walk.names])
