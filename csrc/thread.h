/* What the probe keeps for each thread, all of it: static TLS is scarce, and a library that is
 * loaded late shares what is left. Each field belongs to the unit that is named beside it.
 *
 * The model is initial-exec, because others may allocate at first use, inside the hook on malloc.
 */
#ifndef DWSR_THREAD_H
#define DWSR_THREAD_H

#include "handle.h"

/* Data that hot paths reach from headers. The extension hides it, so that it is not looked up in
 * the GOT; the library of the C tests exports it. */
#ifdef DWSR_EXTENSION
#define SHARED_DATA extern __attribute__((visibility("hidden")))
#else
#define SHARED_DATA extern
#endif

struct thread_state {
    task_handle task;       /* lineage: the innermost task that this thread runs */
    task_handle works_for;  /* lineage: the task that it was started in, or adopted by */
    int32_t pending;        /* accounts: small bytes not yet in a sum */
    uint32_t pending_count; /* accounts: allocations, in the same way */
    uint32_t id;            /* tasks: gettid, asked once */
    uint16_t gpu_depth;     /* gpu: allocators that call allocators */
    /* accounts: being changed, a signal handler's own calls are not followed */
    uint8_t busy;
    uint8_t adopted : 1;        /* lineage: base counts for native threads, too */
    uint8_t fork_announced : 1; /* probe */
};
_Static_assert(sizeof(struct thread_state) == 32, "all of the probe's thread-locals");

SHARED_DATA __thread struct thread_state this_thread;

#endif
