/* Stands for libarrow in test_arrow_pool.c: three pools as C++ lays them out on x86-64, under the
 * names that C++ gives to Arrow's functions. The system pool uses malloc, the mimalloc pool maps
 * each block, and there is no jemalloc pool. A call for LIBRARY_REFUSED bytes fails. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LIBRARY_REFUSED 1000000007

struct object {
    const uintptr_t *table;
    int maps;
};
struct status {
    const void *failure;
};

static const char failure[] = "out of memory";
static uint8_t nothing[64]; /* the address of all blocks of 0 bytes */

static uint8_t *take(const struct object *object, int64_t size)
{
    if (size == 0) return nothing;
    return object->maps ? mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                        : malloc((size_t)size);
}

static void give(struct object *object, uint8_t *block, int64_t size, int64_t alignment)
{
    (void)alignment;
    if (size == 0) return;
    if (object->maps)
        munmap(block, (size_t)size);
    else
        free(block);
}

static struct status *allocate(struct status *status, struct object *object, int64_t size,
                               int64_t alignment, uint8_t **out)
{
    (void)alignment;
    status->failure = size == LIBRARY_REFUSED ? failure : NULL;
    if (!status->failure) *out = take(object, size);
    return status;
}

static struct status *reallocate(struct status *status, struct object *object, int64_t old_size,
                                 int64_t new_size, int64_t alignment, uint8_t **block)
{
    status->failure = new_size == LIBRARY_REFUSED ? failure : NULL;
    if (status->failure) return status;
    uint8_t *fresh = take(object, new_size);
    memcpy(fresh, *block, (size_t)(old_size < new_size ? old_size : new_size));
    give(object, *block, old_size, alignment);
    *block = fresh;
    return status;
}

/* The class: two words that describe it, two destructors, then the functions. */
const uintptr_t _ZTVN5arrow10MemoryPoolE[10];
static uintptr_t table[10];
static struct object system_pool = { .maps = 0 }, mimalloc_pool = { .maps = 1 };

__attribute__((constructor)) static void make_tables(void)
{
    const uintptr_t functions[] = { (uintptr_t)allocate, (uintptr_t)reallocate, (uintptr_t)give };
    memcpy(table + 4, functions, sizeof functions);
    table[7] = 42; /* a function that is not replaced */
    system_pool.table = mimalloc_pool.table = table + 2;
}

struct object *_ZN5arrow18system_memory_poolEv(void);
struct object *_ZN5arrow19default_memory_poolEv(void);
struct status *_ZN5arrow20jemalloc_memory_poolEPPNS_10MemoryPoolE(struct status *,
                                                                  struct object **);
struct status *_ZN5arrow20mimalloc_memory_poolEPPNS_10MemoryPoolE(struct status *,
                                                                  struct object **);

struct object *_ZN5arrow18system_memory_poolEv(void) { return &system_pool; }
struct object *_ZN5arrow19default_memory_poolEv(void) { return &mimalloc_pool; }

struct status *_ZN5arrow20jemalloc_memory_poolEPPNS_10MemoryPoolE(struct status *status,
                                                                  struct object **out)
{
    (void)out;
    status->failure = failure;
    return status;
}

struct status *_ZN5arrow20mimalloc_memory_poolEPPNS_10MemoryPoolE(struct status *status,
                                                                  struct object **out)
{
    *out = &mimalloc_pool;
    status->failure = NULL;
    return status;
}
