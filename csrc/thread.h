/* All thread-local state of the probe: one struct of 32 bytes, because static TLS is scarce and
 * shared with every library that is loaded late. Each field belongs to the file named beside it.
 * lineage.c defines the struct.
 *
 * The TLS model is initial-exec. Other models may allocate at first use, which would be inside the
 * hook on malloc.
 */
#ifndef DWSR_THREAD_H
#define DWSR_THREAD_H

#include "handle.h"

/* For data that inline functions of headers access. The extension hides it, so that no access goes
 * through the GOT. The library of the C tests exports it. */
#ifdef DWSR_EXTENSION
#define SHARED_DATA extern __attribute__((visibility("hidden")))
#else
#define SHARED_DATA extern
#endif

struct thread_state {
    task_handle task;           /* lineage: the innermost task that this thread runs */
    task_handle works_for;      /* lineage: the task that started or adopted this thread */
    int32_t pending;            /* accounts: bytes of small blocks that are in no sum yet */
    uint32_t pending_count;     /* accounts: allocations that are in no count yet */
    uint32_t id;                /* tasks: gettid, read once */
    uint8_t gpu_depth;          /* gpu: depth of allocators that call allocators */
    uint8_t unowned_entry;      /* unowned: the entry of this thread; 0: none yet */
    uint8_t in_accounts;        /* accounts: allocations of signal handlers are not counted now */
    uint8_t adopted : 1;        /* lineage: works_for holds without a Python thread state, too */
    uint8_t fork_announced : 1; /* probe */
    uint8_t native : 1;         /* lineage: not started by Python, whatever it runs */
};
_Static_assert(sizeof(struct thread_state) == 32, "all of the probe's thread-locals");

SHARED_DATA __thread struct thread_state this_thread;

#endif
