#define _GNU_SOURCE
#include "board_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board_legacy.h"
#include "texts.h"
#include "totals.h"

#define ATTEMPTS       8
#define TOTAL_ATTEMPTS 64 /* an entry may change every few microseconds */

#define NAME(name)            #name,
#define TEXT_NAME(name, size) #name,
const char *const board_header_names[] = { HEADER_FIELDS(NAME) NULL };
const char *const board_header_text_names[] = { HEADER_TEXTS(TEXT_NAME) NULL };
const char *const board_sample_names[] = { SAMPLE_FIELDS(NAME) NULL };

const char *board_reader_header_text(const struct board_reader *r, int index, uint64_t *len)
{
#define TEXT(name, size) { r->header.name, size },
    const struct {
        const char *at;
        uint64_t size;
    } texts[] = { HEADER_TEXTS(TEXT) };
    *len = strnlen(texts[index].at, texts[index].size);
    return texts[index].at;
}

int board_read_at(const struct board_reader *r, void *to, uint64_t bytes, uint64_t offset)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(r->fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return BOARD_UNREADABLE;
        if (n == 0) return BOARD_CUT_SHORT;
        done += (uint64_t)n;
    }
    file_read_fence_acquire();
    return 0;
}

static int read_word(const struct board_reader *r, uint64_t offset, word *value)
{
    return board_read_at(r, value, sizeof *value, offset);
}

/* The offset in the file of a live field, from its offset in struct board_live; UINT64_MAX: the
 * file lacks the field. */
static uint64_t live_at(const struct board_reader *r, size_t offset)
{
    const struct layout_map *map = &r->layout.lists[LAYOUT_LIVE];
    for (uint32_t i = 0; i < map->count; i++)
        if (map->to[i] == (int)(offset / sizeof(word)))
            return r->header.live_offset + i * sizeof(word);
    return UINT64_MAX;
}

static int read_live_word(const struct board_reader *r, size_t offset, word *value)
{
    const uint64_t at = live_at(r, offset);
    return at == UINT64_MAX ? BOARD_DAMAGED : read_word(r, at, value);
}
#define READ_LIVE(r, field, value) read_live_word(r, offsetof(struct board_live, field), value)

/* -- the header -- */

static int range_fits(uint64_t file_bytes, uint64_t offset, uint64_t count, uint64_t each)
{
    return offset % 8 == 0 && offset <= file_bytes && each != 0
           && count <= (file_bytes - offset) / each;
}

static uint64_t list_bytes(const struct board_reader *r, enum layout_list list)
{
    return r->layout.lists[list].count * sizeof(word);
}

static int header_is_consistent(const struct board_reader *r)
{
    const struct board_header *h = &r->header;
    const uint64_t slot_words = list_bytes(r, LAYOUT_SLOT) + list_bytes(r, LAYOUT_TASK)
                                + TASK_DEVICES * list_bytes(r, LAYOUT_TASK_DEVICE);
    return h->slot_bytes == SLOT_BYTES && slot_words < SLOT_BYTES && h->sample_count > 1
           && h->records_bytes >= 2 * FRAME_BYTES_MOST && h->records_bytes % 8 == 0
           && list_bytes(r, LAYOUT_LIVE) <= JOURNAL_OFFSET - LIVE_OFFSET
           && range_fits(h->file_bytes, h->live_offset, 1, DEVICES_OFFSET - LIVE_OFFSET)
           && h->device_bytes == DEVICE_BYTES && list_bytes(r, LAYOUT_DEVICE) + 192 <= DEVICE_BYTES
           && range_fits(h->file_bytes, h->devices_offset, h->device_count, h->device_bytes)
           && range_fits(h->file_bytes, h->slots_offset, h->slot_count, h->slot_bytes)
           && range_fits(h->file_bytes, h->records_offset, h->records_bytes, 1)
           && range_fits(h->file_bytes, h->samples_offset, h->sample_count, sizeof(struct sample));
}

static int texts_and_totals_are_consistent(const struct board_reader *r)
{
    const struct board_header *h = &r->header;
    const uint64_t total =
        list_bytes(r, LAYOUT_TOTAL) + TASK_DEVICES * list_bytes(r, LAYOUT_TOTAL_DEVICE);
    return range_fits(h->file_bytes, h->texts_offset, h->texts_bytes, 1)
           && h->total_bytes == TOTAL_BYTES
           && total + (3 * TOTAL_CELLS + BARE_CELLS) * sizeof(uint32_t) <= TOTAL_BYTES
           && JOURNAL_OFFSET + offsetof(struct totals_journal, fields) + total <= FACTS_OFFSET
           && range_fits(h->file_bytes, h->totals_offset, h->total_count, h->total_bytes);
}

/* 1 if the board has room for tasks, 0 if not yet, or an error. */
static int check_room(struct board_reader *r)
{
    word room = 1;
    if (r->has_room) return 1;
    int e = r->header.version >= 5 ? READ_LIVE(r, room_for_tasks, &room) : 0;
    if (e < 0) return e;
    return room > 1 ? BOARD_DAMAGED : (r->has_room = room == 1);
}

/* Header and layout, by the version that was read. */
static int read_known_version(struct board_reader *r)
{
    struct board_header *h = &r->header;
    if (h->version < 6) {
        int e = legacy_read_header(r, h);
        if (e < 0) return e;
        strcpy(r->layout_text, legacy_layout(h->version));
        return layout_parse(&r->layout, r->layout_text, LAYOUT_BYTES) == 0
                       && header_is_consistent(r)
                   ? 0
                   : BOARD_DAMAGED;
    }
    int e = board_read_at(r, h, sizeof *h, 0);
    if (e < 0) return e;
    if (h->layout_bytes != LAYOUT_BYTES || h->layout_offset % 8) return BOARD_DAMAGED;
    word layout[LAYOUT_BYTES / sizeof(word)];
    e = board_read_at(r, layout, sizeof layout, h->layout_offset);
    if (e < 0) return e;
    memcpy(r->layout_text, layout, LAYOUT_BYTES);
    r->layout_text[LAYOUT_BYTES - 1] = 0;
    if (h->check != board_header_checksum(h, layout)
        || layout_parse(&r->layout, r->layout_text, LAYOUT_BYTES) < 0)
        return BOARD_DAMAGED;
    return header_is_consistent(r) && texts_and_totals_are_consistent(r) ? 0 : BOARD_DAMAGED;
}

static int read_header(struct board_reader *r)
{
    struct board_header *h = &r->header;
    struct stat st;
    if (fstat(r->fd, &st) < 0) return BOARD_UNREADABLE;
    if (!S_ISREG(st.st_mode)) return BOARD_FOREIGN;
    r->inode = st.st_ino;
    int e = board_read_at(r, h, 2 * sizeof(word), 0);
    if (e < 0) return e == BOARD_CUT_SHORT && st.st_size == 0 ? BOARD_NOT_READY : e;
    if (h->magic == 0) return BOARD_NOT_READY;
    if (h->magic != BOARD_MAGIC) return BOARD_FOREIGN;
    if (h->version < BOARD_VERSION_OLDEST || h->version > BOARD_VERSION)
        return BOARD_VERSION_UNKNOWN;
    e = read_known_version(r);
    if (e == 0) e = check_room(r);
    if (e < 0) return e;
    if (fstat(r->fd, &st) < 0) return BOARD_UNREADABLE; /* again: the board may have grown */
    return (uint64_t)st.st_size < (r->has_room ? h->file_bytes : h->slots_offset) ? BOARD_CUT_SHORT
                                                                                  : 0;
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

/* -- the present: live fields, facts, devices, running tasks -- */

int board_read_live(const struct board_reader *r, struct board_live *live)
{
    word found[LAYOUT_FIELDS_MOST];
    int e = board_read_at(r, found, list_bytes(r, LAYOUT_LIVE), r->header.live_offset);
    layout_copy(&r->layout, LAYOUT_LIVE, found, (word *)live, sizeof *live / sizeof(word));
    if (r->header.version < 5) live->room_for_tasks = 1;
    return e;
}

int board_read_facts(const struct board_reader *r, struct facts *facts)
{
    uint64_t offset = r->header.live_offset + (FACTS_OFFSET - LIVE_OFFSET);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        word before, after;
        int e = read_word(r, offset, &before);
        if (e == 0) e = board_read_at(r, facts, sizeof *facts, offset);
        if (e == 0) e = read_word(r, offset, &after);
        if (e < 0) return e;
        if (before % 2 || before != after || facts->turn != before) continue;
        return facts->len <= sizeof facts->text ? 0 : BOARD_DAMAGED;
    }
    facts->len = 0;
    return 0;
}

int board_read_device(const struct board_reader *r, uint64_t index, struct device *d)
{
    char found[DEVICE_BYTES] __attribute__((aligned(8)));
    int e = board_read_at(r, found, sizeof found, r->header.devices_offset + index * DEVICE_BYTES);
    if (e < 0) return e;
    layout_copy(&r->layout, LAYOUT_DEVICE, (const word *)found, (word *)&d->fields,
                sizeof d->fields / sizeof(word));
    const char *texts = found + list_bytes(r, LAYOUT_DEVICE);
#define TAKE(name, size) memcpy(d->name, texts, size), d->name[size - 1] = 0, texts += size;
    DEVICE_TEXTS(TAKE)
#undef TAKE
    return d->fields.present == 1;
}

/* The fields and texts of a slot's page, by the file's layout. 0 if the lengths are impossible. */
static int parse_slot(const struct board_reader *r, struct running_task *t)
{
    const struct layout *l = &r->layout;
    const char *at = t->page;
    layout_copy(l, LAYOUT_SLOT, (const word *)at, (word *)&t->slot, sizeof t->slot / sizeof(word));
    at += list_bytes(r, LAYOUT_SLOT);
    for (int i = 0; i < TASK_DEVICES; i++, at += list_bytes(r, LAYOUT_TASK_DEVICE))
        layout_copy(l, LAYOUT_TASK_DEVICE, (const word *)at, (word *)&t->gpu[i],
                    sizeof t->gpu[i] / sizeof(word));
    layout_copy(l, LAYOUT_TASK, (const word *)at, (word *)&t->task, sizeof t->task / sizeof(word));
    if (!l->packed) legacy_slot_lengths((const word *)at, &t->slot);
    at += list_bytes(r, LAYOUT_TASK);
    uint64_t left = (uint64_t)(t->page + SLOT_BYTES - at);
    struct text *texts[] = { &t->name,  &t->key,    &t->inputs,       &t->operation,
                             &t->chain, &t->params, &t->params_values };
    const word lengths[] = { t->slot.name_len,         t->slot.key_len,   t->slot.inputs_len,
                             t->slot.operation_len,    t->slot.chain_len, t->slot.params_len,
                             t->slot.params_values_len };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const word len = lengths[i] == ABSENT ? 0 : lengths[i]; /* a field that the file lacks */
        if (len > left) return 0;
        *texts[i] = (struct text){ at, len };
        at += len;
        left -= len;
    }
    return 1;
}

int board_read_slot(struct board_reader *r, uint64_t index, struct running_task *t)
{
    int room = check_room(r);
    if (room <= 0) return room;
    uint64_t offset = r->header.slots_offset + index * SLOT_BYTES;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        word before, after;
        int e = read_word(r, offset, &before);
        if (e < 0) return e;
        e = board_read_at(r, t->page, sizeof t->page, offset);
        if (e < 0) return e;
        int parsed = parse_slot(r, t);
        if (before % 2 == 0 && t->slot.turn == before && t->task.state == TASK_NONE) return 0;
        e = read_word(r, offset, &after);
        if (e < 0) return e;
        if (before % 2 || before != after || t->slot.turn != before) continue;
        return t->task.state == TASK_RUNNING && parsed ? 1 : BOARD_DAMAGED;
    }
    return 0;
}

/* -- the past: records, texts, totals, samples -- */

/* The head is read before the tail. So the tail is at least the one that belongs to this head; a
 * later tail may be beyond the head, and then both are read again. */
static int read_head_and_tail(const struct board_reader *r, uint64_t *tail, uint64_t *head)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int e = READ_LIVE(r, records_head, head);
        if (e == 0) e = READ_LIVE(r, records_tail, tail);
        if (e < 0) return e;
        if (*tail % 8 == 0 && *head % 8 == 0 && *tail <= *head
            && *head - *tail <= r->header.records_bytes)
            return 0;
    }
    return BOARD_DAMAGED;
}

int64_t board_read_records(struct board_reader *r, uint64_t *position, char *frames, uint64_t size,
                           uint64_t most)
{
    int room = check_room(r);
    if (room <= 0) return room;
    const uint64_t ring = r->header.records_bytes;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint64_t tail, head;
        int e = read_head_and_tail(r, &tail, &head);
        if (e < 0) return e;
        /* not moved back to the head: on a damaged file, callers might then never end */
        if (*position > head || *position % 8) return BOARD_DAMAGED;
        if (*position < tail) *position = tail;
        uint64_t at = *position % ring, bytes = head - *position;
        if (bytes == 0) return 0;
        if (bytes > ring - at) bytes = ring - at;
        if (bytes > size) bytes = size;
        e = board_read_at(r, frames, bytes, r->header.records_offset + at);
        if (e < 0) return e;
        e = READ_LIVE(r, records_tail, &tail);
        if (e < 0) return e;
        if (*position < tail) continue; /* overwritten while it was copied */

        uint64_t done = 0, count = 0;
        while (bytes - done >= sizeof(word) && count < most) {
            if (*(const word *)(frames + done) == FRAME_PAD) {
                *position += done + (ring - (at + done));
                if (done) return (int64_t)done;
                break;
            }
            const uint64_t frame = frame_valid_bytes(&r->layout, frames + done, bytes - done);
            if (!frame) {
                if (done) break; /* cut off by `size`, or damaged: the next call finds out */
                return BOARD_DAMAGED;
            }
            done += frame;
            count++;
        }
        if (done) {
            *position += done;
            return (int64_t)done;
        }
        /* only padding: go on behind it */
    }
    return 0;
}

int64_t board_read_texts(struct board_reader *r, uint64_t *position, char *texts, uint64_t size)
{
    int room = r->header.version < 6 ? 0 : check_room(r);
    word end;
    if (room <= 0) return room;
    int e = READ_LIVE(r, texts_end, &end);
    if (e < 0) return e;
    if (end > r->header.texts_bytes || *position > end || *position % 8) return BOARD_DAMAGED;
    uint64_t bytes = end - *position < size ? end - *position : size, done = 0;
    e = board_read_at(r, texts, bytes, r->header.texts_offset + *position);
    if (e < 0) return e;
    while (bytes - done >= sizeof(word)) {
        const word head = *(const word *)(texts + done), len = (uint32_t)head;
        if (len > TEXT_BYTES_MOST) return BOARD_DAMAGED;
        const uint64_t whole = sizeof(word) + (len + 7) / 8 * 8;
        if (whole > bytes - done) break;
        if (head != texts_header_word((const word *)(texts + done) + 1, len)) return BOARD_DAMAGED;
        done += whole;
    }
    if (!done && bytes) return BOARD_DAMAGED; /* texts_end is inside a text */
    *position += done;
    return (int64_t)done;
}

static int devices_are_consistent(const struct total *t)
{
    for (int i = 0; i < TASK_DEVICES; i++) {
        const struct total_device *d = &t->devices[i];
        if (d->device > DEVICE_COUNT
            || (d->device && (d->peak_bytes == ABSENT || d->peak_max_bytes == ABSENT)))
            return 0;
    }
    return 1;
}

/* Fields and devices of an entry, or of the journal, by the file's layout. */
static void copy_total(const struct board_reader *r, const char *from, struct total *to)
{
    layout_copy(&r->layout, LAYOUT_TOTAL, (const word *)from, (word *)&to->fields,
                sizeof to->fields / sizeof(word));
    from += list_bytes(r, LAYOUT_TOTAL);
    for (int i = 0; i < TASK_DEVICES; i++, from += list_bytes(r, LAYOUT_TOTAL_DEVICE))
        layout_copy(&r->layout, LAYOUT_TOTAL_DEVICE, (const word *)from, (word *)&to->devices[i],
                    sizeof to->devices[i] / sizeof(word));
}

int board_read_total(struct board_reader *r, uint64_t index, struct total *total)
{
    int room = r->header.version < 6 ? 0 : check_room(r);
    word used, after;
    if (room <= 0) return room;
    int e = READ_LIVE(r, totals_used, &used);
    if (e < 0) return e;
    if (used > r->header.total_count) return BOARD_DAMAGED;
    if (index >= used) return 0;
    const uint64_t offset = r->header.totals_offset + index * TOTAL_BYTES;
    const uint64_t cells =
        list_bytes(r, LAYOUT_TOTAL) + TASK_DEVICES * list_bytes(r, LAYOUT_TOTAL_DEVICE);
    char page[TOTAL_BYTES] __attribute__((aligned(8))),
        journal[FACTS_OFFSET - JOURNAL_OFFSET] __attribute__((aligned(8)));
    for (int attempt = 0; attempt < TOTAL_ATTEMPTS; attempt++) {
        e = board_read_at(r, page, sizeof page, offset);
        const int changing = *(const word *)page % 2;
        if (e == 0 && changing)
            e = board_read_at(r, journal, sizeof journal,
                              r->header.live_offset + (JOURNAL_OFFSET - LIVE_OFFSET));
        if (e == 0) e = read_word(r, offset, &after);
        if (e < 0) return e;
        if (*(const word *)page != after) continue;
        copy_total(r, page, total);
        memcpy(total->alloc, page + cells, (3 * TOTAL_CELLS + BARE_CELLS) * sizeof(uint32_t));
        if (changing) { /* perhaps for ever: the entry as it was before the change */
            struct totals_journal before;
            memcpy(&before, journal, offsetof(struct totals_journal, fields));
            struct total old;
            copy_total(r, journal + offsetof(struct totals_journal, fields), &old);
            before.fields = old.fields;
            memcpy(before.devices, old.devices, sizeof before.devices);
            totals_undo(&before, total);
        }
        return devices_are_consistent(total) ? 1 : BOARD_DAMAGED;
    }
    return 0;
}

int64_t board_read_samples(const struct board_reader *r, uint64_t *index, struct sample *samples,
                           uint64_t most)
{
    const uint64_t ring = r->header.sample_count;
    uint64_t written, after;
    int e = READ_LIVE(r, samples_written, &written);
    if (e < 0) return e;
    if (written >> 62) return BOARD_DAMAGED;
    /* The writer may be overwriting the oldest sample: one fewer than the ring has is valid. */
    uint64_t oldest = written >= ring ? written - ring + 1 : 0;
    if (*index < oldest || *index > written) *index = oldest;
    uint64_t count = written - *index, at = *index % ring;
    if (count > ring - at) count = ring - at;
    if (count > most) count = most;
    if (count == 0) return 0;
    e = board_read_at(r, samples, count * sizeof *samples,
                      r->header.samples_offset + at * sizeof *samples);
    if (e < 0) return e;
    e = READ_LIVE(r, samples_written, &after);
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
