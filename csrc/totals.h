/* Exact sums of everything that has ended, by task name: what stays true when the record ring is
 * lapped.
 *
 * The first entry is `other`, for names beyond the most. Histograms have cells of a tenth of an
 * octave, from 2^10 (1 KiB, 1 us) to 2^40, so that a cell's middle is within 5 % of each value in
 * it, and powers of two are boundaries.
 *
 * One thread at a time, under the tasks' mutex. A record is published first and counted here
 * second: a process that is killed in between has a newest record whose seq no entry has reached,
 * and a reader adds it. One that is killed in the middle of a change has the entry as it was in the
 * journal.
 */
#ifndef DWSR_TOTALS_H
#define DWSR_TOTALS_H

#include "frame.h"
#include "texts.h"

#define TOTALS_OTHER 0

#define TOTALS_NAMES 8192

struct totals_index {
    uint16_t entry_of[TEXTS_MOST]; /* by the number of a name; 0: none yet, or other */
    uint32_t others[TOTALS_NAMES]; /* hashes of the names in `other` */
};

struct totals {
    char *entries; /* of the board, TOTAL_BYTES each */
    struct totals_journal *journal;
    word *used; /* for readers */
    uint32_t count, last_entry;
    uint64_t last_name; /* mostly, it is that again */
    struct totals_index *index;
};

void totals_open(struct totals *t, struct totals_index *index, char *entries,
                 struct totals_journal *journal, word *used);
/* A finished task. name: the number of its name, ABSENT if it has none. */
void totals_add(struct totals *t, uint64_t name, const struct record *r);

/* The cell of a value: exposed for tests. */
uint32_t totals_cell(uint64_t value);

/* In a reader's copy of an entry: take back the change that was under way. */
void totals_undo(const struct totals_journal *j, struct total *entry);

#endif
