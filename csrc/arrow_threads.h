/* Work that a task hands to the threads of Apache Arrow's C++ library, followed there. Called by
 * follow/arrow.py through the binding.
 *
 * Arrow has one thread pool for computation and one for input and output. Both are objects of class
 * arrow::internal::ThreadPool, and all work passes through its virtual function SpawnReal. The
 * class's table leads to a function of this file instead: if the calling thread works for a task,
 * it puts the work into a wrapper that has the task's handle. The pool's thread calls the wrapper,
 * which adopts the task for as long as the work runs. Work that this work hands on is followed in
 * the same way.
 *
 * The table is replaced and not the pools' own first word: to ask for a pool creates it, and its
 * number of threads is read from the environment then.
 *
 * For x86-64, as arrow_pool.h. Called by one thread at a time.
 */
#ifndef DWSR_ARROW_THREADS_H
#define DWSR_ARROW_THREADS_H

/* Finds the class in the libarrow that an extension of pyarrow is linked to, replaces SpawnReal,
 * and tries it with a pool and a thread of its own, once in a process. `path`: the extension's
 * file. 0, or -errno: nothing is replaced. -ENOTSUP: not on this machine; -EPROTO: the trial
 * failed. */
int arrow_threads_follow(const char *path);
/* Restores the table, unless somebody else has replaced the function since. */
void arrow_threads_leave(void);

#endif
