# What graph.pyx uses of functions.pyx.
cdef enum callable_shape:
    OPAQUE, PARTIAL, SUBGRAPH_CALLABLE, COMPOSE, METHOD_CALLER, NUMPY_FUNCTION
    VECTORIZE  # np.vectorize: around a function
    NAMED  # compiled or cached: names itself as a function does

cdef enum function_role:
    PLAIN  # a function whose name stands in the chain
    HIDDEN  # a wrapper: only what it calls has a name
    SUBGRAPH  # (graph, key of the result, arguments ...): runs a graph
    TASK_LIST  # (tasks, dependencies, key of the result): the same in dask_expr
    APPLY  # (function, arguments, keyword arguments)
    GETTER  # (array, selection): reads a block of the array
    ITEM  # the same, but the array may be a block in memory
    CONCATENATE  # of neighbours for an overlap, or of pieces in a rechunk: the key says which
    STORE  # (block, target, region): the target is no input

cdef frozenset LIBRARIES

cdef class Function:
    cdef int role
    cdef bytes name
    cdef bint ours, names_task
    cdef object qualname  # of a function with code

cdef Function function_of(object function)
cdef int shape_of(type t)
cdef object unwrapped(object function, int depth)
cdef bint may_be_function(object value)
cdef bint is_callable_object(object value)
