/* Pools of a library that stands for Arrow's (lib_pools.c), compared with arithmetic. The real one
 * is in tests/integration/test_arrow.py. */
#include "check.h"
#include "accounts.h"
#include "alloc.h"
#include "arrow_pool.h"
#include "owners.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define REFUSED 1000000007
#define KIB     INT64_C(1024)
#define MIB     (KIB * KIB)

struct pool {
    const uintptr_t *table;
};

static struct pool *system_pool, *mapping_pool;
static char path[512];

typedef void **allocate_function(void **, struct pool *, int64_t, int64_t, uint8_t **);
typedef void **reallocate_function(void **, struct pool *, int64_t, int64_t, int64_t, uint8_t **);
typedef void pool_free_function(struct pool *, uint8_t *, int64_t, int64_t);

/* Calls as C++ makes them: the function stands in the table, the Status is returned in memory. */
static uintptr_t function_of(struct pool *pool, int index)
{
    return pointer_load_acquire(&pool->table)[index];
}

static int pool_allocate(struct pool *pool, int64_t size, uint8_t **out)
{
    void *status = &status;
    allocate_function *function = (allocate_function *)function_of(pool, 2);
    CHECK(function(&status, pool, size, 64, out) == &status);
    return status == NULL;
}

static int pool_reallocate(struct pool *pool, int64_t old_size, int64_t size, uint8_t **block)
{
    void *status = &status;
    reallocate_function *function = (reallocate_function *)function_of(pool, 3);
    CHECK(function(&status, pool, old_size, size, 64, block) == &status);
    return status == NULL;
}

static void pool_free(struct pool *pool, uint8_t *block, int64_t size)
{
    ((pool_free_function *)function_of(pool, 4))(pool, block, size, 64);
}

static uint64_t serial;

static void begin(void) { accounts_task_begin(lineage_handle(0, ++serial), NOBODY); }
static uint64_t live(void) { return accounts_live_now(lineage_handle(0, serial)); }

static struct account_figures end(void)
{
    struct account_figures f;
    accounts_task_end(lineage_handle(0, serial), 0, &f);
    return f;
}

/* The sanitizers replace malloc: there the accounts are opened without the hooks. */
static void start(void)
{
    lineage_open(NULL);
    if (!SANITIZED) CHECK(alloc_start(ALLOC_LARGE_DEFAULT) == 0);
    CHECK(alloc_start_accounting() == 0);
}

static void stop(void)
{
    alloc_stop(0);
    accounts_close();
}

static void not_a_library_of_arrow(void)
{
    CHECK(arrow_pool_find("/nowhere/lib.so") == -ENOENT);
    CHECK(arrow_pool_wrap() == -ENOENT);
    arrow_pool_unwrap();
}

static void trial_sees_what_the_pool_was_called_with(void)
{
    struct arrow_trial seen;
    uint8_t *block;
    const uintptr_t *before = system_pool->table;
    start();
    begin();
    arrow_pool_trial_begin();
    CHECK(system_pool->table != before && system_pool->table[5] == 42);
    CHECK(pool_allocate(system_pool, 70 * KIB, &block));
    /* with malloc's hooks in place, too, a block counts once */
    CHECK(live() == 70 * KIB);
    CHECK(pool_reallocate(system_pool, 70 * KIB, 100 * KIB, &block) && live() == 100 * KIB);
    pool_free(system_pool, block, 100 * KIB);
    CHECK(live() == 0);
    arrow_pool_trial_end(&seen);
    CHECK(seen.allocated_bytes == 70 * KIB && seen.old_bytes == 70 * KIB
          && seen.new_bytes == 100 * KIB && seen.freed_bytes == 100 * KIB);
    CHECK(system_pool->table == before);
    end();
    stop();
}

static void blocks_are_counted_once(void)
{
    uint8_t *a, *b;
    start();
    CHECK(arrow_pool_wrap() == 0);
    begin();
    /* the library maps each block, and the mapping is not counted beside the block */
    CHECK(pool_allocate(mapping_pool, 10 * MIB + 1, &a) && live() == 10 * MIB + 1);
    CHECK(pool_allocate(mapping_pool, 100, &b) && live() == 10 * MIB + 101);
    CHECK(pool_reallocate(mapping_pool, 10 * MIB + 1, 12 * MIB, &a) && live() == 12 * MIB + 100);
    pool_free(mapping_pool, b, 100);
    pool_free(mapping_pool, a, 12 * MIB);
    CHECK(live() == 0);
    if (!SANITIZED) { /* mappings of other objects are */
        void *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(live() == (uint64_t)MIB);
        munmap(p, MIB);
    }
    struct account_figures f = end();
    CHECK(f.live_bytes == 0 && f.peak_bytes == 12 * MIB + 100);
    arrow_pool_unwrap();
    stop();
}

static void failures_and_empty_blocks_change_nothing(void)
{
    uint8_t *block, *same, *empty, *small;
    start();
    CHECK(arrow_pool_wrap() == 0);
    begin();
    CHECK(!pool_allocate(mapping_pool, REFUSED, &block) && live() == 0);
    CHECK(pool_allocate(mapping_pool, 0, &empty) && live() == 0);
    pool_free(mapping_pool, empty, 0);
    CHECK(pool_allocate(mapping_pool, MIB, &block));
    same = block;
    errno = 7;
    CHECK(!pool_reallocate(mapping_pool, MIB, REFUSED, &block) && block == same);
    CHECK(errno == 7 && live() == (uint64_t)MIB);
    CHECK(pool_allocate(mapping_pool, 64, &small));
    CHECK(!pool_reallocate(mapping_pool, 64, REFUSED, &small) && live() == MIB + 64);
    pool_free(mapping_pool, small, 64);
    CHECK(pool_reallocate(mapping_pool, MIB, 0, &block) && live() == 0);
    CHECK(pool_reallocate(mapping_pool, 0, MIB, &block) && live() == (uint64_t)MIB);
    pool_free(mapping_pool, block, MIB);
    CHECK(end().live_bytes == 0);
    arrow_pool_unwrap();
    stop();
}

static void stopped_and_started_again(void)
{
    uint8_t *block;
    const uintptr_t *before = mapping_pool->table;
    start();
    CHECK(arrow_pool_wrap() == 0);
    const uintptr_t *wrapped = mapping_pool->table;
    CHECK(wrapped != before && wrapped[-1] == before[-1] && wrapped[5] == 42);
    CHECK(pool_allocate(mapping_pool, MIB, &block));
    stop();
    arrow_pool_unwrap();
    CHECK(mapping_pool->table == before);
    pool_free(mapping_pool, block, MIB);
    start();
    CHECK(arrow_pool_find(path) == 0 && arrow_pool_wrap() == 0 && mapping_pool->table == wrapped);
    begin();
    CHECK(pool_allocate(mapping_pool, 2 * MIB, &block) && live() == 2 * (uint64_t)MIB);
    pool_free(mapping_pool, block, 2 * MIB);
    CHECK(end().live_bytes == 0);
    /* another tool has put its own table there: it stays */
    mapping_pool->table = before - 1;
    arrow_pool_unwrap();
    CHECK(mapping_pool->table == before - 1);
    mapping_pool->table = before;
    stop();
}

static void a_forked_child_keeps_the_table(void)
{
    uint8_t *block;
    start();
    CHECK(arrow_pool_wrap() == 0);
    CHECK(pool_allocate(mapping_pool, MIB, &block));
    alloc_fork_lock();
    pid_t child = fork();
    if (child == 0) {
        alloc_reset_in_child();
        lineage_reset_in_child();
        pool_free(mapping_pool, block, MIB); /* before its own start */
        start();
        CHECK(arrow_pool_find(path) == 0 && arrow_pool_wrap() == 0);
        begin();
        CHECK(pool_allocate(mapping_pool, 3 * MIB, &block) && live() == 3 * (uint64_t)MIB);
        pool_free(mapping_pool, block, 3 * MIB);
        CHECK(end().live_bytes == 0);
        _exit(failures ? 1 : 0);
    }
    alloc_fork_unlock();
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pool_free(mapping_pool, block, MIB);
    arrow_pool_unwrap();
    stop();
}

static word ended;

static void *use_pool(void *unused)
{
    uint8_t *block;
    (void)unused;
    for (int i = 0; i < 20000; i++) {
        CHECK(pool_allocate(mapping_pool, 8 * KIB, &block));
        block[0] = 1;
        CHECK(pool_reallocate(mapping_pool, 8 * KIB, 16 * KIB, &block));
        pool_free(mapping_pool, block, 16 * KIB);
    }
    add_relaxed(&ended, 1);
    return NULL;
}

/* A call may begin in the wrapper and end after the pool is unwrapped. */
static void wrapped_and_unwrapped_beside_calls(void)
{
    pthread_t threads[2];
    start();
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, use_pool, NULL) == 0);
    do {
        CHECK(arrow_pool_wrap() == 0);
        arrow_pool_unwrap();
    } while (load_relaxed(&ended) < 2);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    stop();
}

int main(void)
{
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    char *last = n > 0 ? strrchr(path, '/') : NULL;
    if (last) strcpy(last, "/lib_pools.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    struct pool *(*function)(void);
    *(void **)&function = dlsym(library, "_ZN5arrow18system_memory_poolEv");
    system_pool = function();
    *(void **)&function = dlsym(library, "_ZN5arrow19default_memory_poolEv");
    mapping_pool = function();
#ifndef __x86_64__
    CHECK(arrow_pool_find(path) == -ENOTSUP);
    skip_all = "pools are wrapped on x86-64 only";
#else
    RUN(not_a_library_of_arrow);
    CHECK(arrow_pool_find(path) == 0);
#endif
    RUN(trial_sees_what_the_pool_was_called_with);
    RUN(blocks_are_counted_once);
    RUN(failures_and_empty_blocks_change_nothing);
    RUN(stopped_and_started_again);
    RUN(a_forked_child_keeps_the_table);
    RUN(wrapped_and_unwrapped_beside_calls);
    return failures;
}
