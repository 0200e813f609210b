/* What may belong to a task and is not in its accounts. While a task runs, three things are
 * watched: threads of no task that take memory (unowned.h), libraries with allocators of their own
 * (foreign.h), and the private memory of the process as the kernel counts it. If the kernel's count
 * grows by more than everything that is known to have been allocated, somebody has mapped memory
 * past the hooks, for example by a system call of its own.
 *
 * tasks.c calls this at each boundary, under its mutex. The sampler and the wrappers of alloc.c and
 * patch.c note what they see from any thread, without a lock.
 */
#ifndef DWSR_UNACCOUNTED_H
#define DWSR_UNACCOUNTED_H

#include "accounts.h"
#include "rss.h"
#include "unowned.h"

/* Measured at a boundary. */
struct unaccounted_window {
    struct unowned_window unowned;
    uint64_t unowned_bytes; /* accounts_unowned_bytes */
    uint64_t data_bytes;    /* the kernel's count; ABSENT: unknown */
    uint64_t in_use_peak;   /* its peak since the last boundary, without what malloc holds free;
                               0: the sampler saw nothing that is not known */
};

/* Kept for a running task. */
struct unaccounted {
    struct unowned_window unowned; /* live: when it began; peak: since then */
    uint64_t unowned_before, unowned_peak, data_before, data_now, in_use_peak;
    uint64_t explained_before, loaded_before;
};

/* data_bytes: the kernel's count at this boundary; window: the number of the window that ends. */
struct unaccounted_window unaccounted_end_window(uint64_t data_bytes, uint64_t window);
/* A task begins at this boundary. */
void unaccounted_begin(struct unaccounted *u, const struct unaccounted_window *w);
/* The task has run up to this boundary. */
void unaccounted_raise(struct unaccounted *u, const struct unaccounted_window *w);

/* A task that has just ended. */
struct unaccounted_task {
    uint64_t peak_bytes, count; /* of its own allocations */
    uint64_t foreign_bytes;     /* of the libraries that it has used (foreign.h) */
    struct text library;        /* the one with the most */
    int alone;                  /* no task around it, and none in another thread meanwhile */
};
/* Why the figures of the task may miss something; REASON_NONE: they do not. *detail: the name of a
 * thread or library, never freed. rss: to read the size of the stack, if it matters; h is released
 * before that. */
enum attribution_reason unaccounted_reason(const struct unaccounted *u,
                                           const struct unaccounted_task *ended, struct rss *rss,
                                           struct hold *h, struct text *detail);

/* A board is opened: windows are counted anew. */
void unaccounted_open(void);
/* In a forked child: other threads of the parent may have been inside a call that was announced. */
void unaccounted_reset_in_child(void);
/* The sampler has read the kernel's count while no task runs. */
void unaccounted_note_idle(const struct rss *rss);
/* The sampler has read the kernel's count in a window: it is in `rss`. One thread at a time. */
void unaccounted_note_sample(uint64_t window, struct rss *rss, uint64_t now_ns);
/* Around a call that maps so many bytes of private memory with our knowledge, but outside the
 * accounts: a thread's stack, a file. Called before and after it, because a task may begin or end
 * in between. Only growth is counted, never what is unmapped. */
void unaccounted_announce(uint64_t bytes);
void unaccounted_explain(uint64_t bytes);

#endif
