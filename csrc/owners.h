/* The owner table: which task a large block or a mapping belongs to. Called by alloc.c from any
 * thread. Nothing here allocates; only mappings take a mutex.
 *
 * Blocks are in a hash table of 2^18 buckets with linear probing; only pages with blocks are ever
 * touched. A thread inserts an address that it has just been given and removes an address that it
 * is about to give back. So an address never has more than one writer at a time. Mappings are in a
 * sorted list of intervals, because munmap may remove a part of a mapping.
 */
#ifndef DWSR_OWNERS_H
#define DWSR_OWNERS_H

#include <stdint.h>

#include "handle.h"

#define OWNER_BUCKETS (UINT64_C(1) << 18)
#define OWNER_PROBES  32 /* buckets that one address may be in */

struct owned {
    int found;
    task_handle owner;
    uint64_t bytes;
};

enum owners_result { OWNERS_ADDED, OWNERS_REPLACED, OWNERS_FULL };

/* 0 or -errno. A second call empties the table. */
int owners_open(void);
/* Resident bytes of the table, with pages of 4 KiB. One thread at a time. */
uint64_t owners_resident_bytes(void);
/* Blocks in the table, counted bucket by bucket: for tests. */
uint64_t owners_count(void);

/* -- blocks; inline: called for every large block -- */

struct owner_bucket {
    word key, bytes, owner;
};
extern struct owner_bucket *owners_buckets;

/* One bucket per 4 KiB of addresses. The buckets of eight neighbouring pages are adjacent, on three
 * cache lines. Groups of eight are spread by a hash, so that dense regions do not collide. */
static inline uint64_t owners_bucket_of(uintptr_t address)
{
    return ((address >> 15) * UINT64_C(0x9e3779b97f4a7c15) >> 49 << 3 | (address >> 12 & 7))
           % OWNER_BUCKETS;
}

/* OWNERS_REPLACED: the address was in the table because its free was missed; *stale is the old
 * entry. OWNERS_FULL: all buckets for this address are taken. */
static inline enum owners_result owners_insert(uintptr_t address, uint64_t bytes, task_handle owner,
                                               struct owned *stale)
{
    enum owners_result result = OWNERS_ADDED;
    uint64_t at = owners_bucket_of(address);
    for (int i = 0; i < OWNER_PROBES; i++, at = (at + 1) % OWNER_BUCKETS) {
        struct owner_bucket *p = &owners_buckets[at];
        word key = 0;
        /* a load is cheaper than an exchange that fails */
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

/* `found` is 0 if the address is not in the table. */
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

/* -- mappings: `freed` is called, under the mutex, for each known piece inside the range -- */

enum owners_result owners_map(uintptr_t address, uint64_t bytes, task_handle owner,
                              void (*freed)(task_handle owner, int64_t bytes));
void owners_unmap(uintptr_t address, uint64_t bytes,
                  void (*freed)(task_handle owner, int64_t bytes));
/* 1 if the address lies in a known mapping, and its owner. */
int owners_find_mapping(uintptr_t address, task_handle *owner);

/* Around fork: lock before, unlock in the parent, forked in the child. */
void owners_lock(void);
void owners_unlock(void);
void owners_reset_in_child(void);

#endif
