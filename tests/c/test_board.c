/* Board and reader together: what is published is what is read, across wraps, losses, damage and every refused directory. */
#include "check.h"
#include "board.h"
#include "board_read.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

static const char *root;
static const char *step;

static struct board_settings settings(const char *directory)
{
    return (struct board_settings){ .directory = directory, .run = "r1", .host = "h", .task_name = "t", .pid = 42, .start_ticks = 7,
                                    .rss_before_bytes = 5, .limit_bytes = ABSENT };
}

static struct board open_board(void)
{
    struct board b;
    root = scratch();
    struct board_settings s = settings(root);
    CHECK(board_create(&b, &s, &step) == 0 && board_grow(&b, &step) == 0);
    return b;
}

static char text[4096] __attribute__((aligned(8)));

static void publish(struct board *b, uint64_t seq, uint64_t name_len)
{
    struct task_fields t = { .seq = seq, .serial = seq, .state = TASK_OK, .name_len = name_len };
    memset(text, 'a' + (int)(seq % 26), name_len);
    board_publish_record(b, &t, text);
}

/* Reads everything from *position; checks order and contents; returns how many. */
static uint64_t drain(struct board_reader *r, uint64_t *position, uint64_t *last_seq)
{
    static char frames[1 << 16] __attribute__((aligned(8)));
    uint64_t n = 0;
    int64_t bytes;
    while ((bytes = board_read_records(r, position, frames, sizeof frames, UINT64_MAX)) > 0) {
        for (int64_t at = 0; at < bytes;) {
            struct frame *f = (struct frame *)(frames + at);
            CHECK(f->task.seq > *last_seq);
            *last_seq = f->task.seq;
            for (uint64_t i = 0; i < f->task.name_len; i++)
                if (f->text[i] != 'a' + (char)(f->task.seq % 26)) { CHECK(!"torn text"); break; }
            at += (int64_t)f->frame_bytes;
            n++;
        }
    }
    CHECK(bytes == 0);
    return n;
}

static void what_is_published_is_read(void)
{
    struct board b = open_board();
    struct board_reader r;
    uint64_t position = 0, last = 0;
    CHECK(board_reader_open(&r, b.path) == 0);
    CHECK(r.header.pid == 42 && r.header.limit_bytes == ABSENT && !strcmp(r.header.run, "r1"));
    CHECK(drain(&r, &position, &last) == 0);
    for (uint64_t seq = 1; seq <= 200000; seq++) { /* many times around the ring, all lengths */
        publish(&b, seq, seq * 37 % 3800);
        if (seq % 700 == 0) drain(&r, &position, &last);
    }
    drain(&r, &position, &last);
    CHECK(last == 200000);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void the_ring_holds_8192_records(void)
{
    struct board b = open_board();
    struct board_reader r;
    uint64_t position = 0, last = 0;
    for (uint64_t seq = 1; seq <= 50000; seq++) publish(&b, seq, 300); /* nobody reads */
    CHECK(board_reader_open(&r, b.path) == 0);
    uint64_t n = drain(&r, &position, &last);
    CHECK(n >= 8192 && last == 50000);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void samples_wrap(void)
{
    struct board b = open_board();
    struct board_reader r;
    static struct sample s[SAMPLE_COUNT];
    uint64_t index = 0;
    CHECK(board_reader_open(&r, b.path) == 0);
    for (uint64_t i = 0; i < 3 * SAMPLE_COUNT + 5; i++) board_publish_sample(&b, &(struct sample){ .time_ns = i, .rss_bytes = 2 * i });
    uint64_t next = 2 * SAMPLE_COUNT + 6;
    int64_t n;
    while ((n = board_read_samples(&r, &index, s, SAMPLE_COUNT)) > 0)
        for (int64_t i = 0; i < n; i++) {
            CHECK(s[i].time_ns == next && s[i].rss_bytes == 2 * next);
            next++;
        }
    CHECK(next == 3 * SAMPLE_COUNT + 5);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static struct board shared;
static word writing;

static void *write_records(void *unused)
{
    for (uint64_t seq = 1; seq <= (SANITIZED ? 50000 : 400000); seq++) publish(&shared, seq, seq * 131 % 500);
    store_release(&writing, 0);
    return unused;
}

static void a_reader_beside_a_writer_sees_nothing_torn(void)
{
    pthread_t thread;
    struct board_reader r;
    uint64_t position = 0, last = 0, n = 0;
    shared = open_board();
    store_release(&writing, 1);
    CHECK(board_reader_open(&r, shared.path) == 0);
    pthread_create(&thread, NULL, write_records, NULL);
    while (load_acquire(&writing)) n += drain(&r, &position, &last); /* loses what it is too slow for, never reads a mixture */
    pthread_join(thread, NULL);
    n += drain(&r, &position, &last);
    CHECK(last == (SANITIZED ? 50000 : 400000));
    CHECK(n > 0);
    board_reader_close(&r);
    board_unmap(&shared, 1);
    remove_tree(root);
}

static int reopen(const char *path)
{
    struct board_reader r;
    int e = board_reader_open(&r, path);
    if (e == 0) board_reader_close(&r);
    return e;
}

static void refused_files(void)
{
    struct board b = open_board();
    char path[256];
    word zero = 0, next = BOARD_VERSION + 1, magic = BOARD_MAGIC;
    int fd = open(b.path, O_RDWR);
    CHECK(pwrite(fd, &next, 8, 8) == 8 && reopen(b.path) == BOARD_VERSION_UNKNOWN);
    CHECK(pwrite(fd, &zero, 8, 0) == 8 && reopen(b.path) == BOARD_NOT_READY);
    CHECK(pwrite(fd, "not a board at all", 18, 0) == 18 && reopen(b.path) == BOARD_FOREIGN);
    word one = 1, version = BOARD_VERSION;
    CHECK(pwrite(fd, &magic, 8, 0) == 8 && pwrite(fd, &version, 8, 8) == 8 && pwrite(fd, &one, 8, 40) == 8 && reopen(b.path) == BOARD_DAMAGED);
    close(fd);
    board_unmap(&b, 1);

    struct board_settings s = settings(root);
    CHECK(board_create(&b, &s, &step) == 0 && board_grow(&b, &step) == 0);
    CHECK(truncate(b.path, BOARD_BYTES / 2) == 0 && reopen(b.path) == BOARD_CUT_SHORT);
    CHECK(truncate(b.path, 100) == 0 && reopen(b.path) == BOARD_CUT_SHORT);
    CHECK(truncate(b.path, 3) == 0 && reopen(b.path) == BOARD_CUT_SHORT);
    CHECK(truncate(b.path, 0) == 0 && reopen(b.path) == BOARD_NOT_READY);
    snprintf(path, sizeof path, "%s/none", root);
    CHECK(reopen(path) == BOARD_UNREADABLE && errno == ENOENT);
    CHECK(reopen(root) == BOARD_FOREIGN);
    CHECK(symlink(b.path, path) == 0 && reopen(path) == BOARD_UNREADABLE);
    board_unmap(&b, 1);
    remove_tree(root);
}

/* A board begins small, and a reader that has it open sees it grow. */
static void a_board_grows_under_its_reader(void)
{
    struct board b;
    struct board_reader r;
    struct slot slot;
    struct board_live live;
    static char frames[1 << 16] __attribute__((aligned(8)));
    uint64_t position = 0, last = 0;
    root = scratch();
    struct board_settings s = settings(root);
    CHECK(board_create(&b, &s, &step) == 0 && !b.slots);
    CHECK(board_reader_open(&r, b.path) == 0 && board_read_live(&r, &live) == 0 && live.room_for_tasks == 0);
    CHECK(board_read_slot(&r, 0, &slot) == 0 && board_read_records(&r, &position, frames, sizeof frames, 9) == 0);
    CHECK(board_grow(&b, &step) == 0);
    publish(&b, 1, 100);
    CHECK(drain(&r, &position, &last) == 1 && last == 1);
    CHECK(board_read_live(&r, &live) == 0 && live.room_for_tasks == 1);
    board_reader_close(&r);

    word nonsense = 7; /* neither there nor not there */
    int fd = open(b.path, O_RDWR);
    CHECK(pwrite(fd, &nonsense, 8, LIVE_OFFSET + offsetof(struct board_live, room_for_tasks)) == 8 && reopen(b.path) == BOARD_DAMAGED);
    close(fd);
    board_unmap(&b, 1);

    CHECK(board_create(&b, &s, &step) == 0 && unlink(b.path) == 0);
    CHECK(board_grow(&b, &step) == -ENOENT && !strcmp(step, "open the board file") && !b.slots);
    board_unmap(&b, 1);
    remove_tree(root);
}

/* Random bytes over every part of a good board: any answer but a crash, a hang or a wrong text. */
static void mutations(void)
{
    struct board b = open_board();
    static char frames[1 << 16] __attribute__((aligned(8)));
    static struct sample samples[256];
    struct slot slot;
    struct board_live live;
    unsigned seed = 1;
    for (uint64_t seq = 1; seq <= 20000; seq++) publish(&b, seq, seq % 600);
    int fd = open(b.path, O_RDWR);
    char *base = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *good = malloc(BOARD_BYTES);
    CHECK(base != MAP_FAILED);
    close(fd);
    memcpy(good, base, BOARD_BYTES);
    for (int round = 0; round < 3000; round++) {
        uint64_t limits[] = { 256, SLOTS_OFFSET, SLOTS_OFFSET + 8192, BOARD_BYTES };
        for (int i = 0; i < 1 + round % 20; i++) {
            uint64_t at = (uint64_t)rand_r(&seed) * 8191 % limits[round % 4];
            base[at] = (char)rand_r(&seed);
        }
        struct board_reader r;
        if (board_reader_open(&r, b.path) == 0) {
            uint64_t position = round % 2 ? 0 : (uint64_t)rand_r(&seed), index = (uint64_t)rand_r(&seed);
            int calls = 0;
            board_read_live(&r, &live);
            for (uint64_t i = 0; i < 4; i++) board_read_slot(&r, i, &slot);
            while (calls < 5000 && board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX) > 0) calls++;
            while (calls < 5000 && board_read_samples(&r, &index, samples, 256) > 0) calls++;
            CHECK(calls < 5000); /* reading comes to an end */
            board_reader_close(&r);
        }
        if (round % 50 == 49) memcpy(base, good, BOARD_BYTES);
    }
    free(good);
    munmap(base, BOARD_BYTES);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void a_head_beyond_the_ring_is_not_followed(void)
{
    struct board b = open_board();
    struct board_reader r;
    static char frames[1 << 16] __attribute__((aligned(8)));
    uint64_t position = 0;
    for (uint64_t seq = 1; seq <= 40000; seq++) publish(&b, seq, 100);
    CHECK(board_reader_open(&r, b.path) == 0);
    b.live->records_head += RECORDS_BYTES << 20;
    CHECK(board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX) == BOARD_DAMAGED);
    b.live->records_head -= RECORDS_BYTES << 20;
    position = 0;
    *(word *)(b.records + b.live->records_tail % RECORDS_BYTES) = FRAME_PAD; /* in the middle: points behind the head or into the unknown */
    int calls = 0;
    while (board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX) > 0 && calls < 1000) calls++;
    CHECK(calls < 1000);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void directories_that_cannot_be_trusted(void)
{
    struct board b;
    char path[256], link[256];
    root = scratch();
    snprintf(path, sizeof path, "%s/d", root);
    snprintf(link, sizeof link, "%s/link", root);
    struct board_settings s = settings(path);
    CHECK(board_create(&b, &s, &step) == 0); /* made with mode 0700 */
    struct stat st;
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0700);
    CHECK(stat(b.path, &st) == 0 && (st.st_mode & 0777) == 0600);
    CHECK(st.st_size == HEAD_BYTES && (uint64_t)st.st_blocks * 512 >= HEAD_BYTES); /* allocated, not sparse */
    CHECK(board_grow(&b, &step) == 0 && stat(b.path, &st) == 0 && (uint64_t)st.st_blocks * 512 >= BOARD_BYTES);
    char first[512];
    snprintf(first, sizeof first, "%s", b.path);
    board_unmap(&b, 0);
    CHECK(board_create(&b, &s, &step) == 0 && strcmp(first, b.path)); /* after exec: one more of the same process */
    board_unmap(&b, 1);

    CHECK(symlink(path, link) == 0);
    s.directory = link;
    CHECK(board_create(&b, &s, &step) < 0 && !strcmp(step, "open the board directory"));
    chmod(path, 0777);
    s.directory = path;
    CHECK(board_create(&b, &s, &step) == -EPERM && !strcmp(step, "trust the board directory"));
    put(root, "file", "");
    snprintf(path, sizeof path, "%s/file", root);
    CHECK(board_create(&b, &s, &step) < 0);
    snprintf(path, sizeof path, "%s/no/such", root);
    CHECK(board_create(&b, &s, &step) == -ENOENT && !strcmp(step, "create the board directory"));
    remove_tree(root);
}

static void texts_are_clipped_between_characters(void)
{
    CHECK(text_clip("abc", 3, 5) == 3);
    CHECK(text_clip("abcdef", 6, 4) == 4);
    CHECK(text_clip("a\xc3\xa9", 3, 2) == 1);
    CHECK(text_clip("ab\xf0\x9f\x98\x80", 6, 5) == 2);
    CHECK(text_clip("\x80\x80\x80\x80\x80\x80\x80\x80", 8, 6) <= 6); /* not UTF-8: no endless search */
}

int main(void)
{
    RUN(what_is_published_is_read);
    RUN(the_ring_holds_8192_records);
    RUN(samples_wrap);
    RUN(a_reader_beside_a_writer_sees_nothing_torn);
    RUN(refused_files);
    RUN(a_board_grows_under_its_reader);
    RUN(mutations);
    RUN(a_head_beyond_the_ring_is_not_followed);
    RUN(directories_that_cannot_be_trusted);
    RUN(texts_are_clipped_between_characters);
    return failures;
}
