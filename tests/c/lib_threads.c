/* Stands for libarrow in test_arrow_threads.c: a class ThreadPool as C++ lays it out on x86-64,
 * under the names that C++ gives to Arrow's functions. A pool has one thread. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CLASS(name)   _ZN5arrow8internal10ThreadPool##name
#define QUEUE_MOST    64
#define TABLE_DELETE  1
#define TABLE_INVOKE  2
#define WORK_OF(f, i) ((void (*)(struct function *))(f)->table[i])

struct function {
    const uintptr_t *table;
};
struct status {
    const void *failure;
};
struct hints {
    int64_t words[4];
};
struct pool {
    const uintptr_t *table;
    struct hints last_hints;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct function *queue[QUEUE_MOST];
    size_t first, last;
    int stops;
};
struct made {
    struct status status;
    struct pool *pool;
    void *count;
};

int library_drops_work; /* for a trial that must fail */
static const char failure[] = "the pool has stopped";

static void *work(void *argument)
{
    struct pool *p = argument;
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (p->first == p->last && !p->stops) pthread_cond_wait(&p->changed, &p->mutex);
        if (p->first == p->last) break;
        struct function *f = p->queue[p->first++ % QUEUE_MOST];
        pthread_mutex_unlock(&p->mutex);
        if (!library_drops_work) WORK_OF(f, TABLE_INVOKE)(f);
        WORK_OF(f, TABLE_DELETE)(f);
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

#define SPAWN_REAL \
    CLASS(9SpawnRealENS0_9TaskHintsENS0_6FnOnceIFvvEEENS_9StopTokenEONS3_IFvRKNS_6StatusEEEE)
struct status *SPAWN_REAL(struct status *, struct pool *, struct hints, struct function **,
                          const void *, void *);
struct made *CLASS(4MakeEi)(struct made *, int);
struct status *CLASS(8ShutdownEb)(struct status *, struct pool *, int);

struct status *SPAWN_REAL(struct status *status, struct pool *p, struct hints hints,
                          struct function **function, const void *stop_token, void *stop_callback)
{
    (void)stop_token, (void)stop_callback;
    pthread_mutex_lock(&p->mutex);
    status->failure = p->stops ? failure : NULL;
    if (!p->stops) {
        while (p->last - p->first == QUEUE_MOST) pthread_cond_wait(&p->changed, &p->mutex);
        p->queue[p->last++ % QUEUE_MOST] = *function;
        *function = NULL;
        p->last_hints = hints;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->mutex);
    return status;
}

static void other(void) {}

/* Two words that describe the class, two destructors, functions. Read-only once it is loaded. */
const uintptr_t _ZTVN5arrow8internal10ThreadPoolE[9] = {
    0,
    0,
    (uintptr_t)other,
    (uintptr_t)other,
    (uintptr_t)other,
    (uintptr_t)other,
    (uintptr_t)other,
    (uintptr_t)SPAWN_REAL,
    (uintptr_t)other,
};

struct made *CLASS(4MakeEi)(struct made *made, int threads)
{
    struct pool *p = calloc(1, sizeof *p);
    p->table = _ZTVN5arrow8internal10ThreadPoolE + 2;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    const int e = threads == 1 ? pthread_create(&p->thread, NULL, work, p) : -1;
    *made = (struct made){ { e ? failure : NULL }, p, p };
    return made;
}

struct status *CLASS(8ShutdownEb)(struct status *status, struct pool *p, int waits)
{
    pthread_mutex_lock(&p->mutex);
    p->stops = 1;
    if (!waits) p->first = p->last;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    status->failure = NULL;
    return status;
}
