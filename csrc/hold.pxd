cdef extern from "hold.h" nogil:
    struct hold:
        void (*release)(hold *h) noexcept nogil
        int released
