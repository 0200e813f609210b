/* The probe of this process, the one global: start, stop, fork, and the calls of the Python binding
 * (dwsr_probe/_core).
 *
 * Every call is safe from any thread, with or without a probe running. A forked child has no probe
 * until it starts its own, and writes nothing to its parent's board.
 */
#ifndef DWSR_PROBE_H
#define DWSR_PROBE_H

#include "board.h"
#include "tasks.h"

struct probe_settings {
    const char *directory, *run, *host, *task_name, *worker, *python;
    const char *proc_root, *cgroup_root; /* "/proc", "/sys/fs/cgroup", or fixtures */
    uint64_t period_ns;
    int keep_peak;       /* never reset the kernel's high-water mark; peaks are sampled then */
    int alloc;           /* account allocations */
    uint64_t alloc_from; /* blocks of so many bytes or more have an owner of their own (alloc.h) */
    /* whether the calling thread has a Python thread state; NULL: every thread has one */
    int (*is_python_thread)(void);
    void *interpreter; /* a function of Python's, or NULL (alloc.h) */
};

/* With a lower limit on descriptors (RLIMIT_NOFILE) the probe does not start: the job would miss
 * the few that the probe needs. */
#define PROBE_DESCRIPTORS_LEAST 32
/* 0, or -EMFILE if that limit is too low. */
int probe_check_limits(const char **failed_step);

/* 0 or -errno (-EALREADY: the probe runs). *failed_step: the step that failed. */
int probe_start(const struct probe_settings *s, const char **failed_step);
/* No effect if no probe runs. at_exit: the process is about to end, and running tasks stay on the
 * board as they are. remove: the board file is deleted. */
void probe_stop(enum board_state state, int at_exit, int remove);

int probe_active(void);
/* A number that changes with every start of the probe, and in a forked child. */
uint64_t probe_instance(void);
/* Copies the board's path; 0 or -ENOENT. */
int probe_board_path(char *path, size_t size);

/* Makes room for tasks: slots and records on the board, the owner table (16 MiB of address space).
 * Otherwise the first task's begin does so. */
void probe_expect_tasks(void);
/* 1 if making room has failed, once per failure: the call clears the failure. Tasks are then
 * counted as dropped, not measured. */
int probe_take_room_failure(int *error, const char **failed_step);

/* h: what the caller holds (hold.h), or NULL. NOBODY: the task is not measured. */
task_handle probe_task_begin(const struct task_begin *begin, struct hold *h);
void probe_task_end(task_handle task, const struct task_end *end, struct hold *h);
/* The calling thread, which began the task, does other work before the task ends (tasks_detach). */
void probe_task_detach(task_handle task, struct hold *h);

/* The calling thread works for this task (NOBODY: for none) while it runs none of its own. Returns
 * the task that it worked for before. */
task_handle probe_adopt(task_handle task);
/* The task that the calling thread works for, to be passed to probe_adopt in another thread. */
task_handle probe_current(void);
/* Live bytes of a running task; ABSENT without accounting, or if it does not run. */
uint64_t probe_live_bytes(task_handle task);

/* Called before a fork, in the thread that forks. The fork then leaves the parent's sampler
 * stopped, because Python 3.12+ counts threads there. After any other fork the sampler restarts by
 * itself. */
void probe_announce_fork(void);
/* Called after an announced fork, in the parent, from any thread. If nobody calls it, the next
 * task's begin restarts the sampler. */
void probe_restart_sampler(void);

/* JSON about the program, for readers of its board. 0, -ENOENT without a board, or -EMSGSIZE. */
int probe_set_facts(const char *text, uint64_t len);
/* How the tasks of Dask are followed (enum dask_hooks). */
void probe_note_dask_hooks(uint64_t kind);

/* 1 for the first call with this kind among all processes that are related by fork: the caller then
 * prints the message. So a failure that all children share is one line on stderr. kind: below
 * PROBE_MESSAGE_KINDS; dwsr_probe/say.py numbers all but the first. */
enum { PROBE_MESSAGE_SAMPLER = 0, PROBE_MESSAGE_KINDS = 16 };
int probe_claim_message(unsigned kind);

/* The program is about to call exec. */
void probe_note_exec(void);
/* The program is about to start a Python interpreter that cannot load the probe. */
void probe_note_unprobed_child(void);

#endif
