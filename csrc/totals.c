#include "totals.h"

#include <string.h>

#define CELL_FIRST_BITS 10
#define CELL_OCTAVES    30
#define CELLS_OF_OCTAVE 10
_Static_assert(TOTAL_CELLS == CELL_OCTAVES * CELLS_OF_OCTAVE + 2, "one cell below, one above");

/* Upper bounds belong to their cell, as in Prometheus' histograms. */
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

void totals_open(struct totals *t, char *page, word *used)
{
    memset(t, 0, sizeof *t);
    t->page = page;
    t->used = used;
    struct total *other = (struct total *)(page + TOTAL_BYTES);
    store_relaxed(&other->fields.name, ABSENT);
    t->count = TOTALS_OTHER + 1;
    store_release(used, t->count);
}

static struct total *entry_at(const struct totals *t, uint32_t index)
{
    return (struct total *)(t->page + (index + 1) * (uint64_t)TOTAL_BYTES);
}

static uint32_t index_of(struct totals *t, uint64_t name)
{
    if (name >= TEXTS_MOST) return TOTALS_OTHER;
    if (t->entry[name] || t->count == TOTAL_COUNT) return t->entry[name];
    store_relaxed(&entry_at(t, t->count)->fields.name, name);
    t->entry[name] = (uint16_t)t->count++;
    store_release(t->used, t->count);
    return t->entry[name];
}

static void add_most(word *sum, word *most, uint64_t value)
{
    *sum += value;
    if (value > *most) *most = value;
}

static void add_known(word *sum, word *most, uint64_t value)
{
    if (value != ABSENT) add_most(sum, most, value);
}

/* The sums of a name with one task more. */
static void add_task(struct total_fields *f, const struct record *r, uint64_t growth)
{
    const struct task_fields *task = &r->task;
    f->last_seq = task->seq;
    if (task->state == TASK_OK) f->ok++;
    else if (task->state == TASK_CANCELLED) f->cancelled++;
    else f->error++;
    f->shared += task->attribution == ATTRIBUTION_SHARED;
    f->sampled += task->rss_source == RSS_SAMPLED;
    f->oom += r->oom.count != 0;
    if (task->overlap > f->overlap_max) f->overlap_max = task->overlap;
    if (growth != ABSENT) {
        f->growth_count++;
        add_most(&f->growth_bytes, &f->growth_max_bytes, growth);
        if (task->rss_peak_bytes > f->rss_peak_max_bytes) f->rss_peak_max_bytes = task->rss_peak_bytes;
    }
    if (task->alloc_peak_bytes != ABSENT) {
        f->alloc_count++;
        add_most(&f->alloc_bytes, &f->alloc_max_bytes, task->alloc_peak_bytes);
    } else if (growth != ABSENT) {
        f->bare_count++;
        add_most(&f->bare_bytes, &f->bare_max_bytes, growth);
    }
    add_known(&f->input_bytes, &f->input_max_bytes, task->input_bytes);
    add_known(&f->output_bytes, &f->output_max_bytes, task->output_bytes);
    add_most(&f->duration_ns, &f->duration_max_ns, task->duration_ns);
}

static void add_devices(struct total_device *devices, const struct record *r)
{
    for (uint32_t i = 0; i < r->device_count; i++) {
        const struct task_device *d = &r->devices[i];
        int at = 0;
        while (at < TASK_DEVICES && devices[at].device && devices[at].device != d->device) at++;
        if (at == TASK_DEVICES) continue;
        devices[at].device = d->device;
        add_most(&devices[at].peak_bytes, &devices[at].peak_max_bytes, d->peak_bytes);
    }
}

struct change { uint32_t cells[JOURNAL_CELLS], count; };

#define DEVICE_WORDS (TASK_DEVICES * (sizeof(struct total_device) / sizeof(word)))
#define CELLS_BEFORE(list) ((uint32_t)(offsetof(struct total, list) - offsetof(struct total, alloc)) / 4)

static struct change cells_of(const struct record *r, uint64_t growth)
{
    struct change c = { .count = 0 };
    const uint64_t alloc = r->task.alloc_peak_bytes;
    if (alloc != ABSENT) c.cells[c.count++] = CELLS_BEFORE(alloc) + totals_cell(alloc);
    else if (growth != ABSENT) c.cells[c.count++] = CELLS_BEFORE(bare) + bare_cell(growth);
    if (growth != ABSENT) c.cells[c.count++] = CELLS_BEFORE(growth) + totals_cell(growth);
    c.cells[c.count++] = CELLS_BEFORE(duration) + totals_cell(r->task.duration_ns);
    return c;
}

/* Two cells of 32 bits share a word, which is stored as one. */
static word *cell_word(struct total *entry, uint32_t cell) { return (word *)entry->alloc + cell / 2; }
_Static_assert(offsetof(struct total, alloc) % sizeof(word) == 0, "cells begin with a word");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first cell of a word is its low half");

void totals_add(struct totals *t, uint64_t name, const struct record *r)
{
    const uint32_t index = index_of(t, name);
    struct total *entry = entry_at(t, index);
    struct totals_journal *journal = (struct totals_journal *)t->page;
    const uint64_t before = r->task.rss_before_bytes, peak = r->task.rss_peak_bytes;
    const uint64_t growth = before == ABSENT || peak == ABSENT ? ABSENT : peak > before ? peak - before : 0;
    const struct change change = cells_of(r, growth);
    const int devices_change = r->device_count != 0;

    struct total_fields next = entry->fields;
    copy_release((word *)&journal->fields, (const word *)&next, sizeof next / sizeof(word));
    for (uint32_t i = 0; i < JOURNAL_CELLS; i++) {
        store_release(&journal->cell[i], i < change.count ? change.cells[i] + 1 : 0);
        if (i < change.count) store_release(&journal->cell_count[i], *cell_word(entry, change.cells[i]));
    }
    if (devices_change)
        copy_release((word *)journal->devices, (const word *)entry->devices, DEVICE_WORDS);
    store_release(&journal->devices_change, (word)devices_change);

    next.turn += 2;
    add_task(&next, r, growth);
    store_release(&entry->fields.turn, next.turn - 1);
    copy_release((word *)&entry->fields + 1, (const word *)&next + 1, sizeof next / sizeof(word) - 1);
    if (devices_change) {
        struct total_device devices[TASK_DEVICES];
        memcpy(devices, entry->devices, sizeof devices);
        add_devices(devices, r);
        copy_release((word *)entry->devices, (const word *)devices, DEVICE_WORDS);
    }
    for (uint32_t i = 0; i < change.count; i++) {
        word *cell = cell_word(entry, change.cells[i]);
        const unsigned shift = change.cells[i] % 2 * 32;
        if ((uint32_t)(*cell >> shift) != UINT32_MAX) store_release(cell, *cell + (UINT64_C(1) << shift));
    }
    store_release(&entry->fields.turn, next.turn);
}

void totals_undo(const struct totals_journal *j, struct total *entry)
{
    entry->fields = j->fields;
    if (j->devices_change) memcpy(entry->devices, j->devices, sizeof entry->devices);
    for (uint32_t i = 0; i < JOURNAL_CELLS; i++) {
        const word cell = j->cell[i] - 1;
        if (cell < 3 * TOTAL_CELLS + BARE_CELLS) *cell_word(entry, (uint32_t)cell) = j->cell_count[i];
    }
}
