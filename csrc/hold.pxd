cdef extern from "hold.h" nogil:
    struct hold:
        void (*let_go)(hold *h) noexcept nogil
        int gone
