#include "frame.h"

#include <errno.h>
#include <string.h>

#include "board_legacy.h"

/* -- packing -- */

static char *write_varint(char *to, uint64_t value)
{
    while (value >= 0x80) {
        *to++ = (char)(value | 0x80);
        value >>= 7;
    }
    *to++ = (char)value;
    return to;
}

static char *write_words(char *to, const word *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(word); i++) to = write_varint(to, from[i] + 1);
    return to;
}

static word checksum_of(const char *frame, uint64_t bytes)
{
    return board_checksum((const word *)frame + 1, bytes / sizeof(word) - 1, bytes) >> 32;
}

uint64_t frame_pack(const struct record *r, char *to)
{
    char *at = write_words(to + sizeof(word), (const word *)&r->task, sizeof r->task);
    for (int i = 0; i < TEXT_COUNT; i++) {
        if (r->numbers[i] != ABSENT) {
            at = write_varint(at, r->numbers[i] << 1 | 1);
            continue;
        }
        at = write_varint(at, r->texts[i].len << 1);
        if (r->texts[i].len) memcpy(at, r->texts[i].at, r->texts[i].len);
        at += r->texts[i].len;
    }
    at = write_varint(at, r->devices_known ? r->device_count + 1 : 0);
    for (uint32_t i = 0; r->devices_known && i < r->device_count; i++)
        at = write_words(at, (const word *)&r->devices[i], sizeof r->devices[i]);
    at = write_varint(at, r->oom.count != 0);
    if (r->oom.count) at = write_words(at, (const word *)&r->oom, sizeof r->oom);
    while ((at - to) % sizeof(word)) *at++ = 0;
    const uint64_t bytes = (uint64_t)(at - to);
    *(word *)to = bytes | checksum_of(to, bytes) << 32;
    return bytes;
}

/* -- unpacking -- */

struct cursor {
    const char *at, *end;
    int bad;
};

static uint64_t read_varint(struct cursor *c)
{
    uint64_t value = 0;
    for (unsigned shift = 0; c->at < c->end && shift < 64; shift += 7) {
        const unsigned char byte = (unsigned char)*c->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    c->bad = 1;
    return 0;
}

static void read_words(struct cursor *c, const struct layout *l, enum layout_list list, word *to,
                       size_t bytes)
{
    word found[LAYOUT_FIELDS_MOST];
    for (uint32_t i = 0; i < l->lists[list].count; i++) found[i] = read_varint(c) - 1;
    layout_copy(l, list, found, to, (uint32_t)(bytes / sizeof(word)));
}

static void read_texts(struct cursor *c, const struct layout *l, struct record *r)
{
    const struct layout_map *map = &l->lists[LAYOUT_TEXT];
    for (uint32_t i = 0; i < map->count && !c->bad; i++) {
        const uint64_t head = read_varint(c), value = head >> 1;
        struct text text = { c->at, 0 };
        if (!(head & 1)) {
            if (value > (uint64_t)(c->end - c->at)) {
                c->bad = 1;
                return;
            }
            text.len = value;
            c->at += value;
        }
        if (map->to[i] < 0) continue;
        r->texts[map->to[i]] = text;
        r->numbers[map->to[i]] = head & 1 ? value : ABSENT;
    }
}

uint64_t frame_valid_bytes(const struct layout *l, const char *frame, uint64_t available)
{
    if (!l->packed) return legacy_frame_valid_bytes(frame, available);
    if (available < sizeof(word)) return 0;
    const word head = *(const word *)frame;
    const uint64_t bytes = (uint32_t)head;
    if (bytes % sizeof(word) || bytes < 2 * sizeof(word) || bytes > FRAME_BYTES_MOST
        || bytes > available)
        return 0;
    return head >> 32 == checksum_of(frame, bytes) ? bytes : 0;
}

static struct cursor cursor_of(const char *frame)
{
    return (struct cursor){ frame + sizeof(word), frame + (uint32_t)*(const word *)frame, 0 };
}

int frame_unpack(const struct layout *l, const char *frame, struct record *r)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < TEXT_COUNT; i++) r->numbers[i] = ABSENT;
    if (!l->packed) return legacy_frame_unpack(l, frame, r);
    struct cursor c = cursor_of(frame);
    read_words(&c, l, LAYOUT_TASK, (word *)&r->task, sizeof r->task);
    read_texts(&c, l, r);
    uint64_t devices = c.bad ? 0 : read_varint(&c);
    r->devices_known = devices != 0;
    if (devices > TASK_DEVICES + 1) return -EINVAL;
    r->device_count = devices ? (uint32_t)devices - 1 : 0;
    for (uint32_t i = 0; i < r->device_count; i++)
        read_words(&c, l, LAYOUT_TASK_DEVICE, (word *)&r->devices[i], sizeof r->devices[i]);
    if (read_varint(&c)) read_words(&c, l, LAYOUT_OOM, (word *)&r->oom, sizeof r->oom);
    return c.bad ? -EINVAL : 0;
}
