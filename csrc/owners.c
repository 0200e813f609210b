#define _GNU_SOURCE
#include "owners.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define INTERVALS (1 << 15)
#define PAGE      4096

struct owner_bucket *owners_buckets;

static struct {
    pthread_mutex_t mutex;
    struct interval {
        uintptr_t from, to;
        task_handle owner;
    } *intervals; /* sorted, disjoint */
    uint32_t interval_count;
} table = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static const size_t table_bytes =
    OWNER_BUCKETS * sizeof(struct owner_bucket) + INTERVALS * sizeof(struct interval);

int owners_open(void)
{
    int e = 0;
    pthread_mutex_lock(&table.mutex); /* a wrapper of the last start may still use the table */
    if (!owners_buckets) {
        char *p = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            e = -errno;
            goto out;
        }
        /* entries are scattered: huge pages would add to the resident set */
        madvise(p, table_bytes, MADV_NOHUGEPAGE);
        table.intervals = (struct interval *)(p + OWNER_BUCKETS * sizeof(struct owner_bucket));
        pointer_store_release(&owners_buckets, (struct owner_bucket *)p);
    } else {
        madvise(owners_buckets, table_bytes, MADV_DONTNEED); /* zero again */
    }
    table.interval_count = 0;
out:
    pthread_mutex_unlock(&table.mutex);
    return e;
}

uint64_t owners_resident_bytes(void)
{
    static unsigned char pages[OWNER_BUCKETS * sizeof(struct owner_bucket) / PAGE
                               + INTERVALS * sizeof(struct interval) / PAGE + 2];
    uint64_t count = 0;
    if (!owners_buckets || mincore(owners_buckets, table_bytes, pages) < 0) return 0;
    for (size_t i = 0; i < (table_bytes + PAGE - 1) / PAGE; i++) count += pages[i] & 1;
    return count * PAGE;
}

uint64_t owners_count(void)
{
    uint64_t count = 0;
    for (uint64_t i = 0; owners_buckets && i < OWNER_BUCKETS; i++)
        count += load_relaxed(&owners_buckets[i].key) != 0;
    return count;
}

/* -- mappings -- */

/* Index of the first interval that ends after the address. */
static uint32_t first_ending_after(uintptr_t address)
{
    uint32_t low = 0, high = table.interval_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (table.intervals[middle].to <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert_interval(uint32_t i, struct interval v)
{
    if (table.interval_count == INTERVALS) return 0;
    memmove(&table.intervals[i + 1], &table.intervals[i], (table.interval_count - i) * sizeof v);
    table.intervals[i] = v;
    table.interval_count++;
    return 1;
}

static void remove_range(uintptr_t from, uintptr_t to, void (*freed)(task_handle, int64_t))
{
    uint32_t i = first_ending_after(from);
    while (i < table.interval_count && table.intervals[i].from < to) {
        struct interval *v = &table.intervals[i], old = *v;
        uintptr_t begin = old.from > from ? old.from : from, end = old.to < to ? old.to : to;
        freed(old.owner, (int64_t)(end - begin));
        if (old.from < begin && old.to > end) { /* a hole: two pieces remain */
            v->to = begin;
            /* if the list is full, the second piece is forgotten and its bytes stay charged */
            insert_interval(i + 1, (struct interval){ end, old.to, old.owner });
            return;
        }
        if (old.from < begin)
            v->to = begin, i++;
        else if (old.to > end)
            v->from = end, i++;
        else {
            memmove(v, v + 1, (table.interval_count - i - 1) * sizeof *v);
            table.interval_count--;
        }
    }
}

enum owners_result owners_map(uintptr_t address, uint64_t size, task_handle owner,
                              void (*freed)(task_handle, int64_t))
{
    pthread_mutex_lock(&table.mutex);
    /* an older mapping there no longer exists: MAP_FIXED, or its munmap was not seen */
    remove_range(address, address + size, freed);
    int ok = insert_interval(first_ending_after(address),
                             (struct interval){ address, address + size, owner });
    pthread_mutex_unlock(&table.mutex);
    return ok ? OWNERS_ADDED : OWNERS_FULL;
}

void owners_unmap(uintptr_t address, uint64_t size, void (*freed)(task_handle owner, int64_t bytes))
{
    pthread_mutex_lock(&table.mutex);
    remove_range(address, address + size, freed);
    pthread_mutex_unlock(&table.mutex);
}

int owners_find_mapping(uintptr_t address, task_handle *owner)
{
    pthread_mutex_lock(&table.mutex);
    uint32_t i = first_ending_after(address);
    int covered = i < table.interval_count && table.intervals[i].from <= address;
    if (covered) *owner = table.intervals[i].owner;
    pthread_mutex_unlock(&table.mutex);
    return covered;
}

void owners_lock(void) { pthread_mutex_lock(&table.mutex); }
void owners_unlock(void) { pthread_mutex_unlock(&table.mutex); }
void owners_reset_in_child(void) { pthread_mutex_init(&table.mutex, NULL); }
