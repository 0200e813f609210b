/* Totals: exact sums over all ended tasks, by task name. They stay complete when the record ring
 * has overwritten old records.
 *
 * The first entry is `other`, for names beyond TOTAL_COUNT. Histograms have cells of a tenth of an
 * octave from 2^10 (1 KiB, 1 us) to 2^40. So the middle of a cell is within 5 % of each value in
 * the cell, and powers of two are boundaries.
 *
 * Called by tasks.c, one thread at a time, under the tasks' mutex. A record is published first and
 * added here afterwards. If the process is killed in between, the seq of the newest record is in no
 * entry, and a reader adds that record. If the process is killed while an entry changes, the
 * journal holds the entry as it was before.
 */
#ifndef DWSR_TOTALS_H
#define DWSR_TOTALS_H

#include "frame.h"
#include "texts.h"

#define TOTALS_OTHER 0

#define TOTALS_NAMES   8192
#define TOTALS_BUCKETS 1024

struct totals_index {
    uint16_t entries[TOTALS_BUCKETS]; /* by the hash of a pair of name and operation; 0: none */
    uint32_t others[TOTALS_NAMES];    /* hashes of the pairs in `other` */
};

struct totals {
    char *entries; /* on the board, TOTAL_BYTES each */
    struct totals_journal *journal;
    word *used; /* on the board: the number of entries */
    uint32_t count, last_entry;
    uint64_t last_name, last_operation; /* the next task mostly has the same */
    struct totals_index *index;
};

/* Empties the totals of a new board. */
void totals_open(struct totals *t, struct totals_index *index, char *entries,
                 struct totals_journal *journal, word *used);
/* Adds a finished task. Its name and its operation are interned (r->numbers), or it is counted in
 * `other`. */
void totals_add(struct totals *t, const struct record *r);

/* The cell of a value in a histogram: exposed for tests. */
uint32_t totals_cell(uint64_t value);

/* For a reader, in its copy of an entry: undoes the change that was under way. */
void totals_undo(const struct totals_journal *j, struct total *entry);

#endif
