from libc.stdint cimport int64_t, uint64_t

from csrc.board_layout cimport (
    board_header, board_live, device, facts, sample, slot_fields, task_device, task_fields, total)
from csrc.frame cimport text
from csrc.layout cimport layout

cdef extern from "board_read.h" nogil:
    enum:
        BOARD_NOT_READY, BOARD_FOREIGN, BOARD_VERSION_UNKNOWN
        BOARD_DAMAGED, BOARD_CUT_SHORT, BOARD_UNREADABLE
    const char *board_header_names[1]
    const char *board_header_text_names[1]
    const char *board_sample_names[1]
    struct board_reader:
        int fd
        uint64_t inode
        board_header header
        layout layout
        char layout_text[1]
    struct running_task:
        slot_fields slot
        task_device *gpu
        task_fields task
        text name, key, inputs, operation, chain, params, params_values
    const char *board_reader_header_text(const board_reader *r, int index, uint64_t *len)
    int board_reader_open(board_reader *r, const char *path)
    void board_reader_close(board_reader *r)
    int board_read_live(const board_reader *r, board_live *live)
    int board_read_facts(const board_reader *r, facts *f)
    int board_read_device(const board_reader *r, uint64_t index, device *d)
    int board_read_slot(board_reader *r, uint64_t index, running_task *task)
    int64_t board_read_records(
        board_reader *r, uint64_t *position, char *frames, uint64_t size, uint64_t most)
    int64_t board_read_texts(board_reader *r, uint64_t *position, char *texts, uint64_t size)
    int board_read_total(board_reader *r, uint64_t index, total *t)
    int64_t board_read_samples(
        const board_reader *r, uint64_t *index, sample *samples, uint64_t most)
