from libc.stdint cimport uint64_t

from csrc.handle cimport task_handle
from csrc.hold cimport hold
from csrc.tasks cimport task_begin, task_end

cdef extern from "probe.h" nogil:
    struct probe_settings:
        const char *directory
        const char *run
        const char *host
        const char *task_name
        const char *worker
        const char *python
        const char *proc_root
        const char *cgroup_root
        uint64_t period_ns, alloc_from
        int keep_peak, alloc
        int (*is_python_thread)() noexcept nogil
        void *interpreter
    const int PROBE_DESCRIPTORS_LEAST
    int probe_check_limits(const char **failed_step)
    int probe_start(const probe_settings *s, const char **failed_step)
    void probe_stop(int state, int at_exit, int remove)
    int probe_active()
    uint64_t probe_instance()
    int probe_board_path(char *path, size_t size)
    void probe_expect_tasks()
    int probe_take_room_failure(int *error, const char **failed_step)
    task_handle probe_task_begin(const task_begin *begin, hold *h)
    void probe_task_end(task_handle task, const task_end *end, hold *h)
    void probe_task_detach(task_handle task, hold *h)
    task_handle probe_adopt(task_handle task)
    task_handle probe_current()
    uint64_t probe_live_bytes(task_handle task)
    void probe_announce_fork()
    void probe_restart_sampler()
    int probe_set_facts(const char *text, uint64_t len)
    void probe_note_dask_hooks(uint64_t kind)
    int probe_claim_message(unsigned kind)
    void probe_note_exec()
    void probe_note_unprobed_child()
