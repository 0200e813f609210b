/* Real boards of versions 4 and 5 (tests/data), whole and mutated. tests/unit/test_formats.py
 * compares their contents. */
#include "check.h"
#include "board_legacy.h"
#include "board_read.h"

#include <fcntl.h>
#include <sys/mman.h>

static char frames[1 << 16] __attribute__((aligned(8)));
static char path[256];
static const char *root;

static void unpack(int version)
{
    char command[1024];
    root = scratch();
    snprintf(path, sizeof path, "%s/1-1.board", root);
    snprintf(command, sizeof command,
             "python3 -c \"import lzma, sys; open(sys.argv[2], "
             "'wb').write(lzma.open(sys.argv[1]).read())\""
             " tests/data/format-%d/killed.board.xz %s",
             version, path);
    if (system(command)) abort();
}

static void real_boards(void)
{
    for (int version = 4; version <= 5; version++) {
        struct board_reader r;
        struct board_live live;
        static struct running_task task;
        static struct record found;
        static struct total total;
        uint64_t position = 0, heap = 0, count = 0, running = 0, size;
        int64_t bytes;
        unpack(version);
        CHECK(board_reader_open(&r, path) == 0 && r.header.version == (word)version
              && !r.layout.packed && r.has_room);
        CHECK(board_read_live(&r, &live) == 0 && live.room_for_tasks == 1
              && (live.headroom_bytes == ABSENT) == (version == 4) && live.texts_end == ABSENT);
        CHECK(board_read_texts(&r, &heap, frames, sizeof frames) == 0
              && board_read_total(&r, 0, &total) == 0);
        while ((bytes = board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX)) > 0)
            for (uint64_t at = 0; at < (uint64_t)bytes; at += size) {
                size = frame_valid_bytes(&r.layout, frames + at, (uint64_t)bytes - at);
                CHECK(size && frame_unpack(&r.layout, frames + at, &found) == 0
                      && found.task.seq == ++count && found.task.serial > 0);
                CHECK(found.texts[TEXT_name].len && found.numbers[TEXT_name] == ABSENT
                      && found.task.rss_peak_bytes > 1 << 20);
            }
        CHECK(bytes == 0 && count == live.records_written && count >= 9);
        for (uint64_t i = 0; i < r.header.slot_count; i++) {
            if (board_read_slot(&r, i, &task) != 1) continue;
            CHECK(task.name.len == 6 && !memcmp(task.name.at, "killed", 6) && task.inputs.len > 10);
            running++;
        }
        CHECK(running == 1);
        board_reader_close(&r);
        remove_tree(root);
    }
}

static void mutations(void)
{
    unsigned seed = 1;
    struct stat st;
    unpack(5);
    int fd = open(path, O_RDWR);
    CHECK(fstat(fd, &st) == 0);
    const size_t bytes = (size_t)st.st_size;
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
         *good = malloc(bytes);
    memcpy(good, base, bytes);
    close(fd);
    for (int round = 0; round < 2000; round++) {
        /* slots_offset and records_offset, as version 5 had them */
        const uint64_t *h = (const uint64_t *)good;
        const uint64_t from[] = { 0, 4096, h[7], h[10] }, span[] = { 256, 512, 700, 4000 };
        for (int i = 0; i < 1 + round % 8; i++)
            base[from[round % 4] + (unsigned)rand_r(&seed) % span[round % 4]] = (char)rand_r(&seed);
        struct board_reader r;
        static struct running_task task;
        static struct record found;
        if (board_reader_open(&r, path) == 0) {
            uint64_t position = 0, size;
            int64_t read;
            int calls = 0;
            board_read_slot(&r, 0, &task);
            while (calls++ < 5000
                   && (read = board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX))
                          > 0)
                for (uint64_t at = 0; at < (uint64_t)read; at += size) {
                    size = frame_valid_bytes(&r.layout, frames + at, (uint64_t)read - at);
                    frame_unpack(&r.layout, frames + at, &found);
                }
            CHECK(calls < 5000);
            board_reader_close(&r);
        }
        if (round % 10 == 9) memcpy(base, good, bytes);
    }
    free(good);
    munmap(base, bytes);
    remove_tree(root);
}

int main(void)
{
    RUN(real_boards);
    RUN(mutations);
    return failures;
}
