#include "board_legacy.h"

#include <errno.h>
#include <string.h>

#include "board_read.h"

/* clang-format off */
#define LEGACY_HEADER(X)                                                        \
    X(magic) X(version) X(file_bytes)                                           \
    X(live_offset) X(devices_offset) X(device_bytes) X(device_count)            \
    X(slots_offset) X(slot_bytes) X(slot_count)                                 \
    X(records_offset) X(records_bytes) X(samples_offset) X(sample_count)        \
    X(pid) X(pid_namespace) X(start_ticks) X(start_ns) X(epoch_ns) X(period_ns) \
    X(rss_before_bytes) X(rss_error_bytes) X(limit_bytes)

#define LEGACY_TASK(X)                                                                        \
    X(serial) X(seq) X(parent) X(thread) X(state) X(attribution) X(worker)                    \
    X(start_ns) X(duration_ns) X(rss_before_bytes) X(rss_peak_bytes) X(rss_source) X(overlap) \
    X(alloc_peak_bytes) X(alloc_end_bytes) X(alloc_count) X(gc_freed_bytes)                   \
    X(pinned_peak_bytes) X(pinned_end_bytes) X(input_bytes) X(inputs_omitted) X(output_bytes) \
    X(name_len) X(key_len) X(inputs_len) X(output_len) X(gpu_len) X(oom_len)
/* clang-format on */

#define LEGACY_LIVE                                                                                \
    "live state end_ns exec_ns boundary window_boundary window_peak_bytes rss_bytes rss_max_bytes" \
    " rss_source running tasks_begun records_head records_tail records_written samples_written"    \
    " heartbeat_ns sampler_period_ns samples_late sampler_cpu_ns own_bytes resets reset_gaps"      \
    " tasks_dropped ends_unmatched ends_elsewhere ends_missing alloc_state unowned_bytes"          \
    " untracked_bytes dask_hooks gpu_hook gpu_unfollowed gpu_ooms pinned_bytes pinned_peak_bytes"  \
    " nvml_state files_reopened children_unprobed"

/* clang-format off */
#define LEGACY_LISTS                                                                      \
    "\nslot turn alloc_serial alloc_live_bytes alloc_peak_bytes alloc_count gpu_serial"   \
    "\ntask" LEGACY_TASK(NAMED)                                                           \
    "\ntask_device device live_bytes peak_bytes pool_used_bytes pool_total_bytes"         \
    "\ndevice present live_bytes peak_bytes alloc_count pool_used_bytes pool_total_bytes" \
    " pool_limit_bytes unseen_bytes total_bytes used_bytes used_max_bytes process_bytes"  \
    " process_max_bytes utilisation_percent read_ns rmm_bytes rmm_peak_bytes\n"
/* clang-format on */

#define WORD_FIELD(name)       word name;
#define TEXT_FIELD(name, size) char name[size];
struct legacy_header {
    LEGACY_HEADER(WORD_FIELD) word check;
    HEADER_TEXTS(TEXT_FIELD)
};
struct legacy_task {
    LEGACY_TASK(WORD_FIELD)
};

#define LEGACY_TEXT_MOST (3504 + 2048)
struct legacy_frame {
    word frame_bytes, check;
    struct legacy_task task;
    char text[LEGACY_TEXT_MOST];
};

const char *legacy_layout(uint64_t version)
{
    return version < 5 ? "frames fixed\n" LEGACY_LIVE LEGACY_LISTS
                       : "frames fixed\n" LEGACY_LIVE " headroom_bytes room_for_tasks" LEGACY_LISTS;
}

int legacy_read_header(const struct board_reader *r, struct board_header *h)
{
    struct legacy_header found;
    int e = board_read_at(r, &found, sizeof found, 0);
    if (e < 0) return e;
    const size_t texts = offsetof(struct legacy_header, check) + sizeof(word);
    word check = board_checksum((const word *)&found,
                                offsetof(struct legacy_header, check) / sizeof(word), 0);
    check = board_checksum((const word *)((const char *)&found + texts),
                           (sizeof found - texts) / sizeof(word), check);
    if (check != found.check) return BOARD_DAMAGED;
    memset(h, 0, sizeof *h);
#define COPY(name) h->name = found.name;
    LEGACY_HEADER(COPY)
#define COPY_TEXT(name, size) memcpy(h->name, found.name, size);
    HEADER_TEXTS(COPY_TEXT)
    return 0;
}

static int texts_fit(const struct legacy_task *t, uint64_t bytes)
{
    const word lengths[] = { t->name_len,   t->key_len, t->inputs_len,
                             t->output_len, t->gpu_len, t->oom_len };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] > bytes) return 0; /* each one, because the sum may overflow */
        sum += lengths[i];
    }
    return sum <= bytes;
}

uint64_t legacy_frame_valid_bytes(const char *frame, uint64_t available)
{
    const struct legacy_frame *f = (const struct legacy_frame *)frame;
    const uint64_t least = offsetof(struct legacy_frame, text);
    if (available < least) return 0;
    const uint64_t bytes = f->frame_bytes;
    if (bytes % 8 || bytes < least || bytes > sizeof *f || bytes > available) return 0;
    word check = board_checksum((const word *)&f->task, sizeof f->task / sizeof(word), bytes);
    check = board_checksum((const word *)f->text, (bytes - least) / sizeof(word), check);
    return check == f->check && texts_fit(&f->task, bytes - least) ? bytes : 0;
}

static struct text next_text(const char **at, uint64_t len)
{
    struct text found = { *at, len };
    *at += len;
    return found;
}

int legacy_frame_unpack(const struct layout *l, const char *frame, struct record *r)
{
    const struct legacy_frame *f = (const struct legacy_frame *)frame;
    const struct legacy_task *t = &f->task;
    const char *at = f->text;
    if (l->lists[LAYOUT_TASK].count != sizeof *t / sizeof(word)) return -EINVAL;
    layout_copy(l, LAYOUT_TASK, (const word *)t, (word *)&r->task, sizeof r->task / sizeof(word));
    r->texts[TEXT_name] = next_text(&at, t->name_len);
    r->texts[TEXT_key_rest] = next_text(&at, t->key_len);
    r->texts[TEXT_inputs] = next_text(&at, t->inputs_len);
    r->texts[TEXT_output] = next_text(&at, t->output_len);
    r->gpu_json = next_text(&at, t->gpu_len);
    r->oom_json = next_text(&at, t->oom_len);
    return 0;
}

void legacy_slot_lengths(const word *task, struct slot_fields *slot)
{
    const struct legacy_task *t = (const struct legacy_task *)task;
    slot->name_len = t->name_len;
    slot->key_len = t->key_len;
    slot->inputs_len = t->inputs_len;
}
