cdef extern from "patch.h" nogil:
    const char *patch_provider()
