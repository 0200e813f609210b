from libc.stdint cimport uint64_t

cdef extern from "board.h" nogil:
    struct board:
        pass
    struct board_settings:
        const char *directory
        uint64_t pid
    int board_create(board *b, const board_settings *s, const char **failed_step)
    int board_grow(board *b, const char **failed_step)
    void board_unmap(board *b, int remove)
