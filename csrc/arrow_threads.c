#define _GNU_SOURCE
#include "arrow_threads.h"

#include <errno.h>

#if defined(__x86_64__)
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "accounts.h"
#include "arrow_library.h"
#include "lineage.h"
#include "patch.h"

struct thread_pool {
    uintptr_t *table;
};

/* arrow::internal::FnOnce<void()> is one pointer to such an object. It is called once, then
 * deleted. */
#define TABLE_INVOKE ARROW_TABLE_FIRST
struct function {
    const uintptr_t *table;
};
typedef void member_function(struct function *);

/* arrow::internal::TaskHints. Its size is that of all tested releases. */
struct task_hints {
    int64_t words[4];
};

typedef struct arrow_status *spawn_function(struct arrow_status *, struct thread_pool *,
                                            struct task_hints, struct function **function,
                                            const void *stop_token, void *stop_callback);

static struct {
    struct elf_object object; /* libarrow */
    uintptr_t *table;         /* of the class, without its head */
    uintptr_t *slot;          /* of SpawnReal in the table; NULL: not found */
    spawn_function *spawn;
    int is_tried, failure; /* of the trial: 0 or -errno */
} threads;

/* A pool that arrow_threads_follow has made, and what its thread has seen. The pool stays allocated
 * without a thread: its destructor is Arrow's, and inline. */
static struct {
    struct thread_pool *pool; /* NULL: no trial is under way */
    void *kept[2];
    task_handle task;
    word invoked, deleted;
} trial;

static void call(struct function *f, int index) { ((member_function *)f->table[index])(f); }

/* -- the wrapper around a function -- */

struct carried {
    struct function wrapper;
    struct function *function; /* NULL: it has run */
    task_handle task;
};

/* Nothing restores the thread's state if the function throws an exception: no caller of it in a
 * pool's thread catches any, so the process ends. */
static void carried_invoke(struct function *f)
{
    struct carried *c = (struct carried *)f;
    accounts_flush(); /* small bytes so far are not this task's */
    const struct lineage_work before = lineage_take_up(c->task);
    call(c->function, TABLE_INVOKE);
    call(c->function, ARROW_TABLE_DELETE); /* what it holds is the task's, too */
    c->function = NULL;
    accounts_flush();
    lineage_resume(before);
}

static void carried_destroy(struct function *f)
{
    struct carried *c = (struct carried *)f;
    if (c->function) call(c->function, ARROW_TABLE_DELETE);
    c->function = NULL;
}

static void carried_delete(struct function *f)
{
    carried_destroy(f);
    free(f);
}

static const uintptr_t carried_table[] = { 0, 0, (uintptr_t)carried_destroy,
                                           (uintptr_t)carried_delete, (uintptr_t)carried_invoke };

/* In place of SpawnReal, called by any thread. This object's malloc is not hooked. */
static struct arrow_status *spawn(struct arrow_status *status, struct thread_pool *pool,
                                  struct task_hints hints, struct function **function,
                                  const void *stop_token, void *stop_callback)
{
    task_handle task =
        pool == pointer_load_acquire(&trial.pool) ? trial.task : lineage_task_to_hand_on();
    struct carried *c = is_somebody(task) && *function ? malloc(sizeof *c) : NULL;
    if (c) {
        *c = (struct carried){ { carried_table + ARROW_TABLE_HEAD }, *function, task };
        *function = &c->wrapper;
    }
    return threads.spawn(status, pool, hints, function, stop_token, stop_callback);
}

/* -- finding -- */

#define CLASS "N5arrow8internal10ThreadPool"
#define SPAWN_REAL                                                                       \
    "_Z" CLASS "9SpawnRealENS0_9TaskHintsENS0_6FnOnceIFvvEEENS_9StopTokenEONS3_IFvRKNS_" \
    "6StatusEEEE"

static int read_object(struct dl_phdr_info *info, size_t size, void *base)
{
    (void)size;
    if (info->dlpi_addr != (uintptr_t)base) return 0;
    return elf_object_read(info, &threads.object);
}

static int find_in(void *library)
{
    uintptr_t *table = dlsym(library, "_ZTV" CLASS "E");
    const uintptr_t real = (uintptr_t)dlsym(library, SPAWN_REAL);
    const size_t words = arrow_table_words(table);
    if (!real || words <= ARROW_TABLE_HEAD) return -ENOENT;
    uintptr_t *slot = NULL;
    for (size_t i = ARROW_TABLE_HEAD + ARROW_TABLE_FIRST; i < words; i++)
        if (pointer_load_acquire(&table[i]) == real) slot = &table[i];
    if (!slot || !dl_iterate_phdr(read_object, (void *)arrow_base_of(table))) return -EINVAL;
    threads.spawn = (spawn_function *)real;
    threads.table = table + ARROW_TABLE_HEAD;
    threads.slot = slot;
    return 0;
}

/* -- trial: this file is the caller of SpawnReal, with arguments as Arrow's own code passes. So the
 * places of arguments, results and functions are known to be right for the other direction, too. --
 */

static void trial_invoke(struct function *f)
{
    (void)f;
    task_handle adopted = lineage_adopt(NOBODY);
    lineage_adopt(adopted);
    if (same_task(adopted, trial.task)) add_relaxed(&trial.invoked, 1);
}

static void trial_delete(struct function *f)
{
    (void)f;
    add_relaxed(&trial.deleted, 1);
}

static const uintptr_t trial_table[] = { 0, 0, (uintptr_t)trial_delete, (uintptr_t)trial_delete,
                                         (uintptr_t)trial_invoke };

static void *do_nothing(void *unused) { return unused; }

/* Arrow throws an exception if it cannot start a thread. */
static int can_start_thread(void)
{
    pthread_t thread;
    return pthread_create(&thread, NULL, do_nothing, NULL) == 0 && pthread_join(thread, NULL) == 0;
}

/* arrow::Result<std::shared_ptr<ThreadPool>> */
struct made_pool {
    struct arrow_status status;
    struct thread_pool *pool;
    void *count;
};
typedef struct made_pool *make_function(struct made_pool *, int thread_count);
typedef struct arrow_status *shutdown_function(struct arrow_status *, struct thread_pool *,
                                               int waits);

static int try_in(void *library)
{
    make_function *make = (make_function *)dlsym(library, "_Z" CLASS "4MakeEi");
    shutdown_function *shutdown = (shutdown_function *)dlsym(library, "_Z" CLASS "8ShutdownEb");
    if (!make || !shutdown) return -ENOENT;
    if (!can_start_thread()) return -EAGAIN; /* later perhaps */
    threads.is_tried = 1;
    struct made_pool made = { { NULL }, NULL, NULL };
    make(&made, 1);
    if (made.status.failure || !made.pool || made.pool->table != threads.table) return -EPROTO;
    trial.kept[0] = made.pool, trial.kept[1] = made.count;

    trial.task = handle_from_serial(0, 1, 0); /* of no task: starts are counted from 1 */
    pointer_store_release(&trial.pool, made.pool);
    static struct function tried = { trial_table + ARROW_TABLE_HEAD };
    struct function *function = &tried;
    const void *stop_token[2] = { NULL, NULL };
    void *stop_callback = NULL;
    struct arrow_status spawned = { NULL }, ended = { NULL };
    spawn_function *through_table =
        (spawn_function *)made.pool->table[threads.slot - threads.table];
    through_table(&spawned, made.pool, (struct task_hints){ { 0, -1, -1, -1 } }, &function,
                  stop_token, &stop_callback);
    if (function) call(function, ARROW_TABLE_DELETE);
    shutdown(&ended, made.pool, 1);
    pointer_store_release(&trial.pool, NULL);
    return !spawned.failure && !ended.failure && load_relaxed(&trial.invoked) == 1
                   && load_relaxed(&trial.deleted) == 1
               ? 0
               : -EPROTO;
}

static int follow_in(void *library)
{
    int e = threads.failure ? threads.failure : threads.slot ? 0 : find_in(library);
    if (e == 0 && pointer_load_acquire(threads.slot) != (uintptr_t)spawn)
        e = patch_replace_word(&threads.object, threads.slot, (uintptr_t)threads.spawn,
                               (uintptr_t)spawn);
    if (e == 0 && !threads.is_tried) {
        e = try_in(library);
        if (threads.is_tried) threads.failure = e;
        if (e < 0) arrow_threads_leave();
    }
    return e;
}

int arrow_threads_follow(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    const int e = library ? follow_in(library) : -ENOENT;
    if (library) dlclose(library);
    return e;
}

void arrow_threads_leave(void)
{
    if (threads.slot && pointer_load_acquire(threads.slot) == (uintptr_t)spawn)
        patch_replace_word(&threads.object, threads.slot, (uintptr_t)spawn,
                           (uintptr_t)threads.spawn);
}

#else

int arrow_threads_follow(const char *path) { return (void)path, -ENOTSUP; }
void arrow_threads_leave(void) {}

#endif
