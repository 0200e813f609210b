#define _GNU_SOURCE
#include "owners.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "atomics.h"

#define PLACES     (UINT64_C(1) << 18)
#define WINDOW     32 /* places looked at for one address */
#define INTERVALS  (1 << 15)

static struct {
    word *keys, *bytes, *owners;
    word count;
    pthread_mutex_t mutex;
    struct interval { uintptr_t from, to; uint64_t owner; } *intervals; /* sorted, disjoint */
    uint32_t interval_count;
} table = { .mutex = PTHREAD_MUTEX_INITIALIZER };

int owners_open(void)
{
    const size_t bytes = 3 * PLACES * sizeof(word) + INTERVALS * sizeof(struct interval);
    if (!table.keys) {
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return -errno;
        madvise(p, bytes, MADV_NOHUGEPAGE); /* small and scattered: a huge page would be felt in rss */
        table.intervals = (struct interval *)(p + 3 * PLACES * sizeof(word));
        table.bytes = (word *)p + PLACES;
        table.owners = (word *)p + 2 * PLACES;
        __atomic_store_n(&table.keys, (word *)p, __ATOMIC_RELEASE);
    } else {
        madvise(table.keys, bytes, MADV_DONTNEED); /* zero again; a wrapper still at work finds nothing, which it can bear */
    }
    store_relaxed(&table.count, 0);
    table.interval_count = 0;
    return 0;
}

uint64_t owners_count(void)
{
    int64_t n = (int64_t)load_relaxed(&table.count);
    return n < 0 ? 0 : (uint64_t)n;
}

/* One place per 4 KiB; each GiB is shifted, so that equal strides in different regions do not meet. */
static uint64_t place_of(uintptr_t address) { return ((address >> 12) + (address >> 30) * UINT64_C(40503)) % PLACES; }

enum owners_result owners_insert(uintptr_t address, uint64_t bytes, uint64_t owner, struct owned *stale)
{
    const uint64_t home = place_of(address);
    uint64_t first_empty = WINDOW;
    for (uint64_t i = 0; i < WINDOW; i++) {
        uint64_t at = (home + i) % PLACES;
        word key = load_relaxed(&table.keys[at]);
        if (key == address) {
            *stale = (struct owned){ 1, load_relaxed(&table.owners[at]), load_relaxed(&table.bytes[at]) };
            store_relaxed(&table.bytes[at], bytes);
            store_relaxed(&table.owners[at], owner);
            return OWNERS_REPLACED;
        }
        if (key == 0 && first_empty == WINDOW) first_empty = i;
    }
    for (uint64_t i = first_empty; i < WINDOW; i++) {
        uint64_t at = (home + i) % PLACES;
        word none = 0;
        if (!__atomic_compare_exchange_n(&table.keys[at], &none, address, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
        store_relaxed(&table.bytes[at], bytes);
        store_relaxed(&table.owners[at], owner);
        add_relaxed(&table.count, 1);
        return OWNERS_ADDED;
    }
    return OWNERS_FULL;
}

struct owned owners_remove(uintptr_t address)
{
    struct owned o = { 0, 0, 0 };
    uint64_t at = place_of(address);
    for (int i = 0; i < WINDOW; i++, at = (at + 1) % PLACES) {
        if (load_relaxed(&table.keys[at]) != address) continue;
        o = (struct owned){ 1, load_relaxed(&table.owners[at]), load_relaxed(&table.bytes[at]) };
        store_release(&table.keys[at], 0);
        add_relaxed(&table.count, (word)-1);
        break;
    }
    return o;
}

/* -- mappings ------------------------------------------------------------------------------------------------------------------------------ */

/* First interval that ends behind `address`. */
static uint32_t find(uintptr_t address)
{
    uint32_t low = 0, high = table.interval_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (table.intervals[middle].to <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int insert_at(uint32_t i, struct interval v)
{
    if (table.interval_count == INTERVALS) return 0;
    memmove(&table.intervals[i + 1], &table.intervals[i], (table.interval_count - i) * sizeof v);
    table.intervals[i] = v;
    table.interval_count++;
    return 1;
}

static void cut(uintptr_t from, uintptr_t to, void (*freed)(uint64_t, int64_t))
{
    uint32_t i = find(from);
    while (i < table.interval_count && table.intervals[i].from < to) {
        struct interval *v = &table.intervals[i], old = *v;
        uintptr_t begin = old.from > from ? old.from : from, end = old.to < to ? old.to : to;
        freed(old.owner, (int64_t)(end - begin));
        if (old.from < begin && old.to > end) { /* a hole: two pieces stay */
            v->to = begin;
            insert_at(i + 1, (struct interval){ end, old.to, old.owner }); /* full: the rest is forgotten, its bytes stay charged */
            return;
        }
        if (old.from < begin) v->to = begin, i++;
        else if (old.to > end) v->from = end, i++;
        else {
            memmove(v, v + 1, (table.interval_count - i - 1) * sizeof *v);
            table.interval_count--;
        }
    }
}

enum owners_result owners_map(uintptr_t address, uint64_t bytes, uint64_t owner, void (*freed)(uint64_t, int64_t))
{
    pthread_mutex_lock(&table.mutex);
    cut(address, address + bytes, freed); /* an older mapping there is gone: MAP_FIXED, or its unmapping was not seen */
    int ok = insert_at(find(address), (struct interval){ address, address + bytes, owner });
    pthread_mutex_unlock(&table.mutex);
    return ok ? OWNERS_ADDED : OWNERS_FULL;
}

void owners_unmap(uintptr_t address, uint64_t bytes, void (*freed)(uint64_t owner, int64_t bytes))
{
    pthread_mutex_lock(&table.mutex);
    cut(address, address + bytes, freed);
    pthread_mutex_unlock(&table.mutex);
}

int owners_covers(uintptr_t address)
{
    pthread_mutex_lock(&table.mutex);
    uint32_t i = find(address);
    int covered = i < table.interval_count && table.intervals[i].from <= address;
    pthread_mutex_unlock(&table.mutex);
    return covered;
}

void owners_lock(void) { pthread_mutex_lock(&table.mutex); }
void owners_unlock(void) { pthread_mutex_unlock(&table.mutex); }
void owners_forked(void) { pthread_mutex_init(&table.mutex, NULL); }
