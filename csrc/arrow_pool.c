#define _GNU_SOURCE
#include "arrow_pool.h"

#include <errno.h>

#if defined(__x86_64__)
#include <dlfcn.h>
#include <string.h>

#include "alloc.h"
#include "arrow_library.h"
#include "atomics.h"
#include "patch.h"

/* Places of functions in a pool's table. After them come others, whose number depends on the
 * release. */
#define TABLE_ALLOCATE   ARROW_TABLE_FIRST
#define TABLE_REALLOCATE (ARROW_TABLE_FIRST + 1)
#define TABLE_FREE       (ARROW_TABLE_FIRST + 2)
#define TABLE_WORDS_MOST 32

struct object {
    const uintptr_t *table;
};

/* In C++ these return a Status, and its address comes back in the register of a C result. */
typedef struct arrow_status *allocate_function(struct arrow_status *, struct object *, int64_t size,
                                               int64_t alignment, uint8_t **out);
typedef struct arrow_status *reallocate_function(struct arrow_status *, struct object *,
                                                 int64_t old_size, int64_t new_size,
                                                 int64_t alignment, uint8_t **block);
typedef void free_function_of_pool(struct object *, uint8_t *block, int64_t size,
                                   int64_t alignment);

static struct pool {
    struct object *object; /* NULL: the library was built without this pool */
    allocate_function *allocate;
    reallocate_function *reallocate;
    free_function_of_pool *free;
    const uintptr_t *table;           /* the original one */
    uintptr_t copy[TABLE_WORDS_MOST]; /* with the words before the table */
} pools[ARROW_POOL_COUNT];

static struct {
    word allocated_bytes, old_bytes, new_bytes, freed_bytes;
} trial;

static uintptr_t base; /* of libarrow; 0: not found */

/* -- the functions in the copies. A block of 0 bytes has a static address and is none. -- */

/* Not through the object's table: it may be the original one again, in another thread. */
static inline const struct pool *pool_of(const struct object *object)
{
    return &pools[object == pools[ARROW_MIMALLOC].object   ? ARROW_MIMALLOC
                  : object == pools[ARROW_JEMALLOC].object ? ARROW_JEMALLOC
                                                           : ARROW_SYSTEM];
}

static struct arrow_status *allocate(struct arrow_status *status, struct object *object,
                                     int64_t size, int64_t alignment, uint8_t **out)
{
    pool_of(object)->allocate(status, object, size, alignment, out);
    if (!status->failure && size > 0) alloc_add_block(*out, (uint64_t)size);
    return status;
}

static struct arrow_status *reallocate(struct arrow_status *status, struct object *object,
                                       int64_t old_size, int64_t new_size, int64_t alignment,
                                       uint8_t **block)
{
    uint8_t *old = *block;
    struct owned removed = { 0, NOBODY, 0 };
    if (old_size > 0) removed = alloc_remove_block(old, (uint64_t)old_size);
    pool_of(object)->reallocate(status, object, old_size, new_size, alignment, block);
    if (status->failure)
        alloc_restore_block(old, removed);
    else if (new_size > 0)
        alloc_add_block(*block, (uint64_t)new_size);
    return status;
}

static void free_block(struct object *object, uint8_t *block, int64_t size, int64_t alignment)
{
    if (size > 0) alloc_remove_block(block, (uint64_t)size);
    pool_of(object)->free(object, block, size, alignment);
}

/* -- the same for a trial. malloc's hooks have added the block already, at the same address: it is
 * replaced there, and counted once. -- */

static struct arrow_status *try_allocate(struct arrow_status *status, struct object *object,
                                         int64_t size, int64_t alignment, uint8_t **out)
{
    allocate(status, object, size, alignment, out);
    if (!status->failure) store_relaxed(&trial.allocated_bytes, (word)size);
    return status;
}

static struct arrow_status *try_reallocate(struct arrow_status *status, struct object *object,
                                           int64_t old_size, int64_t new_size, int64_t alignment,
                                           uint8_t **block)
{
    reallocate(status, object, old_size, new_size, alignment, block);
    if (!status->failure) {
        store_relaxed(&trial.old_bytes, (word)old_size);
        store_relaxed(&trial.new_bytes, (word)new_size);
    }
    return status;
}

static void try_free(struct object *object, uint8_t *block, int64_t size, int64_t alignment)
{
    free_block(object, block, size, alignment);
    store_relaxed(&trial.freed_bytes, (word)size);
}

/* -- finding -- */

static int find_pool(struct pool *pool, struct object *object, size_t words)
{
    if (!object) return 0;
    const uintptr_t *table = pointer_load_acquire(&object->table);
    for (int i = TABLE_ALLOCATE; i <= TABLE_FREE; i++)
        if (arrow_base_of((const void *)table[i]) != base) return -EINVAL;
    pool->allocate = (allocate_function *)table[TABLE_ALLOCATE];
    pool->reallocate = (reallocate_function *)table[TABLE_REALLOCATE];
    pool->free = (free_function_of_pool *)table[TABLE_FREE];
    pool->table = table;
    uintptr_t *copy = pool->copy + ARROW_TABLE_HEAD;
    memcpy(pool->copy, table - ARROW_TABLE_HEAD, words * sizeof *table);
    const int tries = pool == &pools[ARROW_SYSTEM];
    copy[TABLE_ALLOCATE] = (uintptr_t)(tries ? try_allocate : allocate);
    copy[TABLE_REALLOCATE] = (uintptr_t)(tries ? try_reallocate : reallocate);
    copy[TABLE_FREE] = (uintptr_t)(tries ? try_free : free_block);
    pool->object = object;
    return 0;
}

/* Functions of libarrow by their mangled names. */
typedef struct object *unnamed_pool_function(void);
typedef struct arrow_status *named_pool_function(struct arrow_status *, struct object **out);

static struct object *pool_by_name(void *library, const char *name)
{
    named_pool_function *function = (named_pool_function *)dlsym(library, name);
    struct arrow_status status = { NULL };
    struct object *object = NULL;
    if (function) function(&status, &object);
    /* A failure ("built without") stays allocated: Arrow's function for it is inline. */
    return status.failure ? NULL : object;
}

static int find_in(void *library)
{
    unnamed_pool_function *system =
        (unnamed_pool_function *)dlsym(library, "_ZN5arrow18system_memory_poolEv");
    unnamed_pool_function *standard =
        (unnamed_pool_function *)dlsym(library, "_ZN5arrow19default_memory_poolEv");
    /* all pools have the table of their common base class */
    const size_t words = arrow_table_words(dlsym(library, "_ZTVN5arrow10MemoryPoolE"));
    if (!system || !standard || words <= ARROW_TABLE_HEAD + TABLE_FREE || words > TABLE_WORDS_MOST)
        return -ENOENT;
    base = arrow_base_of((const void *)system);
    if (!base) return -ENOENT;
    struct object *found[ARROW_POOL_COUNT] = {
        [ARROW_SYSTEM] = system(),
        [ARROW_JEMALLOC] =
            pool_by_name(library, "_ZN5arrow20jemalloc_memory_poolEPPNS_10MemoryPoolE"),
        [ARROW_MIMALLOC] =
            pool_by_name(library, "_ZN5arrow20mimalloc_memory_poolEPPNS_10MemoryPoolE"),
    };
    int e = found[ARROW_SYSTEM] ? 0 : -ENOENT, knows_standard = 0;
    for (int i = 0; i < ARROW_POOL_COUNT; i++) {
        if (e == 0) e = find_pool(&pools[i], found[i], words);
        knows_standard |= found[i] == standard();
    }
    return e < 0 ? e : knows_standard ? 0 : -EINVAL;
}

int arrow_pool_find(const char *path)
{
    if (base) return 0;
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    const int e = library ? find_in(library) : -ENOENT;
    if (e < 0) base = 0, memset(pools, 0, sizeof pools);
    if (library) dlclose(library);
    return e;
}

/* -- wrapping -- */

static void wrap(struct pool *pool)
{
    if (pool->object) pointer_store_release(&pool->object->table, pool->copy + ARROW_TABLE_HEAD);
}

/* Unless somebody else has replaced the table since. */
static void unwrap(struct pool *pool)
{
    if (pool->object && pointer_load_acquire(&pool->object->table) == pool->copy + ARROW_TABLE_HEAD)
        pointer_store_release(&pool->object->table, pool->table);
}

void arrow_pool_trial_begin(void)
{
    memset(&trial, 0, sizeof trial);
    wrap(&pools[ARROW_SYSTEM]);
}

void arrow_pool_trial_end(struct arrow_trial *seen)
{
    unwrap(&pools[ARROW_SYSTEM]);
    *seen =
        (struct arrow_trial){ load_relaxed(&trial.allocated_bytes), load_relaxed(&trial.old_bytes),
                              load_relaxed(&trial.new_bytes), load_relaxed(&trial.freed_bytes) };
}

int arrow_pool_wrap(void)
{
    const int e = base ? patch_leave_mappings(base) : -ENOENT;
    for (int i = ARROW_JEMALLOC; e == 0 && i < ARROW_POOL_COUNT; i++) wrap(&pools[i]);
    return e;
}

void arrow_pool_unwrap(void)
{
    for (int i = 0; i < ARROW_POOL_COUNT; i++) unwrap(&pools[i]);
}

#else

int arrow_pool_find(const char *path) { return (void)path, -ENOTSUP; }
void arrow_pool_trial_begin(void) {}
void arrow_pool_trial_end(struct arrow_trial *seen) { *seen = (struct arrow_trial){ 0, 0, 0, 0 }; }
int arrow_pool_wrap(void) { return -ENOTSUP; }
void arrow_pool_unwrap(void) {}

#endif
