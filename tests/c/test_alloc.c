/* Accounting through the real GOT of this program, compared with arithmetic. Not under the
 * sanitizers, which replace malloc themselves. */
#include "check.h"
#include "accounts.h"
#include "unowned.h"
#include "alloc.h"
#include "owners.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static void *volatile keep;

/* Not inlined, so that the compiler does not remove pairs of malloc and free. */
__attribute__((noinline)) static void *take(size_t n) { return keep = malloc(n); }

static struct account_figures now(uint32_t slot, uint64_t serial)
{
    struct account_figures f = { 0 };
    CHECK(accounts_task_now(lineage_handle(slot, serial), &f) == 0);
    return f;
}

static struct account_figures end(uint32_t slot, uint64_t serial)
{
    struct account_figures f;
    accounts_task_end(lineage_handle(slot, serial), 0, &f);
    return f;
}

/* Not inlined: for a serial of 0 the compiler would warn about sizes that never occur. */
__attribute__((noinline)) static void begin(uint32_t slot, uint64_t serial)
{
    accounts_task_begin(lineage_handle(slot, serial), NOBODY);
}

/* A task in slot 1, inside the one in slot 0. */
static void begin_inside(uint64_t serial, uint64_t around)
{
    accounts_task_begin(lineage_handle(1, serial), lineage_handle(0, around));
}

static int start(int (*is_python)(void))
{
    lineage_open(is_python);
    return alloc_start(ALLOC_LARGE_DEFAULT) == 0 && alloc_start_accounting() == 0;
}

static int near(uint64_t value, uint64_t truth)
{
    return value + 64 * KIB >= truth && value <= truth + truth / 200 + 64 * KIB;
}

static void large_blocks(void)
{
    begin(0, 1);
    keep = malloc(10 * MIB);
    CHECK(near(now(0, 1).live_bytes, 10 * MIB));
    void *other = calloc(1, 5 * MIB);
    free(keep);
    CHECK(near(now(0, 1).live_bytes, 5 * MIB));
    keep = realloc(other, 8 * MIB);
    CHECK(near(now(0, 1).live_bytes, 8 * MIB) && near(now(0, 1).peak_bytes, 15 * MIB));
    errno = 0;
    /* failed: nothing has changed */
    CHECK(!realloc(keep, SIZE_MAX / 4) && errno == ENOMEM && near(now(0, 1).live_bytes, 8 * MIB));
    free(keep);
    void *aligned;
    CHECK(posix_memalign(&aligned, 4096, 3 * MIB) == 0);
    void *unaligned;
    CHECK(posix_memalign(&unaligned, 3, 8) == EINVAL);
    CHECK(near(now(0, 1).live_bytes, 3 * MIB));
    free(aligned);
    keep = aligned_alloc(64, 1 * MIB), free(keep);
    keep = memalign(64, 1 * MIB), free(keep);
    keep = valloc(1 * MIB), free(keep);
    keep = reallocarray(NULL, 1024, 1024), free(keep);
    struct account_figures f = end(0, 1);
    CHECK(near(f.peak_bytes, 15 * MIB) && f.live_bytes < 64 * KIB && f.count >= 8);
}

static void small_blocks(void)
{
    static void *blocks[20000];
    begin(0, 2);
    for (int i = 0; i < 20000; i++) blocks[i] = malloc(1000);
    uint64_t truth = 20000 * malloc_usable_size(blocks[0]);
    CHECK(near(now(0, 2).live_bytes, truth));
    for (int i = 0; i < 20000; i++) free(blocks[i]);
    struct account_figures f = end(0, 2);
    CHECK(near(f.peak_bytes, truth) && f.live_bytes < 64 * KIB);
}

static void older_memory_does_not_hide_a_tasks_own(void)
{
    static void *older[20000], *own[20000];
    for (int i = 0; i < 20000; i++) older[i] = malloc(1000);
    keep = malloc(50 * MIB);
    begin(0, 3);
    for (int i = 0; i < 20000; i++) free(older[i]);
    free(keep);
    for (int i = 0; i < 20000; i++) own[i] = malloc(1000);
    void *big = take(5 * MIB);
    struct account_figures f = end(0, 3);
    CHECK(near(f.peak_bytes, 20000 * malloc_usable_size(own[0]) + 5 * MIB));
    for (int i = 0; i < 20000; i++) free(own[i]);
    free(big);
}

static void mappings(void)
{
    begin(0, 4);
    char *p = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *reserved = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(near(now(0, 4).live_bytes, 8 * MIB));
    munmap(p + 2 * MIB, 2 * MIB);
    CHECK(near(now(0, 4).live_bytes, 6 * MIB));
    char *q = mremap(p, 2 * MIB, 5 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED && near(now(0, 4).live_bytes, 9 * MIB));
    munmap(q, 5 * MIB);
    munmap(p + 4 * MIB, 4 * MIB);
    munmap(reserved, 64 * MIB);
    CHECK(end(0, 4).live_bytes < 64 * KIB);
}

/* A file in memory through every hooked function: the bytes and errno. */
static void shared_memory(void)
{
    char name[64], path[80];
    snprintf(name, sizeof name, "//dwsr-test-%d", (int)getpid());
    snprintf(path, sizeof path, "/dev/shm/%s", name + 2);
    begin(0, 4);
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 8 * MIB) == 0);
    char *p = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED && now(0, 4).live_bytes == 8 * MIB);
    errno = 0;
    CHECK(shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600) < 0 && errno == EEXIST);
    /* the same file again; a private mapping is as before, not counted */
    int again = open(path, O_RDWR);
    char *q = mmap(NULL, 8 * MIB, PROT_READ, MAP_SHARED, again, 0);
    char *private = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, again, 0);
    CHECK(q != MAP_FAILED && private != MAP_FAILED && now(0, 4).live_bytes == 8 * MIB);
    munmap(private, 8 * MIB);
    munmap(q, 8 * MIB);
    close(again);
    CHECK(ftruncate(fd, 16 * MIB) == 0);
    CHECK((q = mremap(p, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE)) != MAP_FAILED);
    CHECK(now(0, 4).live_bytes == 16 * MIB);
    errno = 0;
    CHECK(mremap(q, 16 * MIB, (size_t)1 << 50, MREMAP_MAYMOVE) == MAP_FAILED && errno);
    CHECK(now(0, 4).live_bytes == 16 * MIB);
    CHECK(shm_unlink(name) == 0 && now(0, 4).live_bytes == 16 * MIB);
    errno = 0;
    CHECK(shm_unlink(name) < 0 && errno == ENOENT);
    /* an anonymous mapping in its place */
    CHECK(mmap(q, 16 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q);
    CHECK(now(0, 4).live_bytes == 16 * MIB);
    munmap(q, 16 * MIB);
    CHECK(now(0, 4).live_bytes == 0);
    close(fd);
    int (*const removes[])(const char *) = { unlink, remove, NULL };
    for (int i = 0; i < 3; i++) {
        fd = i ? creat(path, 0600) : openat(AT_FDCWD, path, O_CREAT | O_RDWR, 0600);
        again = open(path, O_RDWR);
        CHECK(fd >= 0 && again >= 0 && ftruncate(again, MIB) == 0);
        p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        CHECK(p != MAP_FAILED && munmap(p, MIB) == 0 && now(0, 4).live_bytes == MIB);
        CHECK((removes[i] ? removes[i](path) : unlinkat(AT_FDCWD, path, 0)) == 0);
        CHECK(now(0, 4).live_bytes == 0);
        close(fd), close(again);
    }
    fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    again = memfd_create("test", 0);
    CHECK(fd >= 0 && again >= 0);
    p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    q = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    CHECK(p != MAP_FAILED && q != MAP_FAILED && now(0, 4).live_bytes == 2 * MIB);
    munmap(p, MIB);
    munmap(q, MIB);
    CHECK(end(0, 4).live_bytes == 0 && alloc_untracked_bytes() == 0);
    close(fd), close(again);
}

static void nested(void)
{
    begin(0, 5);
    void *a = take(4 * MIB);
    begin_inside(6, 5);
    void *b = take(6 * MIB);
    struct account_figures inner = end(1, 6);
    CHECK(near(inner.peak_bytes, 6 * MIB) && near(inner.live_bytes, 6 * MIB));
    begin(1, 7); /* another task in the inner task's slot */
    end(1, 7);
    free(b); /* passed to the outer one */
    CHECK(near(now(0, 5).live_bytes, 4 * MIB));
    free(a);
    struct account_figures outer = end(0, 5);
    CHECK(near(outer.peak_bytes, 10 * MIB) && outer.live_bytes < 64 * KIB);
}

/* Memory that an inner task left belongs to the outer one, however many tasks follow. */
static void many_inside(void)
{
    begin(0, 1000);
    begin_inside(1001, 1000);
    void *left = take(6 * MIB);
    end(1, 1001);
    for (uint64_t i = 1002; i < 1002 + 70000; i++) {
        begin_inside(i, 1000);
        keep = malloc(8000);
        free(keep);
        end(1, i);
    }
    free(left);
    struct account_figures f = end(0, 1000);
    CHECK(f.live_bytes < 64 * KIB && near(f.peak_bytes, 6 * MIB) && !f.inexact && f.count >= 70001);
}

/* More inner tasks left memory than the table holds: the figures are marked inexact. */
static void too_many_ended_tasks(void)
{
    static void *left[70000];
    begin(0, 200000);
    for (uint64_t i = 0; i < 70000; i++) {
        begin_inside(200001 + i, 200000);
        left[i] = malloc(5000);
        end(1, 200001 + i);
    }
    for (uint64_t i = 0; i < 70000; i++) free(left[i]);
    CHECK(end(0, 200000).inexact);
}

static void reallocarray_once(void)
{
    begin(0, 300000);
    for (int i = 0; i < 10000; i++) keep = reallocarray(NULL, 1, 1000), free(keep);
    struct account_figures f = end(0, 300000);
    CHECK(f.peak_bytes < 64 * KIB && f.count >= 10000 && f.count < 10100);
    errno = 0;
    volatile size_t huge = SIZE_MAX / 2;
    CHECK(!reallocarray(NULL, huge, 3) && errno == ENOMEM);
}

static void *free_it(void *p)
{
    free(p);
    return NULL;
}

static void freed_by_others(void)
{
    pthread_t thread;
    begin(0, 8);
    void *during = take(7 * MIB), *after = take(9 * MIB);
    pthread_create(&thread, NULL, free_it, during);
    pthread_join(thread, NULL);
    CHECK(near(now(0, 8).live_bytes, 9 * MIB));
    CHECK(near(end(0, 8).live_bytes, 9 * MIB));
    begin(0, 9);
    keep = malloc(2 * MIB);
    free(after); /* not this task's */
    CHECK(near(now(0, 9).live_bytes, 2 * MIB));
    free(keep);
    end(0, 9);
}

static pthread_barrier_t gate;

static void *task_of_its_own(void *argument)
{
    uint64_t n = (uint64_t)argument;
    begin((uint32_t)n, 100 + n);
    pthread_barrier_wait(&gate);
    void *volatile p = malloc(n * 10 * MIB);
    pthread_barrier_wait(&gate);
    free(p);
    struct account_figures f = end((uint32_t)n, 100 + n);
    CHECK(near(f.peak_bytes, n * 10 * MIB) && f.live_bytes < 64 * KIB);
    return NULL;
}

static void eight_neighbours(void)
{
    pthread_t threads[8];
    pthread_barrier_init(&gate, NULL, 8);
    for (uint64_t i = 0; i < 8; i++) pthread_create(&threads[i], NULL, task_of_its_own, (void *)i);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
}

/* 20 KB blocks, allocated here and freed by a thread that does not work for the task. The queue is
 * full before the first one is freed. */
static void *queue[500];
static word produced, consumed;

static void *consume(void *unused)
{
    while (load_acquire(&produced) < 500) sched_yield();
    for (uint64_t n = 0; n < 5000; n++) {
        while (load_acquire(&produced) <= n) sched_yield();
        free(queue[n % 500]);
        store_release(&consumed, n + 1);
    }
    return unused;
}

static void middle_sized_blocks_through_a_queue(void)
{
    pthread_t thread;
    produced = consumed = 0;
    pthread_create(&thread, NULL, consume, NULL);
    begin(0, 20);
    for (uint64_t n = 0; n < 5000; n++) {
        while (n >= load_acquire(&consumed) + 500) sched_yield();
        queue[n % 500] = malloc(20000);
        store_release(&produced, n + 1);
    }
    pthread_join(thread, NULL);
    struct account_figures f = end(0, 20);
    printf("     20 KB blocks through a queue: peak %.2f MB of 10.00 true\n",
           (double)f.peak_bytes / 1e6);
    CHECK(near(f.peak_bytes, 500 * 20000) && f.live_bytes < 64 * KIB);
}

/* The owner table is full: blocks below 64 KiB are summed like small ones, also when they are
 * freed; larger ones are counted as untracked. */
static void a_full_table(void)
{
    static void *blocks[500];
    for (uint64_t i = 0; i < OWNER_BUCKETS; i++) {
        word none = 0;
        compare_exchange_relaxed(&owners_buckets[i].key, &none, 1);
    }
    begin(0, 21);
    for (int i = 0; i < 500; i++) blocks[i] = malloc(20000);
    CHECK(near(now(0, 21).live_bytes, 500 * malloc_usable_size(blocks[0]))
          && alloc_untracked_bytes() >= 500 * 20000);
    for (int i = 0; i < 500; i++) free(blocks[i]);
    keep = malloc(MIB);
    free(keep);
    CHECK(end(0, 21).live_bytes < 64 * KIB && alloc_untracked_bytes() >= MIB + 500 * 20000);
    for (uint64_t i = 0; i < OWNER_BUCKETS; i++)
        if (load_relaxed(&owners_buckets[i].key) == 1) store_relaxed(&owners_buckets[i].key, 0);
}

/* Ends out of order: another task uses the outer task's slot while the inner one still runs. */
static void *another_task_in_slot(void *unused)
{
    begin(0, 24);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    CHECK(end(0, 24).peak_bytes < 64 * KIB);
    return unused;
}

static void the_next_task_of_a_slot(void)
{
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    begin(0, 22);
    begin_inside(23, 22);
    end(0, 22);
    pthread_create(&thread, NULL, another_task_in_slot, NULL);
    pthread_barrier_wait(&gate);
    void *p = take(8 * MIB);
    CHECK(near(now(1, 23).live_bytes, 8 * MIB));
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    free(p);
    end(1, 23);
}

static void *start_and_allocate(void *unused)
{
    keep = malloc(6 * MIB);
    return unused;
}

static void threads_started_inside(void)
{
    pthread_t thread;
    begin(0, 30);
    pthread_create(&thread, NULL, start_and_allocate, NULL);
    pthread_join(thread, NULL);
    CHECK(near(now(0, 30).live_bytes, 6 * MIB));
    free(keep);
    end(0, 30);
    pthread_create(&thread, NULL, start_and_allocate, NULL); /* outside: nobody's */
    pthread_join(thread, NULL);
    CHECK(accounts_unowned_bytes() >= 6 * MIB);
    free(keep);
}

static void *small_ones[100][20];

static void *take_a_few(void *row)
{
    for (int i = 0; i < 20; i++) ((void **)row)[i] = malloc(1000);
    if (row == small_ones[99]) pthread_exit(NULL);
    return NULL;
}

/* Each thread ends with less pending than is flushed at a time. */
static void short_threads(void)
{
    pthread_t thread;
    begin(0, 31);
    for (int i = 0; i < 100; i++)
        pthread_create(&thread, NULL, take_a_few, small_ones[i]), pthread_join(thread, NULL);
    CHECK(near(now(0, 31).live_bytes, 2000 * malloc_usable_size(small_ones[0][0])));
    for (int i = 0; i < 2000; i++) free(small_ones[i / 20][i % 20]);
    end(0, 31);
}

static int native(void) { return 0; }

static void native_threads(void)
{
    pthread_t thread;
    alloc_stop(0);
    CHECK(start(native));
    pthread_create(&thread, NULL, start_and_allocate, NULL);
    pthread_join(thread, NULL); /* no task runs: unowned */
    free(keep);
    begin(0, 40);
    lineage_set_running(1, lineage_handle(0, 40));
    pthread_create(&thread, NULL, start_and_allocate, NULL);
    pthread_join(thread, NULL);
    CHECK(near(now(0, 40).live_bytes, 6 * MIB)); /* the only one */
    free(keep);
    lineage_set_running(2, NOBODY);
    pthread_create(&thread, NULL, start_and_allocate, NULL);
    pthread_join(thread, NULL);
    /* one of several: no task's */
    CHECK(now(0, 40).live_bytes < MIB && near((uint64_t)unowned_end_window().native.live, 6 * MIB));
    free(keep);
    end(0, 40);
    alloc_stop(0);
    CHECK(start(NULL));
}

static word busy;

static void *churn(void *unused)
{
    while (load_acquire(&busy)) {
        void *volatile p = malloc(100000), *volatile q = malloc(100);
        free(p);
        free(q);
        p = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(p, 1 << 16);
    }
    return unused;
}

static void start_and_stop_with_busy_threads(void)
{
    pthread_t threads[4];
    store_release(&busy, 1);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, NULL);
    for (int i = 0; i < 1000; i++) {
        alloc_stop(0);
        CHECK(start(NULL) && alloc_check_intact());
    }
    store_release(&busy, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    alloc_stop(0);
    CHECK(!alloc_check_intact() && !accounts_active());
    keep = malloc(MIB);
    free(keep);
}

static int python(void) { return 1; }

/* Stays so until the program ends: the last test. The interpreter is the library, and this program
 * is outside. */
static void native_threads_that_call_python(void)
{
    pthread_t thread;
    alloc_stop(0);
    alloc_find_interpreter((void *)alloc_start);
    CHECK(start(python));
    begin(0, 41);
    lineage_set_running(1, lineage_handle(0, 41));
    pthread_create(&thread, NULL, start_and_allocate, NULL);
    pthread_join(thread, NULL);
    CHECK(near(now(0, 41).live_bytes, 6 * MIB));
    free(keep);
    /* started by one task, and may work for the other */
    lineage_set_running(2, NOBODY);
    pthread_create(&thread, NULL, start_and_allocate, NULL);
    pthread_join(thread, NULL);
    CHECK(now(0, 41).live_bytes < MIB && near((uint64_t)unowned_end_window().native.live, 6 * MIB));
    free(keep);
    end(0, 41);
}

int main(void)
{
    if (SANITIZED)
        skip_all = "the sanitizers hold malloc themselves";
    else
        CHECK(start(NULL));
    RUN(large_blocks);
    RUN(small_blocks);
    RUN(older_memory_does_not_hide_a_tasks_own);
    RUN(mappings);
    RUN(shared_memory);
    RUN(nested);
    RUN(many_inside);
    RUN(too_many_ended_tasks);
    RUN(reallocarray_once);
    RUN(freed_by_others);
    RUN(eight_neighbours);
    RUN(middle_sized_blocks_through_a_queue);
    RUN(a_full_table);
    RUN(the_next_task_of_a_slot);
    RUN(threads_started_inside);
    RUN(short_threads);
    RUN(native_threads);
    RUN(start_and_stop_with_busy_threads);
    RUN(native_threads_that_call_python);
    return failures;
}
