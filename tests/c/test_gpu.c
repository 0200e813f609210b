/* Device memory of tasks: nests, late frees, generations, many threads, and the board's copy. */
#include "check.h"
#include "board_read.h"
#include "gpu.h"
#include "lineage.h"
#include "sums.h"

#include <pthread.h>

#define KIB UINT64_C(1024)

static uint64_t serial;

/* A task of the calling thread. */
static task_handle begin(uint32_t slot, task_handle around)
{
    task_handle task = lineage_handle(slot, ++serial);
    lineage_begin(task, around);
    return task;
}

static struct gpu_figures end(task_handle task)
{
    struct gpu_figures f;
    gpu_task_end(task, &f);
    lineage_end(task, f.has_live_bytes);
    return f;
}

static struct task_device figures_on(const struct gpu_figures *f, uint32_t device)
{
    for (int i = 0; i < TASK_DEVICES; i++)
        if (f->devices[i].device == device + 1) return f->devices[i];
    return (struct task_device){ 0 };
}

static void live_and_peak(void)
{
    task_handle a = begin(0, NOBODY);
    CHECK(gpu_add_block(a, 0, 100) && gpu_add_block(a, 0, 50) && gpu_add_block(a, 3, 7));
    gpu_remove_block(a, 0, 100);
    CHECK(!gpu_add_block(a, 0, 80)); /* below the peak */
    struct gpu_figures f = end(a);
    CHECK(f.known && f.has_live_bytes && figures_on(&f, 0).peak_bytes == 150
          && figures_on(&f, 0).live_bytes == 130);
    CHECK(figures_on(&f, 3).peak_bytes == 7 && figures_on(&f, 3).pool_used_bytes == ABSENT
          && !f.oom.count);
    gpu_remove_block(a, 0, 130); /* after the task's end: nobody's */
    gpu_remove_block(a, 3, 7);
}

static void an_inner_tasks_memory_passes_on(void)
{
    task_handle outer = begin(0, NOBODY);
    gpu_add_block(outer, 0, 10);
    task_handle inner = begin(1, outer);
    gpu_add_block(inner, 0, 100);
    gpu_add_block(inner, 0, 50);
    gpu_remove_block(inner, 0, 50);
    struct gpu_figures f = end(inner);
    CHECK(figures_on(&f, 0).peak_bytes == 150 && figures_on(&f, 0).live_bytes == 100);
    gpu_remove_block(inner, 0, 60); /* the inner task has ended: its memory is the outer one's */
    f = end(outer);
    CHECK(figures_on(&f, 0).peak_bytes == 160 && figures_on(&f, 0).live_bytes == 50);
    gpu_remove_block(inner, 0, 40);
    gpu_remove_block(outer, 0, 10);
}

static void a_slots_next_task_is_not_touched(void)
{
    task_handle first = begin(0, NOBODY);
    gpu_add_block(first, 0, 1000);
    end(first);
    task_handle second = begin(0, NOBODY);
    gpu_add_block(second, 0, 5);
    gpu_remove_block(first, 0, 1000);
    gpu_note_oom(first, 0, 1, &(struct gpu_pool){ 0, 0, 0, 0 });
    struct gpu_figures f = end(second);
    CHECK(figures_on(&f, 0).peak_bytes == 5 && figures_on(&f, 0).live_bytes == 5 && !f.oom.count);
    gpu_remove_block(second, 0, 5);
    struct gpu_figures none = end(begin(0, NOBODY));
    CHECK(none.known && !none.has_live_bytes && !figures_on(&none, 0).device);
}

static void more_devices_than_there_is_room_for(void)
{
    task_handle a = begin(0, NOBODY);
    for (uint32_t device = 0; device < 12; device++) gpu_add_block(a, device, device + 1);
    gpu_add_block(a, 99, 1);
    struct gpu_figures f = end(a);
    CHECK(figures_on(&f, TASK_DEVICES - 1).peak_bytes == TASK_DEVICES
          && !figures_on(&f, TASK_DEVICES).device);
    for (uint32_t device = 0; device < 12; device++) gpu_remove_block(a, device, device + 1);
    gpu_remove_block(a, 99, 1);
}

static void the_pool_at_the_peak(void)
{
    task_handle a = begin(0, NOBODY);
    gpu_note_pool(a, 0, &(struct gpu_pool){ 900, 1000, 5000, 7 }, gpu_add_block(a, 0, 100));
    gpu_note_pool(a, 0, &(struct gpu_pool){ 1, 2, 3, 4 }, gpu_add_block(a, 0, 0)); /* no peak */
    gpu_remove_block(a, 0, 100);
    gpu_note_oom(a, 0, 4096, &(struct gpu_pool){ 10, 20, ABSENT, ABSENT });
    struct gpu_figures f = end(a);
    CHECK(figures_on(&f, 0).peak_bytes == 100 && figures_on(&f, 0).live_bytes == 0
          && figures_on(&f, 0).pool_used_bytes == 900
          && figures_on(&f, 0).pool_total_bytes == 1000);
    CHECK(f.oom.count == 1 && f.oom.device == 0 && f.oom.requested_bytes == 4096
          && f.oom.live_bytes == 0);
    CHECK(f.oom.pool_used_bytes == 10 && f.oom.pool_total_bytes == 20
          && f.oom.pool_limit_bytes == ABSENT);
}

/* One task in each of four threads on one device; the next thread frees. All sums end at zero, and
 * each task has its own peak. */
enum { THREADS = 4, ROUNDS = 20000 };
static pthread_barrier_t barrier;
static task_handle handles[THREADS];

static void *neighbour(void *argument)
{
    uint32_t me = (uint32_t)(uintptr_t)argument;
    task_handle next = handles[(me + 1) % THREADS];
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) {
        gpu_note_pool(handles[me], 0, &(struct gpu_pool){ 1, 2, 3, 4 },
                      gpu_add_block(handles[me], 0, 512));
        gpu_remove_block(next, 0, 512);
    }
    return NULL;
}

static void eighty_thousand_pairs_in_four_threads(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (uint32_t i = 0; i < THREADS; i++)
        handles[i] = begin(i, NOBODY), gpu_add_block(handles[i], 0, 512 * ROUNDS);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, neighbour, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < THREADS; i++) {
        struct gpu_figures f = end(handles[i]);
        CHECK(figures_on(&f, 0).live_bytes == 512 * ROUNDS
              && figures_on(&f, 0).peak_bytes >= 512 * ROUNDS
              && figures_on(&f, 0).peak_bytes <= 2 * 512 * ROUNDS);
        gpu_remove_block(handles[i], 0, 512 * ROUNDS);
    }
    pthread_barrier_destroy(&barrier);
}

static void the_board_has_it_all(void)
{
    struct board b;
    struct board_reader r;
    struct device d;
    struct slot s;
    const char *step, *root = scratch();
    CHECK(board_create(&b, &(struct board_settings){ .directory = root, .pid = (uint64_t)getpid() },
                       &step)
              == 0
          && board_grow(&b, &step) == 0);
    gpu_open();
    CHECK(board_reader_open(&r, b.path) == 0 && board_read_device(&r, 5, &d) == 0);
    task_handle a = begin(2, NOBODY);
    gpu_add_block(a, 5, 640);
    gpu_add_block(a, GPU_PINNED, 99);
    gpu_identify(5,
                 "a name that is much longer than the ninety-six bytes that there are for it, so "
                 "that it is cut off somewhere",
                 "GPU-1", 1 << 20);
    gpu_note_driver(5, &(struct gpu_driver){ 10, ABSENT, 5, 50, ABSENT, ABSENT });
    gpu_note_driver(5, &(struct gpu_driver){ 7, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT });
    gpu_publish(&b);
    CHECK(board_read_device(&r, 5, &d) == 1 && d.fields.live_bytes == 640
          && d.fields.peak_bytes == 640 && d.fields.unseen_bytes == ABSENT);
    CHECK(d.fields.used_bytes == 7 && d.fields.used_max_bytes == 10
          && d.fields.process_bytes == ABSENT && d.fields.process_max_bytes == 5);
    CHECK(d.fields.total_bytes == 1 << 20 && strlen(d.name) == sizeof d.name - 1
          && !strcmp(d.uuid, "GPU-1"));
    CHECK(b.live->gpu_hook == GPU_HOOK_ON && b.live->pinned_bytes == 99);
    memcpy(&s, &b.slots[2], sizeof s);
    CHECK(s.fields.gpu_serial == serial && s.gpu[0].device == 6 && s.gpu[0].live_bytes == 640
          && s.gpu[1].device == GPU_PINNED + 1);
    /* allocated by an earlier test: memory is followed across starts */
    CHECK(board_read_device(&r, 4, &d) == 1);
    board_reader_close(&r);
    board_unmap(&b, 1);
    remove_tree(root);
    end(a);
}

static void nested_allocators(void)
{
    CHECK(gpu_enter() == 0 && gpu_enter() == 1);
    gpu_leave(), gpu_leave();
    CHECK(gpu_enter() == 0);
    gpu_leave();
}

int main(void)
{
    lineage_open(NULL);
    gpu_open();
    gpu_note_hook(GPU_HOOK_ON, 1);
    RUN(live_and_peak);
    RUN(an_inner_tasks_memory_passes_on);
    RUN(a_slots_next_task_is_not_touched);
    RUN(more_devices_than_there_is_room_for);
    RUN(the_pool_at_the_peak);
    RUN(eighty_thousand_pairs_in_four_threads);
    RUN(the_board_has_it_all);
    RUN(nested_allocators);
    return failures;
}
