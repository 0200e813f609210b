# cython: language_level=3, freethreading_compatible=True
"""Blocks that a task reads of arrays in files and stores: their shape and bytes, from the array and
the selection in the task's graph. Used by graph.pyx.
"""
from libc.stdint cimport uint64_t

from csrc.board_layout cimport ABSENT
from dwsr_probe.binding.features cimport (
    ARRAY, LAZY, NDARRAY, NDARRAY_SUBCLASS, UNKNOWN, add_fields, byte_count, kind_of, listing,
    name_of_dtype, name_of_type, shape_and_dtype_of_lazy, shape_dtype_nbytes)


cdef bint is_lazy(object array):
    """Whether a task that gets the array reads a block of it from somewhere else."""
    cdef int kind = kind_of(type(array))
    return kind == LAZY or kind == NDARRAY_SUBCLASS and type(array).__name__ == "memmap"


cdef bint add_selection(listing *l, object array, tuple selection) except -1:
    """Add the block that a selection takes of an array: its shape, and its bytes if the dtype is
    known. False, and nothing added, if the array has no shape."""
    cdef int kind = kind_of(type(array))
    cdef uint64_t nbytes = ABSENT
    shape = dtype = None
    try:
        if kind == LAZY:
            shape, dtype = shape_and_dtype_of_lazy(array)
        elif kind != UNKNOWN:
            shape, dtype = shape_dtype_nbytes(array, kind)[:2]
        block = selected_shape(shape if type(shape) is tuple else None, selection)
        if block is None:
            return False
        if dtype is not None:
            found = dtype.itemsize
            for axis in block:
                found = None if axis is None or found is None else found * axis
            nbytes = byte_count(found)
    except Exception:  # a file that is closed
        return False
    l.visited += 1
    if kind != NDARRAY:
        l.arrays_only = False
    add_fields(
        l, name_of_type(type(array)), b"null" if dtype is None else name_of_dtype(dtype), block,
        nbytes, is_lazy(array))
    if l.total_bytes != ABSENT:
        l.total_bytes = ABSENT if nbytes == ABSENT else l.total_bytes + nbytes
    return True


cdef tuple selected_shape(tuple shape, tuple selection):
    """The shape that a selection has. None for an axis that only the contents of a mask tell.

    shape: of the array, or None if it is unknown. Returns None if the selection does not say
    enough.
    """
    cdef Py_ssize_t axis = 0, named = 0, before = 0  # axes that are named, in all and so far
    result = []
    for item in selection:
        named += item is not None and item is not Ellipsis
    for item in selection:
        if item is None:
            result.append(1)
            continue
        if item is Ellipsis:
            if shape is None:
                return None
            while axis < len(shape) - (named - before):
                result.append(shape[axis])
                axis += 1
            continue
        length = None
        if shape is not None:
            if axis >= len(shape):
                return None
            length = shape[axis]
        axis += 1
        before += 1
        if type(item) is slice:
            if length is None:
                if type(item.start) is not int or type(item.stop) is not int:
                    return None
                length = max(item.start, item.stop)
            result.append(len(range(*item.indices(length))))
        elif type(item) is list:
            result.append(None if item and type(item[0]) is bool else len(item))
        elif kind_of(type(item)) == NDARRAY:
            if item.dtype.kind == "b":
                result.append(None)
            elif item.ndim:
                result.append(item.size)
        elif type(item) is not int and kind_of(type(item)) != ARRAY:  # an integer takes its axis
            return None
    if shape is not None:
        result.extend(shape[axis:])
    return tuple(result)


def shape_of_selection(shape, selection):
    """For tests: selected_shape."""
    return selected_shape(shape, selection)
