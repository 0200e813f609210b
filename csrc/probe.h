/* The probe of this process: the one global. Start, stop, fork, and the calls that the language
 * bindings make.
 *
 * Every call is safe from any thread, with or without a probe running. A forked child has no probe
 * until it starts its own: it writes nothing into its parent's board.
 */
#ifndef DWSR_PROBE_H
#define DWSR_PROBE_H

#include "board.h"
#include "tasks.h"

struct probe_settings {
    const char *directory, *run, *host, *task_name, *worker, *python;
    const char *proc_root, *cgroup_root; /* "/proc", "/sys/fs/cgroup", or fixtures */
    uint64_t period_ns;
    int keep_peak; /* leave the kernel's mark alone; peaks are sampled then */
    int alloc;     /* account allocations; blocks of alloc_from bytes on are followed one by one */
    uint64_t alloc_from;
    /* whether the calling thread has a Python thread state; NULL: all have */
    int (*is_python_thread)(void);
};

/* The least limit on descriptors (RLIMIT_NOFILE) with which the probe starts: below it, the few
 * that it needs would be missing to the job. */
#define PROBE_DESCRIPTORS_LEAST 32
/* 0, or -EMFILE. */
int probe_check_limits(const char **failed_step);

/* 0 or -errno (-EALREADY: it runs already); *failed_step says what was being done. */
int probe_start(const struct probe_settings *s, const char **failed_step);
/* Idempotent. at_exit: tasks still running die with the process and are left for the reader to
 * find. remove: no reader will come. */
void probe_stop(enum board_state state, int at_exit, int remove);

int probe_active(void);
/* Changes with every start and fork: a handle is good only within its generation. */
uint64_t probe_generation(void);
/* Copies the board's path; 0 or -ENOENT. */
int probe_board_path(char *path, size_t size);

/* Makes room for tasks now: slots and records on the board, the owner table (16 MiB of address
 * space). Without it, the first task does. */
void probe_expect_tasks(void);
/* Whether that has failed; 1 only once. Tasks are counted then, not measured. */
int probe_room_failure(int *error, const char **failed_step);

task_handle probe_task_begin(const struct task_begin *begin, struct hold *h);
void probe_task_end(task_handle task, const struct task_end *end, struct hold *h);

/* The calling thread works for that task (NOBODY: for none) while it runs none of its own. Returns
 * the task it worked for before. */
task_handle probe_adopt(task_handle task);
/* The task that the calling thread works for, to be handed to probe_adopt elsewhere. */
task_handle probe_current(void);
/* Live bytes of a running task; ABSENT without accounting. */
uint64_t probe_live_bytes(task_handle task);

/* Around a fork whose caller will call probe_fork_done in the parent, from any thread: the sampler
 * restarts there, or with the next task, not inside fork, because Python 3.12+ counts threads
 * there. Any other fork restarts it by itself. */
void probe_fork_announced(void);
void probe_fork_done(void);

/* JSON about the program for readers of its board; 0, -ENOENT without a board, -EMSGSIZE. */
int probe_set_facts(const char *text, uint64_t len);
/* Whether a framework's own begin and end are in use (1), or only what it tells us afterwards (2).
 */
void probe_note_hooks(uint64_t kind);

/* Whether nobody has said this yet, in this process, in the one that it was forked from, or in any
 * that shares that one: a failure of all children is one line on stderr. kind: below
 * PROBE_SAY_KINDS; numbered by dwsr_probe/say.py but for the first. */
enum { PROBE_SAY_SAMPLER = 0, PROBE_SAY_KINDS = 16 };
int probe_say_first(unsigned kind);

/* The program is about to replace itself; about to start an interpreter that cannot load the probe.
 */
void probe_note_exec(void);
void probe_note_unprobed_child(void);

#endif
