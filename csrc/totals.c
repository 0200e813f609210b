#include "totals.h"

#include <string.h>

#define CELL_FIRST_BITS 10
#define CELL_OCTAVES    30
#define CELLS_OF_OCTAVE 10
_Static_assert(TOTAL_CELLS == CELL_OCTAVES * CELLS_OF_OCTAVE + 2, "one cell below, one above");

/* For values above 1. An upper bound belongs to its cell, as in Prometheus' histograms. */
static unsigned octave_of(uint64_t value) { return 63 - (unsigned)__builtin_clzll(value - 1); }

uint32_t totals_cell(uint64_t value)
{
    if (value <= UINT64_C(1) << CELL_FIRST_BITS) return 0;
    const unsigned octave = octave_of(value);
    if (octave >= CELL_FIRST_BITS + CELL_OCTAVES) return TOTAL_CELLS - 1;
    const uint64_t part = (value - 1 - (UINT64_C(1) << octave)) * CELLS_OF_OCTAVE >> octave;
    return 1 + (octave - CELL_FIRST_BITS) * CELLS_OF_OCTAVE + (uint32_t)part;
}

static uint32_t bare_cell(uint64_t value)
{
    if (value <= UINT64_C(1) << 20) return 0;
    const uint32_t cell = 1 + (octave_of(value) - 20) / 2;
    return cell < BARE_CELLS ? cell : BARE_CELLS - 1;
}

void totals_open(struct totals *t, struct totals_index *index, char *entries,
                 struct totals_journal *journal, word *used)
{
    memset(t, 0, sizeof *t);
    memset(index, 0, sizeof *index);
    t->index = index;
    t->last_name = t->last_operation = ABSENT;
    t->entries = entries;
    t->journal = journal;
    t->used = used;
    struct total *other = (struct total *)entries;
    store_relaxed(&other->fields.name, ABSENT);
    store_relaxed(&other->fields.operation, ABSENT);
    t->count = TOTALS_OTHER + 1;
    store_release(used, t->count);
}

static struct total *entry_at(const struct totals *t, uint32_t index)
{
    return (struct total *)(t->entries + index * (uint64_t)TOTAL_BYTES);
}

/* The index of the entry of a pair. A new pair gets an entry while there is one left. */
static uint32_t find_or_add_entry(struct totals *t, const struct record *r)
{
    const uint64_t name = r->numbers[TEXT_name], operation = r->numbers[TEXT_operation];
    if (name >= TEXTS_MOST) return TOTALS_OTHER;
    if (operation >= TEXTS_MOST && r->texts[TEXT_operation].len) return TOTALS_OTHER;
    if (name == t->last_name && operation == t->last_operation) return t->last_entry;
    uint16_t *found = t->index->entries;
    /* ends: at most TOTAL_COUNT of the buckets are taken */
    for (uint64_t bucket = name * 31 + operation + 1;; bucket++) {
        found = &t->index->entries[bucket % TOTALS_BUCKETS];
        if (!*found) break;
        const struct total_fields *f = &entry_at(t, *found)->fields;
        if (f->name == name && f->operation == operation) break;
    }
    if (!*found && t->count < TOTAL_COUNT) {
        store_relaxed(&entry_at(t, t->count)->fields.name, name);
        store_relaxed(&entry_at(t, t->count)->fields.operation, operation);
        *found = (uint16_t)t->count++;
        store_release(t->used, t->count);
    }
    t->last_name = name;
    t->last_operation = operation;
    t->last_entry = *found;
    return t->last_entry;
}
_Static_assert(TOTAL_COUNT < TOTALS_BUCKETS / 2, "some buckets stay empty");

/* Adds the hash of a pair in `other`. 1 if the pair is new. known: the number of pairs so far. */
static int add_if_new_name(struct totals *t, const struct record *r, uint64_t known)
{
    const uint32_t hash =
        (texts_hash(r->texts[TEXT_name]) + texts_hash(r->texts[TEXT_operation])) | 1;
    if (known >= TOTALS_NAMES / 4 * 3) return 0; /* the table is full enough: no more are counted */
    uint32_t place = hash % TOTALS_NAMES;
    for (; t->index->others[place]; place = (place + 1) % TOTALS_NAMES)
        if (t->index->others[place] == hash) return 0;
    t->index->others[place] = hash;
    return 1;
}

/* Between the two changes of `turn`. A reader of the seqlock sees none or all of these stores. */
static void add(word *sum, uint64_t value) { store_release(sum, *sum + value); }

static void add_with_max(word *sum, word *most, uint64_t value)
{
    if (value == ABSENT) return;
    add(sum, value);
    if (value > *most) store_release(most, value);
}

/* Adds one task to the sums of its name. */
static void add_task(struct total_fields *f, const struct record *r, uint64_t growth)
{
    const struct task_fields *task = &r->task;
    store_release(&f->last_seq, task->seq);
    add(task->state == TASK_OK          ? &f->ok
        : task->state == TASK_CANCELLED ? &f->cancelled
                                        : &f->error,
        1);
    if (task->attribution == ATTRIBUTION_SHARED) add(&f->shared, 1);
    if (task->rss_source == RSS_SAMPLED) add(&f->sampled, 1);
    if (r->oom.count) add(&f->oom, 1);
    if (task->overlap > f->overlap_max) store_release(&f->overlap_max, task->overlap);
    if (growth != ABSENT) {
        add(&f->growth_count, 1);
        add_with_max(&f->growth_bytes, &f->growth_max_bytes, growth);
        if (task->rss_peak_bytes > f->rss_peak_max_bytes)
            store_release(&f->rss_peak_max_bytes, task->rss_peak_bytes);
    }
    if (task->alloc_peak_bytes != ABSENT) {
        add(&f->alloc_count, 1);
        add_with_max(&f->alloc_bytes, &f->alloc_max_bytes, task->alloc_peak_bytes);
    } else if (growth != ABSENT) {
        add(&f->bare_count, 1);
        add_with_max(&f->bare_bytes, &f->bare_max_bytes, growth);
    }
    add_with_max(&f->input_bytes, &f->input_max_bytes, task->input_bytes);
    add_with_max(&f->output_bytes, &f->output_max_bytes, task->output_bytes);
    add_with_max(&f->duration_ns, &f->duration_max_ns, task->duration_ns);
}

static void add_devices(struct total_device *devices, const struct record *r)
{
    for (uint32_t i = 0; i < r->device_count; i++) {
        const struct task_device *d = &r->devices[i];
        int at = 0;
        while (at < TASK_DEVICES && devices[at].device && devices[at].device != d->device) at++;
        if (at == TASK_DEVICES) continue;
        store_release(&devices[at].device, d->device);
        add_with_max(&devices[at].peak_bytes, &devices[at].peak_max_bytes, d->peak_bytes);
    }
}

/* The cells that one task increments, counted from alloc[0]. */
struct change {
    uint32_t cells[JOURNAL_CELLS], count;
};

#define DEVICE_WORDS (TASK_DEVICES * (sizeof(struct total_device) / sizeof(word)))
#define CELLS_BEFORE(list) \
    ((uint32_t)(offsetof(struct total, list) - offsetof(struct total, alloc)) / 4)

static struct change cells_of(const struct record *r, uint64_t growth)
{
    struct change c = { .count = 0 };
    const uint64_t alloc = r->task.alloc_peak_bytes;
    if (alloc != ABSENT)
        c.cells[c.count++] = CELLS_BEFORE(alloc) + totals_cell(alloc);
    else if (growth != ABSENT)
        c.cells[c.count++] = CELLS_BEFORE(bare) + bare_cell(growth);
    if (growth != ABSENT) c.cells[c.count++] = CELLS_BEFORE(growth) + totals_cell(growth);
    c.cells[c.count++] = CELLS_BEFORE(duration) + totals_cell(r->task.duration_ns);
    return c;
}

/* Two cells of 32 bits share a word, and are stored together. */
static word *cell_word(struct total *entry, uint32_t cell)
{
    return (word *)entry->alloc + cell / 2;
}
_Static_assert(offsetof(struct total, alloc) % sizeof(word) == 0, "cells begin with a word");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the first cell of a word is its low half");

void totals_add(struct totals *t, const struct record *r)
{
    const uint32_t index = find_or_add_entry(t, r);
    struct total *entry = entry_at(t, index);
    struct totals_journal *journal = t->journal;
    const uint64_t before = r->task.rss_before_bytes, peak = r->task.rss_peak_bytes;
    const uint64_t growth = before == ABSENT || peak == ABSENT ? ABSENT
                            : peak > before                    ? peak - before
                                                               : 0;
    const struct change change = cells_of(r, growth);
    const int devices_change = r->device_count != 0;

    copy_release((word *)&journal->fields, (const word *)&entry->fields,
                 sizeof entry->fields / sizeof(word));
    for (uint32_t i = 0; i < JOURNAL_CELLS; i++) {
        store_release(&journal->cell[i], i < change.count ? change.cells[i] + 1 : 0);
        if (i < change.count)
            store_release(&journal->cell_words[i], *cell_word(entry, change.cells[i]));
    }
    if (devices_change)
        copy_release((word *)journal->devices, (const word *)entry->devices, DEVICE_WORDS);
    store_release(&journal->devices_saved, (word)devices_change);

    const word turn = entry->fields.turn;
    store_release(&entry->fields.turn, turn + 1);
    add_task(&entry->fields, r, growth);
    if (index == TOTALS_OTHER && add_if_new_name(t, r, entry->fields.names))
        add(&entry->fields.names, 1);
    if (devices_change) add_devices(entry->devices, r);
    for (uint32_t i = 0; i < change.count; i++) {
        word *cell = cell_word(entry, change.cells[i]);
        const unsigned shift = change.cells[i] % 2 * 32;
        if ((uint32_t)(*cell >> shift) != UINT32_MAX)
            store_release(cell, *cell + (UINT64_C(1) << shift));
    }
    store_release(&entry->fields.turn, turn + 2);
}

void totals_undo(const struct totals_journal *j, struct total *entry)
{
    entry->fields = j->fields;
    if (j->devices_saved) memcpy(entry->devices, j->devices, sizeof entry->devices);
    for (uint32_t i = 0; i < JOURNAL_CELLS; i++) {
        const word cell = j->cell[i] - 1;
        if (cell < 3 * TOTAL_CELLS + BARE_CELLS)
            *cell_word(entry, (uint32_t)cell) = j->cell_words[i];
    }
}
