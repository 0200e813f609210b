/* Boards for the tests of writer and reader. The text of a record shows whether it is torn. */
#ifndef BOARDS_H
#define BOARDS_H

#include "check.h"
#include "board.h"
#include "board_read.h"

static const char *root;
static const char *step;

static inline struct board_settings settings(const char *directory)
{
    return (struct board_settings){ .directory = directory,
                                    .run = "r1",
                                    .host = "h",
                                    .task_name = "t",
                                    .pid = 42,
                                    .start_ticks = 7,
                                    .rss_before_bytes = 5,
                                    .limit_bytes = ABSENT };
}

static inline struct board open_board(void)
{
    struct board b;
    root = scratch();
    struct board_settings s = settings(root);
    CHECK(board_create(&b, &s, &step) == 0 && board_grow(&b, &step) == 0);
    return b;
}

static char board_text[4096];

/* Publishes a finished task. Its name is one letter, chosen by seq, repeated name_len times. */
static inline void publish(struct board *b, uint64_t seq, uint64_t name_len)
{
    static struct record r;
    char frame[FRAME_BYTES_MOST] __attribute__((aligned(8)));
    r.task = (struct task_fields){ .seq = seq, .serial = seq, .state = TASK_OK };
    memset(board_text, 'a' + (int)(seq % 26), name_len);
    r.texts[TEXT_name] = (struct text){ board_text, name_len };
    for (int i = 0; i < TEXT_COUNT; i++) r.numbers[i] = ABSENT;
    board_publish_frame(b, frame, frame_pack(&r, frame), seq);
}

/* Reads all records from *position on, checks order and contents, and returns their number. */
static inline uint64_t drain(struct board_reader *r, uint64_t *position, uint64_t *last_seq)
{
    static char frames[1 << 16] __attribute__((aligned(8)));
    uint64_t n = 0;
    int64_t bytes;
    while ((bytes = board_read_records(r, position, frames, sizeof frames, UINT64_MAX)) > 0) {
        for (int64_t at = 0; at < bytes; n++) {
            struct record found;
            CHECK(frame_unpack(&r->layout, frames + at, &found) == 0 && found.task.seq > *last_seq);
            *last_seq = found.task.seq;
            const struct text name = found.texts[TEXT_name];
            for (uint64_t i = 0; i < name.len; i++)
                if (name.at[i] != 'a' + (char)(found.task.seq % 26)) {
                    CHECK(!"torn text");
                    break;
                }
            at += (int64_t)frame_valid_bytes(&r->layout, frames + at, (uint64_t)(bytes - at));
        }
    }
    CHECK(bytes == 0);
    return n;
}

#endif
