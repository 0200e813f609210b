/* The owner table: which task a large block or a mapping belongs to. Any thread, no lock (blocks) or one mutex (mappings), no allocation.
 *
 * Blocks: a hash table of 2^18 places whose pages are touched only where blocks are; neighbours in memory are neighbours in the table.
 * An address is inserted by the thread that has just been given it and removed by the one that is about to give it back, so there is
 * never more than one writer for one address. Mappings: a sorted list of intervals, because munmap may take parts.
 */
#ifndef DWSR_OWNERS_H
#define DWSR_OWNERS_H

#include <stdint.h>

struct owned { int found; uint64_t owner, bytes; };

enum owners_result { OWNERS_ADDED, OWNERS_REPLACED, OWNERS_FULL };

/* 0 or -errno. Again: forgets everything. */
int owners_open(void);
uint64_t owners_count(void);

/* OWNERS_REPLACED: the address was there, its free was missed; *stale says what was. */
enum owners_result owners_insert(uintptr_t address, uint64_t bytes, uint64_t owner, struct owned *stale);
struct owned owners_remove(uintptr_t address);

/* Mappings; `freed` is called, under the mutex, for each owned piece that was inside the range. */
enum owners_result owners_map(uintptr_t address, uint64_t bytes, uint64_t owner, void (*freed)(uint64_t owner, int64_t bytes));
void owners_unmap(uintptr_t address, uint64_t bytes, void (*freed)(uint64_t owner, int64_t bytes));
/* Whether the address lies in a known mapping. */
int owners_covers(uintptr_t address);
void owners_lock(void);
void owners_unlock(void);
void owners_forked(void);

#endif
