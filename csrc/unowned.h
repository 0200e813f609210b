/* Memory that threads allocate for no task while tasks run. It may belong to one of these tasks
 * all the same: a task may have handed work to the thread in a way that is not followed. So a task
 * beside which such threads take much memory is marked (tasks.c).
 *
 * There are three kinds of such threads. Native threads that allocate while several tasks run: one
 * sum. Python threads: one sum, and an entry for each thread, for its name. Python threads that are
 * known to work for no task (Dask's event loop): not counted. A thread is of unknown kind until the
 * binding has looked up its name (unowned_name), at the next begin or end of a task.
 *
 * Called by lineage.c and accounts.c from any thread: no lock, no allocation. tasks.c ends windows
 * under its mutex.
 */
#ifndef DWSR_UNOWNED_H
#define DWSR_UNOWNED_H

#include "frame.h"
#include "thread.h"

#define UNOWNED_NAME_MOST 48

/* Indexes of entries; 0: memory that is not counted here. */
enum { UNOWNED_NATIVE = 1, UNOWNED_FIRST = 2, UNOWNED_OTHERS = 255, UNOWNED_COUNT = 256 };

/* Live bytes of one sum now, and their peak since the last end of a window. May be below zero. */
struct unowned_sum {
    int64_t live, peak;
};
struct unowned_window {
    struct unowned_sum native, python;
};

/* The entry of the calling thread, which has a Python thread state. */
uint32_t unowned_entry_of_thread(void);
/* Adds bytes to an entry; negative bytes subtract, from any thread. */
void unowned_add(uint32_t entry, int64_t bytes);
/* Reads both sums and begins a new window. One thread at a time. */
struct unowned_window unowned_end_window(void);

/* A thread whose kind is unknown: its entry and its id as of gettid; 0: there is none. Cheap if
 * there is none. */
uint32_t unowned_next_unnamed(uint32_t *thread);
/* Sets the kind of the entry, once: counted under this name, or not counted. */
void unowned_name(uint32_t entry, struct text name, int counts);
/* The name of the counted Python thread that has had the most memory. It is never freed. */
struct text unowned_largest_name(void);

/* Accounting begins: sums begin at zero. Threads keep their names. */
void unowned_open(void);
/* In a forked child: forgets all threads. */
void unowned_reset_in_child(void);

#endif
