/* Work for a thread pool of a library that stands for Arrow's (lib_threads.c). The real one is in
 * tests/integration/test_arrow.py. */
#include "check.h"
#include "accounts.h"
#include "alloc.h"
#include "arrow_threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/wait.h>

#define KIB   UINT64_C(1024)
#define SPAWN 7 /* in the table, with its head */

struct hints {
    int64_t words[4];
};
struct pool {
    const uintptr_t *table;
    struct hints last_hints;
};
struct made {
    void *status;
    struct pool *pool;
    void *count;
};
struct work {
    const uintptr_t *table;
    void (*run)(void *);
    void *argument;
};

static char path[512];
static uintptr_t *table;
static int *library_drops_work;
static struct made *(*make_pool)(struct made *, int);
static void **(*shut_down)(void **, struct pool *, int);
static word deleted;
static pthread_t python_thread;

static int is_python(void) { return pthread_equal(pthread_self(), python_thread); }

/* -- as C++ does it -- */

typedef void **spawn_function(void **, struct pool *, struct hints, struct work **, void *, void *);

static void work_invoke(struct work *w) { w->run(w->argument); }
static void work_delete(struct work *w)
{
    add_relaxed(&deleted, 1);
    free(w);
}
static const uintptr_t work_table[] = { 0, 0, 0, (uintptr_t)work_delete, (uintptr_t)work_invoke };

static uintptr_t spawn_slot(void) { return pointer_load_acquire(&table[SPAWN]); }

static int spawn(struct pool *pool, void (*run)(void *), void *argument)
{
    struct work *w = malloc(sizeof *w);
    *w = (struct work){ work_table + 2, run, argument };
    void *status = &status, *stop_token[2] = { NULL, NULL }, *stop_callback = NULL;
    spawn_function *function = (spawn_function *)pointer_load_acquire(&pool->table[SPAWN - 2]);
    CHECK(function(&status, pool, (struct hints){ { 1, 2, 3, 4 } }, &w, stop_token, &stop_callback)
          == &status);
    if (w) ((void (*)(struct work *))w->table[1])(w); /* as unique_ptr does */
    return status == NULL;
}

static struct pool *new_pool(void)
{
    struct made made;
    CHECK(make_pool(&made, 1) == &made && !made.status);
    return made.pool;
}

static void end_pool(struct pool *pool)
{
    void *status;
    shut_down(&status, pool, 1);
}

static void delete_pool(struct pool *pool)
{
    end_pool(pool);
    free(pool);
}

/* -- tasks -- */

static uint64_t serial;

static task_handle begin(uint32_t slot)
{
    task_handle task = lineage_handle(slot, ++serial);
    accounts_task_begin(task, NOBODY);
    return task;
}

static struct account_figures end(task_handle task)
{
    struct account_figures f;
    accounts_task_end(task, 0, &f);
    return f;
}

static void start(void)
{
    python_thread = pthread_self();
    lineage_open(is_python);
    CHECK(alloc_start_accounting() == 0);
}

static void stop(void) { accounts_close(); }

static void note_task(void *task) { *(task_handle *)task = lineage_allocating_task(); }

/* -- */

static void not_a_library_of_arrow(void)
{
    CHECK(arrow_threads_follow("/nowhere/lib.so") == -ENOENT);
    arrow_threads_leave();
}

static void a_trial_that_fails_leaves_the_table(void)
{
    const uintptr_t before = spawn_slot();
    pid_t child = fork(); /* there is one trial in a process */
    if (child == 0) {
        *library_drops_work = 1;
        CHECK(arrow_threads_follow(path) == -EPROTO && spawn_slot() == before);
        *library_drops_work = 0;
        CHECK(arrow_threads_follow(path) == -EPROTO && spawn_slot() == before);
        _exit(failures ? 1 : 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int is_writable(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long from, to;
    char line[512], mode[5] = "";
    int found = 0;
    while (!found && maps && fgets(line, sizeof line, maps))
        found = sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 && (uintptr_t)address >= from
                && (uintptr_t)address < to;
    if (maps) fclose(maps);
    CHECK(found);
    return mode[1] == 'w';
}

static void the_table_is_replaced_and_restored(void)
{
    const uintptr_t before = spawn_slot(), next = table[SPAWN + 1];
    const int writable = is_writable(table);
    CHECK(arrow_threads_follow(path) == 0);
    const uintptr_t ours = spawn_slot();
    CHECK(ours != before && table[SPAWN + 1] == next && is_writable(table) == writable);
    CHECK(arrow_threads_follow(path) == 0 && spawn_slot() == ours);
    arrow_threads_leave();
    CHECK(spawn_slot() == before && is_writable(table) == writable);
    arrow_threads_leave();
    CHECK(arrow_threads_follow(path) == 0 && spawn_slot() == ours);
}

static void work_belongs_to_the_task_that_hands_it_over(void)
{
    struct pool *pool = new_pool();
    task_handle nobody = lineage_handle(9, 1), first, second, own;
    start();
    CHECK(spawn(pool, note_task, &nobody));
    task_handle a = begin(0);
    lineage_set_running(2, NOBODY); /* so that threads of no task work for nobody */
    CHECK(spawn(pool, note_task, &first));
    own = lineage_allocating_task();
    end(a);
    task_handle b = begin(0);
    CHECK(spawn(pool, note_task, &second));
    end_pool(pool);
    CHECK(!is_somebody(nobody) && same_task(own, a) && same_task(second, b));
    CHECK(pool->last_hints.words[0] == 1 && pool->last_hints.words[3] == 4);
    end(b);
    stop();
    free(pool);
}

/* The thread has been started by a task, which is not the one that it works for. */
static void a_thread_returns_to_what_it_was(void)
{
    task_handle seen = NOBODY;
    start();
    task_handle a = begin(0);
    lineage_set_running(2, NOBODY);
    struct pool *pool = new_pool();
    CHECK(spawn(pool, note_task, &seen));
    end_pool(pool);
    CHECK(same_task(seen, a));
    end(a);
    /* the same in this thread, which is then a native one */
    python_thread = (pthread_t)0;
    task_handle b = begin(1);
    this_thread.task = NOBODY;
    lineage_inherit(b);
    CHECK(!is_somebody(lineage_task_to_hand_on()));
    const struct lineage_work before = lineage_take_up(b);
    CHECK(same_task(lineage_task_to_hand_on(), b) && same_task(lineage_allocating_task(), b));
    lineage_resume(before);
    CHECK(!is_somebody(lineage_task_to_hand_on()) && same_task(this_thread.works_for, b));
    lineage_inherit(NOBODY);
    end(b);
    stop();
    free(pool);
}

struct chain {
    struct pool *pool;
    task_handle seen[2];
    sem_t done;
};

static void second_link(void *argument)
{
    struct chain *c = argument;
    c->seen[1] = lineage_allocating_task();
    sem_post(&c->done);
}

static void first_link(void *argument)
{
    struct chain *c = argument;
    c->seen[0] = lineage_allocating_task();
    CHECK(spawn(c->pool, second_link, c));
}

static void work_hands_the_task_on(void)
{
    struct chain c = { .pool = new_pool() };
    sem_init(&c.done, 0, 0);
    start();
    task_handle a = begin(0);
    lineage_set_running(2, NOBODY);
    CHECK(spawn(c.pool, first_link, &c));
    sem_wait(&c.done);
    CHECK(same_task(c.seen[0], a) && same_task(c.seen[1], a));
    end(a);
    delete_pool(c.pool);
    stop();
}

static void wait_for(void *gate) { sem_wait(gate); }

static void work_of_an_ended_task_is_nobodys(void)
{
    struct pool *pool = new_pool();
    task_handle late = lineage_handle(9, 1);
    sem_t gate;
    sem_init(&gate, 0, 0);
    start();
    task_handle a = begin(0);
    CHECK(spawn(pool, wait_for, &gate) && spawn(pool, note_task, &late));
    end(a);
    task_handle b = begin(0); /* in the same slot */
    sem_post(&gate);
    delete_pool(pool);
    CHECK(!is_somebody(late));
    end(b);
    stop();
}

static void refused_work_is_deleted_once(void)
{
    struct pool *pool = new_pool();
    start();
    task_handle a = begin(0);
    end_pool(pool);
    store_relaxed(&deleted, 0);
    CHECK(!spawn(pool, note_task, NULL) && load_relaxed(&deleted) == 1);
    end(a);
    stop();
    free(pool);
}

/* -- several tasks at once -- */

static struct pool *shared_pool;

static void take_block(void *block) { alloc_add_block(block, 8 * KIB); }
static void give_block(void *block) { alloc_remove_block(block, 8 * KIB); }

struct user {
    uint32_t slot;
    uint64_t blocks;
    struct account_figures figures;
    sem_t done;
};

static void post(void *semaphore) { sem_post(semaphore); }

static pthread_mutex_t boundary = PTHREAD_MUTEX_INITIALIZER;

static void *use_pool(void *argument)
{
    struct user *user = argument;
    char *blocks = (char *)((UINT64_C(1) + user->slot) << 40);
    pthread_mutex_lock(&boundary);
    task_handle task = begin(user->slot);
    pthread_mutex_unlock(&boundary);
    for (int round = 0; round < 100; round++) {
        for (uint64_t i = 0; i < user->blocks; i++)
            CHECK(spawn(shared_pool, take_block, blocks + i * 8 * KIB));
        for (uint64_t i = 0; i < user->blocks; i++)
            CHECK(spawn(shared_pool, give_block, blocks + i * 8 * KIB));
    }
    CHECK(spawn(shared_pool, post, &user->done));
    sem_wait(&user->done);
    pthread_mutex_lock(&boundary);
    accounts_task_end(task, 0, &user->figures);
    pthread_mutex_unlock(&boundary);
    return NULL;
}

static void tasks_side_by_side_own_what_their_work_takes(void)
{
    struct user users[2] = { { .slot = 0, .blocks = 3 }, { .slot = 1, .blocks = 11 } };
    pthread_t threads[2];
    start();
    python_thread = (pthread_t)0;
    lineage_set_running(2, NOBODY);
    shared_pool = new_pool();
    for (int i = 0; i < 2; i++) sem_init(&users[i].done, 0, 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, use_pool, &users[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) CHECK(users[i].figures.peak_bytes == users[i].blocks * 8 * KIB);
    delete_pool(shared_pool);
    stop();
}

static word ended;

static void *spawn_often(void *unused)
{
    (void)unused;
    task_handle task, seen;
    pthread_mutex_lock(&boundary);
    task = begin(0);
    pthread_mutex_unlock(&boundary);
    for (int i = 0; i < 20000; i++) CHECK(spawn(shared_pool, note_task, &seen));
    end_pool(shared_pool);
    end(task);
    add_relaxed(&ended, 1);
    return NULL;
}

static void replaced_and_restored_beside_calls(void)
{
    pthread_t thread;
    start();
    shared_pool = new_pool();
    CHECK(pthread_create(&thread, NULL, spawn_often, NULL) == 0);
    do {
        arrow_threads_leave();
        CHECK(arrow_threads_follow(path) == 0);
    } while (!load_relaxed(&ended));
    pthread_join(thread, NULL);
    stop();
    free(shared_pool);
}

static void a_forked_child_follows_on(void)
{
    pid_t child = fork();
    if (child == 0) {
        task_handle seen = NOBODY;
        start();
        CHECK(arrow_threads_follow(path) == 0);
        struct pool *pool = new_pool();
        task_handle a = begin(0);
        CHECK(spawn(pool, note_task, &seen));
        end_pool(pool);
        CHECK(same_task(seen, a));
        arrow_threads_leave();
        _exit(failures ? 1 : 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    char *last = n > 0 ? strrchr(path, '/') : NULL;
    if (last) strcpy(last, "/lib_threads.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    table = dlsym(library, "_ZTVN5arrow8internal10ThreadPoolE");
    library_drops_work = dlsym(library, "library_drops_work");
    *(void **)&make_pool = dlsym(library, "_ZN5arrow8internal10ThreadPool4MakeEi");
    *(void **)&shut_down = dlsym(library, "_ZN5arrow8internal10ThreadPool8ShutdownEb");
#ifndef __x86_64__
    CHECK(arrow_threads_follow(path) == -ENOTSUP);
    skip_all = "threads of Arrow are followed on x86-64 only";
#endif
    RUN(not_a_library_of_arrow);
    RUN(a_trial_that_fails_leaves_the_table);
    RUN(the_table_is_replaced_and_restored);
    RUN(work_belongs_to_the_task_that_hands_it_over);
    RUN(a_thread_returns_to_what_it_was);
    RUN(work_hands_the_task_on);
    RUN(work_of_an_ended_task_is_nobodys);
    RUN(refused_work_is_deleted_once);
    RUN(tasks_side_by_side_own_what_their_work_takes);
    RUN(replaced_and_restored_beside_calls);
    RUN(a_forked_child_follows_on);
    return failures;
}
