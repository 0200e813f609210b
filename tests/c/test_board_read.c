/* The reader: boards of other releases, boards that grow, shrink or are damaged, and files that are
 * no boards. */
#include "boards.h"
#include "texts.h"
#include "totals.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

static char frames[1 << 16] __attribute__((aligned(8)));

static void names_and_texts(void)
{
    struct board b = open_board();
    struct board_reader r;
    uint64_t len, fields = 0;
    while (board_header_names[fields]) fields++;
    CHECK(fields == offsetof(struct board_header, run) / sizeof(word)
          && !strcmp(board_sample_names[0], "time_ns"));
    CHECK(board_reader_open(&r, b.path) == 0);
    for (int i = 0; board_header_text_names[i]; i++) {
        const char *found = board_reader_header_text(&r, i, &len);
        if (!strcmp(board_header_text_names[i], "run")) CHECK(len == 2 && !memcmp(found, "r1", 2));
        if (!strcmp(board_header_text_names[i], "worker")) CHECK(len == 0);
    }
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static int reopen(const char *path)
{
    struct board_reader r;
    int e = board_reader_open(&r, path);
    if (e == 0) board_reader_close(&r);
    return e;
}

/* A board of a release with other fields: missing ones are ABSENT, unknown ones are ignored. */
static void a_board_with_other_fields(void)
{
    struct board b = open_board();
    struct board_reader r;
    struct board_live live;
    char *layout = (char *)b.header + LAYOUT_OFFSET, *resets = strstr(layout, " resets "),
         *running = strstr(layout, " running ");
    memcpy(resets, " resots ", 8);
    b.live->resets = 5;
    b.live->running = 7;
    CHECK(reopen(b.path) == BOARD_DAMAGED); /* another checksum */
    b.header->check = board_header_checksum(b.header, (const word *)layout);
    CHECK(board_reader_open(&r, b.path) == 0 && board_read_live(&r, &live) == 0
          && live.resets == ABSENT && live.running == 7);
    board_reader_close(&r);
    memcpy(running, " resots ", 8); /* no writer names a known field twice */
    memcpy(resets, " state  ", 8);
    b.header->check = board_header_checksum(b.header, (const word *)layout);
    CHECK(reopen(b.path) == BOARD_DAMAGED); /* or leaves a name empty */
    board_unmap(&b, 1);
    remove_tree(root);
}

static void running_tasks(void)
{
    struct board b = open_board();
    struct board_reader r;
    struct slot *s = &b.slots[7];
    struct running_task slot;
    CHECK(board_reader_open(&r, b.path) == 0 && board_read_slot(&r, 7, &slot) == 0);
    s->fields.turn = 2;
    s->fields.name_len = 3;
    s->task = (struct task_fields){ .serial = 9, .state = TASK_RUNNING };
    memcpy(s->text, "abc", 3);
    CHECK(board_read_slot(&r, 7, &slot) == 1 && slot.task.serial == 9 && slot.name.len == 3
          && !memcmp(slot.name.at, "abc", 3));
    s->fields.turn = 3; /* being written */
    CHECK(board_read_slot(&r, 7, &slot) == 0);
    s->fields.turn = 4;
    s->fields.name_len = SLOT_TEXT_BYTES + 1;
    CHECK(board_read_slot(&r, 7, &slot) == BOARD_DAMAGED);
    s->fields.name_len = 3;
    s->fields.key_len = UINT64_MAX - 1; /* the sum of both is 1 */
    CHECK(board_read_slot(&r, 7, &slot) == BOARD_DAMAGED);
    s->fields.key_len = 0;
    s->task.state = TASK_OK; /* no slot holds a finished task */
    CHECK(board_read_slot(&r, 7, &slot) == BOARD_DAMAGED);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void facts_and_devices(void)
{
    struct board b = open_board();
    struct board_reader r;
    struct facts facts;
    struct device d, *first = (struct device *)b.devices;
    CHECK(board_reader_open(&r, b.path) == 0);
    CHECK(board_read_facts(&r, &facts) == 0 && facts.len == 0);
    CHECK(board_publish_facts(&b, "{}", 2) == 0 && board_read_facts(&r, &facts) == 0
          && facts.len == 2 && !memcmp(facts.text, "{}", 2));
    b.facts->turn++; /* being written, for ever */
    CHECK(board_read_facts(&r, &facts) == 0 && facts.len == 0);
    b.facts->turn++;
    b.facts->len = FACTS_BYTES;
    CHECK(board_read_facts(&r, &facts) == BOARD_DAMAGED);
    CHECK(board_read_device(&r, 0, &d) == 0);
    first->fields.present = 1;
    memset(first->name, 'n', sizeof first->name); /* without an end */
    CHECK(board_read_device(&r, 0, &d) == 1 && strlen(d.name) == sizeof d.name - 1
          && board_read_device(&r, 1, &d) == 0);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void records_in_pieces(void)
{
    struct board b = open_board();
    struct board_reader r;
    uint64_t position = 0, frame, last = 0;
    for (uint64_t seq = 1; seq <= 10; seq++) publish(&b, seq, 100);
    CHECK(board_reader_open(&r, b.path) == 0);
    frame = (uint64_t)board_read_records(&r, &position, frames, sizeof frames, 1);
    CHECK(frame > 0 && frame < 1000 && position == frame);
    /* so many at most */
    CHECK(board_read_records(&r, &position, frames, sizeof frames, 3) == (int64_t)(3 * frame));
    /* no half ones */
    CHECK(board_read_records(&r, &position, frames, 2 * frame + 8, 9) == (int64_t)(2 * frame));
    struct record fifth;
    CHECK(frame_unpack(&r.layout, frames, &fifth) == 0 && fifth.task.serial == 5
          && fifth.task.seq == 5 && position == 6 * frame);
    CHECK(drain(&r, &position, &last) == 4 && last == 10);
    position += 8; /* of another board */
    CHECK(board_read_records(&r, &position, frames, sizeof frames, 1) == BOARD_DAMAGED);
    position = 0;
    b.records[64] ^= 1; /* a bit of the first one */
    CHECK(board_read_records(&r, &position, frames, sizeof frames, 1) == BOARD_DAMAGED
          && position == 0);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void texts_that_somebody_changed(void)
{
    struct board b = open_board();
    struct board_reader r;
    static struct texts texts;
    static struct texts_index table;
    uint64_t position = 0;
    texts_open(&texts, &table, b.texts, &b.live->texts_end);
    CHECK(board_reader_open(&r, b.path) == 0
          && board_read_texts(&r, &position, frames, sizeof frames) == 0);
    CHECK(texts_intern(&texts, TEXT_name, (struct text){ "a name", 6 }) == 0
          && texts_intern(&texts, TEXT_name, (struct text){ "another", 7 }) == 1);
    CHECK(board_read_texts(&r, &position, frames, sizeof frames) == 32 && position == 32);
    position = 0;
    /* no half ones */
    CHECK(board_read_texts(&r, &position, frames, 16) == 16 && position == 16
          && !memcmp(frames + 8, "a name", 6));
    b.texts[24] ^= 1;
    CHECK(board_read_texts(&r, &position, frames, sizeof frames) == BOARD_DAMAGED);
    b.live->texts_end = 8; /* inside a text */
    position = 0;
    CHECK(board_read_texts(&r, &position, frames, sizeof frames) == BOARD_DAMAGED);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void samples_that_make_no_sense(void)
{
    struct board b = open_board();
    struct board_reader r;
    struct sample s[4];
    uint64_t index = 1000;
    for (uint64_t i = 0; i < 6; i++) board_publish_sample(&b, &(struct sample){ .time_ns = i });
    CHECK(board_reader_open(&r, b.path) == 0);
    /* another board's index: from the oldest on */
    CHECK(board_read_samples(&r, &index, s, 4) == 4 && s[0].time_ns == 0 && index == 4);
    CHECK(board_read_samples(&r, &index, s, 4) == 2 && s[1].time_ns == 5
          && board_read_samples(&r, &index, s, 4) == 0);
    b.live->samples_written = UINT64_MAX;
    CHECK(board_read_samples(&r, &index, s, 4) == BOARD_DAMAGED);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

/* A file that shrinks under its reader is an error, not SIGBUS. */
static void a_board_shrinks_under_its_reader(void)
{
    struct board b = open_board();
    struct board_reader r;
    struct board_live live;
    struct running_task slot;
    struct sample s;
    uint64_t position = 0, index = 0;
    publish(&b, 1, 100);
    board_publish_sample(&b, &(struct sample){ .time_ns = 1 });
    CHECK(board_reader_open(&r, b.path) == 0);
    CHECK(truncate(b.path, SLOTS_OFFSET) == 0 && board_read_slot(&r, 0, &slot) == BOARD_CUT_SHORT);
    CHECK(board_read_records(&r, &position, frames, sizeof frames, 1) == BOARD_CUT_SHORT
          && board_read_live(&r, &live) == 0);
    CHECK(truncate(b.path, SAMPLES_OFFSET) == 0
          && board_read_samples(&r, &index, &s, 1) == BOARD_CUT_SHORT);
    CHECK(truncate(b.path, LIVE_OFFSET) == 0 && board_read_live(&r, &live) == BOARD_CUT_SHORT);
    close(r.fd);
    CHECK(board_read_live(&r, &live) == BOARD_UNREADABLE && errno == EBADF);
    board_unmap(&b, 1);
    remove_tree(root);
}

static void refused_files(void)
{
    struct board b = open_board();
    char path[256];
    word zero = 0, next = BOARD_VERSION + 1, before = BOARD_VERSION_OLDEST - 1, magic = BOARD_MAGIC;
    int fd = open(b.path, O_RDWR);
    CHECK(pwrite(fd, &next, 8, 8) == 8 && reopen(b.path) == BOARD_VERSION_UNKNOWN);
    CHECK(pwrite(fd, &before, 8, 8) == 8 && reopen(b.path) == BOARD_VERSION_UNKNOWN);
    CHECK(pwrite(fd, &zero, 8, 0) == 8 && reopen(b.path) == BOARD_NOT_READY);
    CHECK(pwrite(fd, "not a board at all", 18, 0) == 18 && reopen(b.path) == BOARD_FOREIGN);
    word one = 1, version = BOARD_VERSION;
    CHECK(pwrite(fd, &magic, 8, 0) == 8 && pwrite(fd, &version, 8, 8) == 8
          && pwrite(fd, &one, 8, 40) == 8 && reopen(b.path) == BOARD_DAMAGED);
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
    struct running_task slot;
    struct board_live live;
    uint64_t position = 0, last = 0;
    root = scratch();
    struct board_settings s = settings(root);
    CHECK(board_create(&b, &s, &step) == 0 && !b.slots);
    CHECK(board_reader_open(&r, b.path) == 0 && board_read_live(&r, &live) == 0
          && live.room_for_tasks == 0);
    CHECK(board_read_slot(&r, 0, &slot) == 0
          && board_read_records(&r, &position, frames, sizeof frames, 9) == 0);
    CHECK(board_grow(&b, &step) == 0);
    publish(&b, 1, 100);
    CHECK(drain(&r, &position, &last) == 1 && last == 1);
    CHECK(board_read_live(&r, &live) == 0 && live.room_for_tasks == 1);
    board_reader_close(&r);

    word nonsense = 7; /* neither 0 nor 1 */
    int fd = open(b.path, O_RDWR);
    CHECK(pwrite(fd, &nonsense, 8, LIVE_OFFSET + offsetof(struct board_live, room_for_tasks)) == 8
          && reopen(b.path) == BOARD_DAMAGED);
    close(fd);
    board_unmap(&b, 1);
    remove_tree(root);
}

/* Random bytes in every part of a good board: no crash, no hang, no torn text. */
static void mutations(void)
{
    struct board b = open_board();
    static struct sample samples[256];
    struct running_task slot;
    struct board_live live;
    unsigned seed = 1;
    for (uint64_t seq = 1; seq <= 20000; seq++) publish(&b, seq, seq % 600);
    static struct texts texts;
    static struct totals totals;
    static struct texts_index table;
    static struct totals_index totals_table;
    texts_open(&texts, &table, b.texts, &b.live->texts_end);
    totals_open(&totals, &totals_table, b.totals, b.journal, &b.live->totals_used);
    for (int i = 0; i < 100; i++) {
        struct record r = { .task = { .seq = (word)i + 1, .state = TASK_OK } };
        char name[16];
        r.texts[TEXT_name] =
            (struct text){ name, (uint64_t)snprintf(name, sizeof name, "name %d", i % 7) };
        r.numbers[TEXT_name] = texts_intern(&texts, TEXT_name, r.texts[TEXT_name]);
        r.numbers[TEXT_operation] = ABSENT;
        totals_add(&totals, &r);
    }
    int fd = open(b.path, O_RDWR);
    char *base = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
         *good = malloc(BOARD_BYTES);
    CHECK(base != MAP_FAILED);
    close(fd);
    memcpy(good, base, BOARD_BYTES);
    for (int round = 0; round < 3000; round++) {
        const struct {
            uint64_t from, bytes;
        } parts[] = { { 0, 256 },
                      { 0, SLOTS_OFFSET },
                      { SLOTS_OFFSET, 8192 },
                      { 0, BOARD_BYTES },
                      { TEXTS_OFFSET, 200 },
                      { TOTALS_OFFSET, 3 * TOTAL_BYTES },
                      { LIVE_OFFSET, sizeof(struct board_live) },
                      { RECORDS_OFFSET, 4096 } };
        for (int i = 0; i < 1 + round % 20; i++) {
            uint64_t at =
                parts[round % 8].from + (uint64_t)rand_r(&seed) * 8191 % parts[round % 8].bytes;
            base[at] = (char)rand_r(&seed);
        }
        struct board_reader r;
        if (board_reader_open(&r, b.path) == 0) {
            uint64_t position = round % 2 ? 0 : (uint64_t)rand_r(&seed),
                     index = (uint64_t)rand_r(&seed);
            int calls = 0;
            board_read_live(&r, &live);
            for (uint64_t i = 0; i < 4; i++) board_read_slot(&r, i, &slot);
            int64_t bytes;
            while (calls < 5000
                   && (bytes = board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX))
                          > 0) {
                static struct record found;
                for (uint64_t at = 0; at < (uint64_t)bytes;
                     at += frame_valid_bytes(&r.layout, frames + at, (uint64_t)bytes - at))
                    frame_unpack(&r.layout, frames + at, &found);
                calls++;
            }
            uint64_t heap = 0;
            while (calls < 5000 && board_read_texts(&r, &heap, frames, sizeof frames) > 0) calls++;
            static struct total total;
            for (uint64_t i = 0; i < 3; i++) board_read_total(&r, i, &total);
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
    uint64_t position = 0;
    for (uint64_t seq = 1; seq <= 40000; seq++) publish(&b, seq, 100);
    CHECK(board_reader_open(&r, b.path) == 0);
    b.live->records_head += RECORDS_BYTES << 20;
    CHECK(board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX) == BOARD_DAMAGED);
    b.live->records_head -= RECORDS_BYTES << 20;
    position = 0;
    /* in the middle: positions beyond the head, or inside a frame */
    *(word *)(b.records + b.live->records_tail % RECORDS_BYTES) = FRAME_PAD;
    int calls = 0;
    while (board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX) > 0 && calls < 1000)
        calls++;
    CHECK(calls < 1000);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
}

int main(void)
{
    RUN(names_and_texts);
    RUN(a_board_with_other_fields);
    RUN(running_tasks);
    RUN(facts_and_devices);
    RUN(records_in_pieces);
    RUN(texts_that_somebody_changed);
    RUN(samples_that_make_no_sense);
    RUN(refused_files);
    RUN(a_board_grows_under_its_reader);
    RUN(a_board_shrinks_under_its_reader);
    RUN(mutations);
    RUN(a_head_beyond_the_ring_is_not_followed);
    return failures;
}
