#include "texts.h"

#include <string.h>

void texts_open(struct texts *t, char *heap, word *end)
{
    memset(t, 0, sizeof *t);
    t->heap = heap;
    t->end = end;
}

static uint32_t hash_of(struct text text)
{
    word h = text.len, last = 0;
    uint64_t i = 0;
    for (; i + sizeof(word) <= text.len; i += sizeof(word)) {
        word w;
        memcpy(&w, text.at + i, sizeof w);
        h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 29;
    }
    memcpy(&last, text.at + i, text.len - i);
    h = (h ^ last) * UINT64_C(0xff51afd7ed558ccd);
    return (uint32_t)(h >> 32) | 1; /* 0 is "none met" */
}

static uint64_t keep(struct texts *t, struct text text, uint32_t hash, uint32_t place)
{
    const uint32_t words = (uint32_t)((text.len + 7) / sizeof(word)), bytes = (1 + words) * (uint32_t)sizeof(word);
    word padded[TEXT_BYTES_MOST / sizeof(word)];
    if (t->count == TEXTS_MOST || t->used + bytes > TEXTS_BYTES) return ABSENT;
    padded[words - 1] = 0;
    memcpy(padded, text.at, text.len);
    word *to = (word *)(t->heap + t->used);
    store_release(to, text.len);
    copy_release(to + 1, padded, words);
    t->table[place].hash = hash;
    t->table[place].offset = t->used + (uint32_t)sizeof(word);
    t->table[place].len = (uint32_t)text.len;
    t->table[place].number = ++t->count;
    t->used += bytes;
    store_release(t->end, t->used);
    return t->count - 1;
}

uint64_t texts_number(struct texts *t, struct text text, int at_once)
{
    if (text.len == 0 || text.len > TEXT_BYTES_MOST) return ABSENT;
    const uint32_t hash = hash_of(text), places = sizeof t->table / sizeof *t->table;
    uint32_t place = (hash >> 1) % places;
    for (; t->table[place].number; place = (place + 1) % places) { /* at most half of them are taken */
        if (t->table[place].hash == hash && t->table[place].len == text.len
            && !memcmp(t->heap + t->table[place].offset, text.at, text.len)) return t->table[place].number - 1;
    }
    uint32_t *met = &t->met[(hash >> 1) % TEXTS_MOST];
    if (!at_once && *met != hash) {
        *met = hash;
        return ABSENT;
    }
    return keep(t, text, hash, place);
}
