/* The writer: published is what is read, across wraps and losses; directories that are refused. */
#include "check.h"
#include "boards.h"

#include <errno.h>
#include <pthread.h>

static void what_is_published_is_read(void)
{
    struct board b = open_board();
    struct board_reader r;
    uint64_t position = 0, last = 0;
    CHECK(board_reader_open(&r, b.path) == 0);
    CHECK(r.header.pid == 42 && r.header.limit_bytes == ABSENT && !strcmp(r.header.run, "r1"));
    CHECK(drain(&r, &position, &last) == 0);
    for (uint64_t seq = 1; seq <= 200000; seq++) { /* many times around the ring, all lengths */
        publish(&b, seq, seq * 37 % FRAME_TEXTS_MOST);
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
    for (uint64_t i = 0; i < 3 * SAMPLE_COUNT + 5; i++)
        board_publish_sample(&b, &(struct sample){ .time_ns = i, .rss_bytes = 2 * i });
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
    for (uint64_t seq = 1; seq <= (SANITIZED ? 50000 : 400000); seq++)
        publish(&shared, seq, seq * 131 % 500);
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
    /* may miss records, never reads torn ones */
    while (load_acquire(&writing)) n += drain(&r, &position, &last);
    pthread_join(thread, NULL);
    n += drain(&r, &position, &last);
    CHECK(last == (SANITIZED ? 50000 : 400000));
    CHECK(n > 0);
    board_reader_close(&r);
    board_unmap(&shared, 1);
    remove_tree(root);
}

static void a_board_without_its_file_does_not_grow(void)
{
    struct board b;
    root = scratch();
    struct board_settings s = settings(root);
    CHECK(board_create(&b, &s, &step) == 0 && !b.slots && unlink(b.path) == 0);
    CHECK(board_grow(&b, &step) == -ENOENT && !strcmp(step, "open the board file") && !b.slots);
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
    /* allocated, not sparse */
    CHECK(st.st_size == HEAD_BYTES && (uint64_t)st.st_blocks * 512 >= HEAD_BYTES);
    CHECK(board_grow(&b, &step) == 0 && stat(b.path, &st) == 0
          && (uint64_t)st.st_blocks * 512 >= BOARD_BYTES);
    char first[512];
    snprintf(first, sizeof first, "%s", b.path);
    board_unmap(&b, 0);
    /* after exec: one more of the same process */
    CHECK(board_create(&b, &s, &step) == 0 && strcmp(first, b.path));
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
    /* not UTF-8: the search ends */
    CHECK(text_clip("\x80\x80\x80\x80\x80\x80\x80\x80", 8, 6) <= 6);
}

int main(void)
{
    RUN(what_is_published_is_read);
    RUN(the_ring_holds_8192_records);
    RUN(samples_wrap);
    RUN(a_reader_beside_a_writer_sees_nothing_torn);
    RUN(a_board_without_its_file_does_not_grow);
    RUN(directories_that_cannot_be_trusted);
    RUN(texts_are_clipped_between_characters);
    return failures;
}
