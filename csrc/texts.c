#include "texts.h"

#include <string.h>

void texts_open(struct texts *t, struct texts_index *index, char *heap, word *end)
{
    memset(t, 0, sizeof *t);
    memset(index, 0, sizeof *index);
    t->index = index;
    t->heap = heap;
    t->end = end;
}

uint32_t texts_hash(struct text text)
{
    word h = text.len, last = 0;
    uint64_t i = 0;
    for (; i + sizeof(word) <= text.len; i += sizeof(word)) {
        word w;
        memcpy(&w, text.at + i, sizeof w);
        h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 29;
    }
    if (i < text.len) memcpy(&last, text.at + i, text.len - i); /* an empty text has no address */
    h = (h ^ last) * UINT64_C(0xff51afd7ed558ccd);
    return (uint32_t)(h >> 32) | 1; /* 0 means "none" in seen_once */
}

word texts_header_word(const word *words, uint64_t len)
{
    return len | board_checksum(words, (len + 7) / sizeof(word), len) >> 32 << 32;
}

/* Interns a new text in a free bucket. Returns its number, or ABSENT if there is no space. */
static uint64_t add_text(struct texts *t, struct text text, uint32_t hash, uint32_t bucket)
{
    const uint32_t words = (uint32_t)((text.len + 7) / sizeof(word)),
                   bytes = (1 + words) * (uint32_t)sizeof(word);
    word padded[TEXT_BYTES_MOST / sizeof(word)];
    if (t->count == TEXTS_MOST || t->used + bytes > TEXTS_BYTES) return ABSENT;
    if (words) padded[words - 1] = 0;
    if (text.len) memcpy(padded, text.at, text.len);
    word *to = (word *)(t->heap + t->used);
    store_release(to, texts_header_word(padded, text.len));
    copy_release(to + 1, padded, words);
    t->index->table[bucket].hash = hash;
    t->index->table[bucket].offset = t->used + (uint32_t)sizeof(word);
    t->index->table[bucket].len = (uint32_t)text.len;
    t->index->table[bucket].number = ++t->count;
    t->used += bytes;
    store_release(t->end, t->used);
    return t->count - 1;
}

static int equals_at(const struct texts *t, uint32_t offset, uint32_t len, struct text text)
{
    return len == text.len && (!len || !memcmp(t->heap + offset, text.at, len));
}

static int is_last(const struct texts *t, enum task_text kind, struct text text)
{
    if (!t->last[kind].number || t->last[kind].len != text.len) return 0;
    return !text.len
           || !memcmp(text.len <= TEXT_SHORT ? t->last[kind].text : t->heap + t->last[kind].offset,
                      text.at, text.len);
}

static int recurs(enum task_text kind)
{
    return kind == TEXT_name || kind == TEXT_operation || kind == TEXT_chain;
}

uint64_t texts_intern(struct texts *t, enum task_text kind, struct text text)
{
    if (text.len > TEXT_BYTES_MOST || (text.len == 0 && kind != TEXT_name)) return ABSENT;
    if (is_last(t, kind, text)) return t->last[kind].number - 1;
    const uint32_t hash = texts_hash(text),
                   buckets = sizeof t->index->table / sizeof *t->index->table;
    uint32_t bucket = (hash >> 1) % buckets;
    uint64_t number = ABSENT;
    while (t->index->table[bucket].number) { /* ends: at most half of the buckets are taken */
        if (t->index->table[bucket].hash == hash
            && equals_at(t, t->index->table[bucket].offset, t->index->table[bucket].len, text)) {
            number = t->index->table[bucket].number - 1;
            break;
        }
        bucket = (bucket + 1) % buckets;
    }
    uint32_t *seen_once = &t->index->seen_once[(hash >> 1) % TEXTS_MOST];
    if (number == ABSENT && !recurs(kind) && *seen_once != hash) {
        *seen_once = hash;
        return ABSENT;
    }
    if (number == ABSENT) number = add_text(t, text, hash, bucket);
    if (number == ABSENT) return ABSENT;
    t->last[kind].offset = t->index->table[bucket].offset;
    t->last[kind].len = t->index->table[bucket].len;
    t->last[kind].number = (uint32_t)number + 1;
    if (text.len <= TEXT_SHORT) memcpy(t->last[kind].text, text.at, text.len);
    return number;
}
