/* Frames: packed and unpacked, with numbers of every size, the longest; bytes that are no frame. */
#include "check.h"
#include "frame.h"

#include <errno.h>

static struct layout l;
static char frame[FRAME_BYTES_MOST] __attribute__((aligned(8)));

static struct record empty_record(void)
{
    struct record r = { .task = { .serial = 1, .seq = 2 } };
    for (int i = 0; i < TEXT_COUNT; i++) r.numbers[i] = ABSENT;
    return r;
}

static int is_same_record(const struct record *a, const struct record *b)
{
    for (int i = 0; i < TEXT_COUNT; i++) {
        if (a->numbers[i] != b->numbers[i]) return 0;
        if (a->numbers[i] != ABSENT) continue;
        if (a->texts[i].len != b->texts[i].len) return 0;
        if (a->texts[i].len && memcmp(a->texts[i].at, b->texts[i].at, a->texts[i].len)) return 0;
    }
    return !memcmp(&a->task, &b->task, sizeof a->task) && a->devices_known == b->devices_known
           && a->device_count == b->device_count
           && !memcmp(a->devices, b->devices, a->device_count * sizeof *a->devices)
           && !memcmp(&a->oom, &b->oom, sizeof a->oom);
}

static int survives_packing(const struct record *r)
{
    struct record found;
    memset(frame, 0x55, sizeof frame);
    uint64_t bytes = frame_pack(r, frame);
    CHECK(bytes % 8 == 0 && bytes <= sizeof frame && frame_valid_bytes(&l, frame, bytes) == bytes
          && !frame_valid_bytes(&l, frame, bytes - 8));
    return frame_unpack(&l, frame, &found) == 0 && is_same_record(r, &found);
}

static void numbers_of_every_size(void)
{
    for (int bits = 0; bits <= 64; bits++) {
        struct record r = empty_record();
        for (uint32_t i = 0; i < sizeof r.task / sizeof(word); i++)
            ((word *)&r.task)[i] = (bits ? UINT64_MAX >> (64 - bits) : 0) - i % 2;
        CHECK(survives_packing(&r));
    }
}

static void texts_and_devices(void)
{
    struct record r = empty_record();
    CHECK(survives_packing(&r));
    r.texts[TEXT_name] = (struct text){ "a name", 6 };
    r.numbers[TEXT_inputs] = 0;
    r.numbers[TEXT_output] = 4095;
    r.devices_known = 1;
    CHECK(survives_packing(&r)); /* devices are known, and none was used */
    r.device_count = TASK_DEVICES;
    for (uint32_t i = 0; i < TASK_DEVICES; i++)
        r.devices[i] = (struct task_device){ i + 1, 2, 3, ABSENT, 5 };
    r.oom = (struct task_oom){ .count = 1, .device = 17, .requested_bytes = ABSENT };
    CHECK(survives_packing(&r));
}

static void a_usual_one_is_short(void)
{
    struct record r = empty_record();
    r.task = (struct task_fields){ .serial = 50000,
                                   .seq = 50000,
                                   .thread = 1234567,
                                   .state = TASK_OK,
                                   .attribution = ATTRIBUTION_EXACT,
                                   .worker = 0,
                                   .start_ns = UINT64_C(4000000000000),
                                   .duration_ns = 2000000,
                                   .rss_before_bytes = 500 << 20,
                                   .rss_peak_bytes = 600 << 20,
                                   .rss_source = 1,
                                   .alloc_peak_bytes = 100 << 20,
                                   .alloc_end_bytes = 50 << 20,
                                   .alloc_count = 40,
                                   .gc_freed_bytes = ABSENT,
                                   .pinned_peak_bytes = ABSENT,
                                   .pinned_end_bytes = ABSENT,
                                   .input_bytes = 50 << 20,
                                   .output_bytes = 50 << 20 };
    r.texts[TEXT_key_rest] = (struct text){ ", 10, 11, 12)", 13 };
    r.numbers[TEXT_name] = r.numbers[TEXT_key_prefix] = r.numbers[TEXT_inputs] =
        r.numbers[TEXT_output] = 300;
    CHECK(survives_packing(&r) && frame_pack(&r, frame) <= 104);
}

static void the_longest_fits(void)
{
    static char text[FRAME_TEXTS_MOST];
    struct record r = empty_record();
    memset(&r.task, 0xfe, sizeof r.task);
    r.devices_known = 1;
    r.device_count = TASK_DEVICES;
    memset(r.devices, 0xfe, sizeof r.devices);
    memset(&r.oom, 0xfe, sizeof r.oom);
    for (int i = 0; i < TEXT_COUNT; i++)
        r.texts[i] = (struct text){ text, FRAME_TEXTS_MOST / TEXT_COUNT };
    CHECK(survives_packing(&r) && frame_pack(&r, frame) > FRAME_BYTES_MOST - 200);
}

static void a_newer_release_has_more_fields(void)
{
    struct layout older;
    const char *text =
        "frames packed\ntask serial seq parent\ntext name key_prefix key_rest inputs output\n"
        "task_device device live_bytes peak_bytes pool_used_bytes pool_total_bytes\noom count "
        "device\n";
    struct record found, r = empty_record();
    CHECK(layout_parse(&older, text, strlen(text)) == 0);
    frame_pack(&r, frame);
    frame_unpack(&older, frame, &found); /* another number of fields: no crash */
    CHECK(found.task.serial == 1 && found.task.seq == 2);
}

static void mutations(void)
{
    unsigned seed = 1;
    struct record r = empty_record(), found;
    r.texts[TEXT_name] = (struct text){ "a name", 6 };
    r.devices_known = 1;
    r.device_count = 2;
    for (int round = 0; round < 100000; round++) {
        uint64_t bytes = frame_pack(&r, frame);
        for (int i = 0; i < 1 + round % 4; i++)
            frame[8 + (unsigned)rand_r(&seed) % (bytes - 8)] = (char)rand_r(&seed);
        const word check = board_checksum((const word *)frame + 1, bytes / 8 - 1, bytes) >> 32;
        if (round % 2) *(word *)frame = bytes | check << 32; /* as if it were whole */
        if (!frame_valid_bytes(&l, frame, bytes)) continue;
        if (frame_unpack(&l, frame, &found) < 0) continue;
        CHECK(found.device_count <= TASK_DEVICES);
        for (int i = 0; i < TEXT_COUNT; i++)
            if (found.texts[i].len)
                CHECK(found.texts[i].at >= frame
                      && found.texts[i].at + found.texts[i].len <= frame + bytes);
    }
    *(word *)frame = 0;
    CHECK(!frame_valid_bytes(&l, frame, sizeof frame));
    *(word *)frame = FRAME_PAD;
    CHECK(!frame_valid_bytes(&l, frame, sizeof frame) && !frame_valid_bytes(&l, frame, 0));
}

int main(void)
{
    CHECK(layout_parse(&l, BOARD_LAYOUT, sizeof BOARD_LAYOUT) == 0);
    RUN(numbers_of_every_size);
    RUN(texts_and_devices);
    RUN(a_usual_one_is_short);
    RUN(the_longest_fits);
    RUN(a_newer_release_has_more_fields);
    RUN(mutations);
    return failures;
}
