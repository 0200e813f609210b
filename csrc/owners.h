/* The owner table: which task a large block or a mapping belongs to. Any thread, no lock (blocks)
 * or one mutex (mappings), no allocation.
 *
 * Blocks: a hash table of 2^18 places whose pages are touched only where blocks are.
 * An address is inserted by the thread that has just been given it and removed by the one that is
 * about to give it back, so there is never more than one writer for one address. Mappings: a sorted
 * list of intervals, because munmap may take parts.
 */
#ifndef DWSR_OWNERS_H
#define DWSR_OWNERS_H

#include <stdint.h>

#include "handle.h"

#define OWNER_BUCKETS (UINT64_C(1) << 18)
#define OWNER_PROBES  32 /* places looked at for one address */

struct owned {
    int found;
    task_handle owner;
    uint64_t bytes;
};

enum owners_result { OWNERS_ADDED, OWNERS_REPLACED, OWNERS_FULL };

/* 0 or -errno. Again: forgets everything. */
int owners_open(void);
uint64_t owners_resident_bytes(void); /* of the table, with pages of 4 KiB. One thread at a time */
uint64_t owners_count(void);          /* by looking at every place: for tests and doubts */

/* Inline: the two calls that every large block pays. */
struct owner_bucket {
    word key, bytes, owner;
};
extern struct owner_bucket *owners_buckets;

/* One place per 4 KiB; eight neighbours stay together, a cache line or three, and are spread by
 * their common address: dense regions do not meet. */
static inline uint64_t owners_bucket_of(uintptr_t address)
{
    return ((address >> 15) * UINT64_C(0x9e3779b97f4a7c15) >> 49 << 3 | (address >> 12 & 7))
           % OWNER_BUCKETS;
}

/* OWNERS_REPLACED: the address was there, its free was missed; *stale says what was. */
static inline enum owners_result owners_insert(uintptr_t address, uint64_t bytes, task_handle owner,
                                               struct owned *stale)
{
    enum owners_result result = OWNERS_ADDED;
    uint64_t at = owners_bucket_of(address);
    for (int i = 0; i < OWNER_PROBES; i++, at = (at + 1) % OWNER_BUCKETS) {
        struct owner_bucket *p = &owners_buckets[at];
        word key = 0;
        /* no exchange for a place that is taken */
        if (i && load_relaxed(&p->key) != 0 && load_relaxed(&p->key) != address) continue;
        if (!compare_exchange_relaxed(&p->key, &key, address)) {
            if (key != address) continue;
            *stale = (struct owned){ 1, handle_from_word(load_relaxed(&p->owner)),
                                     load_relaxed(&p->bytes) };
            result = OWNERS_REPLACED;
        }
        store_relaxed(&p->bytes, bytes);
        store_relaxed(&p->owner, handle_word(owner));
        return result;
    }
    return OWNERS_FULL;
}

static inline struct owned owners_remove(uintptr_t address)
{
    struct owned o = { 0, NOBODY, 0 };
    uint64_t at = owners_bucket_of(address);
    for (int i = 0; i < OWNER_PROBES; i++, at = (at + 1) % OWNER_BUCKETS) {
        struct owner_bucket *p = &owners_buckets[at];
        if (load_relaxed(&p->key) != address) continue;
        o = (struct owned){ 1, handle_from_word(load_relaxed(&p->owner)), load_relaxed(&p->bytes) };
        store_release(&p->key, 0);
        break;
    }
    return o;
}

/* Mappings; `freed` is called, under the mutex, for each owned piece that was inside the range. */
enum owners_result owners_map(uintptr_t address, uint64_t bytes, task_handle owner,
                              void (*freed)(task_handle owner, int64_t bytes));
void owners_unmap(uintptr_t address, uint64_t bytes,
                  void (*freed)(task_handle owner, int64_t bytes));
/* Whether the address lies in a known mapping, and whose that is. */
int owners_find_mapping(uintptr_t address, task_handle *owner);
void owners_lock(void);
void owners_unlock(void);
void owners_forked(void);

#endif
