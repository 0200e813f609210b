// Allocate and free through Arrow's default pool, as Arrow's own code does: a virtual call each.
#include <arrow/memory_pool.h>
#include <ctime>

static double now()
{
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

// Nanoseconds of CPU for a pair; below 0 if an allocation failed.
extern "C" double arrow_pairs(unsigned count, int64_t size)
{
    arrow::MemoryPool *pool = arrow::default_memory_pool();
    double begin = now();
    for (unsigned i = 0; i < count; i++) {
        uint8_t *block;
        if (!pool->Allocate(size, &block).ok()) return -1;
        pool->Free(block, size);
    }
    return (now() - begin) / count;
}
