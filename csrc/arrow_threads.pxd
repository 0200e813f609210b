cdef extern from "arrow_threads.h" nogil:
    int arrow_threads_follow(const char *path)
    void arrow_threads_leave()
