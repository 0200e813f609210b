#define _GNU_SOURCE
#include "board_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME(name) #name,
#define TEXT_NAME(name, size) #name,
const char *const board_header_names[] = { HEADER_FIELDS(NAME) NULL };
const char *const board_text_names[] = { HEADER_TEXTS(TEXT_NAME) NULL };
const char *const board_live_names[] = { LIVE_FIELDS(NAME) NULL };
const char *const board_task_names[] = { TASK_FIELDS(NAME) NULL };
const char *const board_sample_names[] = { SAMPLE_FIELDS(NAME) NULL };
const char *const board_device_names[] = { DEVICE_FIELDS(NAME) NULL };

const char *board_reader_text(const struct board_reader *r, int index, uint64_t *len)
{
#define TEXT(name, size) { r->header.name, size },
    const struct { const char *at; uint64_t size; } texts[] = { HEADER_TEXTS(TEXT) };
    *len = strnlen(texts[index].at, texts[index].size);
    return texts[index].at;
}

/* Successive preads must be seen in program order. A bare barrier: the copies are private, no race detector needs to know. */
static void in_order(void)
{
#ifdef __aarch64__
    __asm__ volatile("dmb ishld" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static int read_at(const struct board_reader *r, void *to, uint64_t bytes, uint64_t offset)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(r->fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return BOARD_UNREADABLE;
        if (n == 0) return BOARD_CUT_SHORT;
        done += (uint64_t)n;
    }
    in_order();
    return 0;
}

static int read_word(const struct board_reader *r, uint64_t offset, word *value)
{
    return read_at(r, value, sizeof *value, offset);
}

#define LIVE_AT(r, field) ((r)->header.live_offset + offsetof(struct board_live, field))

static int inside(uint64_t file_bytes, uint64_t offset, uint64_t count, uint64_t each)
{
    return offset % 8 == 0 && offset <= file_bytes && each != 0 && count <= (file_bytes - offset) / each;
}

static int header_makes_sense(const struct board_header *h)
{
    return h->slot_bytes == SLOT_BYTES && h->sample_count > 1 && h->records_bytes >= sizeof(struct frame) && h->records_bytes % 8 == 0
        && inside(h->file_bytes, h->live_offset, 1, DEVICES_OFFSET - LIVE_OFFSET)
        && h->device_bytes == DEVICE_BYTES && inside(h->file_bytes, h->devices_offset, h->device_count, h->device_bytes)
        && inside(h->file_bytes, h->slots_offset, h->slot_count, h->slot_bytes)
        && inside(h->file_bytes, h->records_offset, h->records_bytes, 1)
        && inside(h->file_bytes, h->samples_offset, h->sample_count, sizeof(struct sample));
}

/* 1 if the board has slots and records, 0 if not yet. */
static int look_for_room(struct board_reader *r)
{
    word room = 1;
    if (r->has_room) return 1;
    int e = r->header.version >= 5 ? read_word(r, LIVE_AT(r, room_for_tasks), &room) : 0;
    if (e < 0) return e;
    return room > 1 ? BOARD_DAMAGED : (r->has_room = room == 1);
}

static int read_header(struct board_reader *r)
{
    struct board_header *h = &r->header;
    struct stat st;
    if (fstat(r->fd, &st) < 0) return BOARD_UNREADABLE;
    if (!S_ISREG(st.st_mode)) return BOARD_FOREIGN;
    r->inode = st.st_ino;
    int e = read_at(r, h, 2 * sizeof(word), 0);
    if (e < 0) return e == BOARD_CUT_SHORT && st.st_size == 0 ? BOARD_NOT_READY : e;
    if (h->magic == 0) return BOARD_NOT_READY;
    if (h->magic != BOARD_MAGIC) return BOARD_FOREIGN;
    if (h->version < BOARD_VERSION_OLDEST || h->version > BOARD_VERSION) return BOARD_VERSION_UNKNOWN;
    e = read_at(r, h, sizeof *h, 0);
    if (e < 0) return e;
    if (h->check != board_header_check(h) || !header_makes_sense(h)) return BOARD_DAMAGED;
    e = look_for_room(r);
    if (e < 0) return e;
    if (fstat(r->fd, &st) < 0) return BOARD_UNREADABLE; /* again: it may have grown in between */
    return (uint64_t)st.st_size < (r->has_room ? h->file_bytes : h->slots_offset) ? BOARD_CUT_SHORT : 0;
}

int board_reader_open(struct board_reader *r, const char *path)
{
    memset(r, 0, sizeof *r);
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (r->fd < 0) return BOARD_UNREADABLE;
    int e = read_header(r), reason = errno;
    if (e < 0) {
        close(r->fd);
        r->fd = -1;
        errno = reason;
    }
    return e;
}

void board_reader_close(struct board_reader *r)
{
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

int board_read_live(const struct board_reader *r, struct board_live *live)
{
    int e = read_at(r, live, sizeof *live, r->header.live_offset);
    if (r->header.version < 5) { /* what version 4 did not have */
        live->headroom_bytes = ABSENT;
        live->room_for_tasks = 1;
    }
    return e;
}

int board_read_facts(const struct board_reader *r, struct facts *facts)
{
    uint64_t offset = r->header.live_offset + (FACTS_OFFSET - LIVE_OFFSET);
    for (int attempt = 0; attempt < 8; attempt++) {
        word before, after;
        int e = read_word(r, offset, &before);
        if (e == 0) e = read_at(r, facts, sizeof *facts, offset);
        if (e == 0) e = read_word(r, offset, &after);
        if (e < 0) return e;
        if (before % 2 || before != after || facts->turn != before) continue;
        return facts->len <= sizeof facts->text ? 0 : BOARD_DAMAGED;
    }
    facts->len = 0;
    return 0;
}

/* Each length on its own, too: their sum may wrap around. */
static int texts_fit(const struct task_fields *t, uint64_t bytes)
{
    const word lengths[] = { t->name_len, t->key_len, t->inputs_len, t->output_len, t->gpu_len, t->oom_len };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] > bytes) return 0;
        sum += lengths[i];
    }
    return sum <= bytes;
}

int board_read_device(const struct board_reader *r, uint64_t index, struct device *d)
{
    int e = read_at(r, d, sizeof *d, r->header.devices_offset + index * DEVICE_BYTES);
#define END(name, size) d->name[size - 1] = 0;
    DEVICE_TEXTS(END)
#undef END
    return e < 0 ? e : d->fields.present == 1;
}

int board_read_slot(struct board_reader *r, uint64_t index, struct slot *slot)
{
    int room = look_for_room(r);
    if (room <= 0) return room;
    uint64_t offset = r->header.slots_offset + index * SLOT_BYTES;
    for (int attempt = 0; attempt < 8; attempt++) {
        word before, after;
        int e = read_word(r, offset, &before);
        if (e < 0) return e;
        e = read_at(r, slot, sizeof *slot, offset);
        if (e < 0) return e;
        if (before % 2 == 0 && slot->turn == before && slot->task.state == TASK_NONE) return 0;
        e = read_word(r, offset, &after);
        if (e < 0) return e;
        if (before % 2 || before != after || slot->turn != before) continue;
        return slot->task.state == TASK_RUNNING && texts_fit(&slot->task, SLOT_TEXT_BYTES) ? 1 : BOARD_DAMAGED;
    }
    return 0;
}

static int frame_is_whole(const struct frame *f, uint64_t available)
{
    const uint64_t least = offsetof(struct frame, text), bytes = f->frame_bytes;
    if (bytes % 8 || bytes < least || bytes > sizeof *f || bytes > available || f->check != board_frame_check(bytes, &f->task, f->text)) return 0;
    return texts_fit(&f->task, bytes - least);
}

/* Head before tail: the tail that was announced before this head was published holds for it, a later one may have passed it. */
static int read_ends(const struct board_reader *r, uint64_t *tail, uint64_t *head)
{
    for (int attempt = 0; attempt < 8; attempt++) {
        int e = read_word(r, LIVE_AT(r, records_head), head);
        if (e == 0) e = read_word(r, LIVE_AT(r, records_tail), tail);
        if (e < 0) return e;
        if (*tail % 8 == 0 && *head % 8 == 0 && *tail <= *head && *head - *tail <= r->header.records_bytes) return 0;
    }
    return BOARD_DAMAGED; /* a head beyond the ring would be read round and round */
}

int64_t board_read_records(struct board_reader *r, uint64_t *position, char *frames, uint64_t size, uint64_t most)
{
    int room = look_for_room(r);
    if (room <= 0) return room;
    const uint64_t ring = r->header.records_bytes;
    for (int attempt = 0; attempt < 8; attempt++) {
        uint64_t tail, head;
        int e = read_ends(r, &tail, &head);
        if (e < 0) return e;
        if (*position > head || *position % 8) return BOARD_DAMAGED; /* never to be met again: no way back, or there might be no end */
        if (*position < tail) *position = tail;
        uint64_t at = *position % ring, bytes = head - *position;
        if (bytes == 0) return 0;
        if (bytes > ring - at) bytes = ring - at;
        if (bytes > size) bytes = size;
        e = read_at(r, frames, bytes, r->header.records_offset + at);
        if (e < 0) return e;
        e = read_word(r, LIVE_AT(r, records_tail), &tail);
        if (e < 0) return e;
        if (*position < tail) continue; /* overwritten while it was copied */

        uint64_t done = 0, count = 0;
        while (bytes - done >= sizeof(word) && count < most) {
            const struct frame *f = (const struct frame *)(frames + done);
            if (f->frame_bytes == FRAME_PAD) {
                *position += done + (ring - (at + done));
                if (done) return (int64_t)done;
                break;
            }
            if (bytes - done < offsetof(struct frame, text) || !frame_is_whole(f, bytes - done)) {
                if (done) break; /* cut off by `size`, or damaged: the next call will tell */
                return BOARD_DAMAGED;
            }
            done += f->frame_bytes;
            count++;
        }
        if (done) {
            *position += done;
            return (int64_t)done;
        }
        /* Only padding stood here: go on behind it. */
    }
    return 0;
}

int64_t board_read_samples(const struct board_reader *r, uint64_t *index, struct sample *samples, uint64_t most)
{
    const uint64_t ring = r->header.sample_count;
    uint64_t written, after;
    int e = read_word(r, LIVE_AT(r, samples_written), &written);
    if (e < 0) return e;
    if (written >> 62) return BOARD_DAMAGED;
    /* The oldest entry may be in the middle of being overwritten: one fewer is held than the ring has places. */
    uint64_t oldest = written >= ring ? written - ring + 1 : 0;
    if (*index < oldest || *index > written) *index = oldest;
    uint64_t count = written - *index, at = *index % ring;
    if (count > ring - at) count = ring - at;
    if (count > most) count = most;
    if (count == 0) return 0;
    e = read_at(r, samples, count * sizeof *samples, r->header.samples_offset + at * sizeof *samples);
    if (e < 0) return e;
    e = read_word(r, LIVE_AT(r, samples_written), &after);
    if (e < 0) return e;
    oldest = after >= ring ? after - ring + 1 : 0;
    uint64_t lost = oldest > *index ? oldest - *index : 0;
    if (lost >= count) {
        *index = oldest;
        return 0;
    }
    memmove(samples, samples + lost, (count - lost) * sizeof *samples);
    *index += count;
    return (int64_t)(count - lost);
}
