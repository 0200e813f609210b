#define _GNU_SOURCE
#include "gpu.h"

#include <pthread.h>
#include <string.h>

#include "clock.h"
#include "lineage.h"
#include "sums.h"

/* A task's device memory. Opened at the task's first allocation. Sums and peaks carry the task's
 * generation (sums.h). */
struct gpu_account {
    word generation; /* an account with another generation is out of date */
    struct task_device devices[TASK_DEVICES];
    struct task_oom oom;
} __attribute__((aligned(64)));

static struct {
    pthread_mutex_t mutex; /* for opening accounts and their devices */
    word hook, nvml, pinned_seen, unfollowed, ooms;
    struct device devices[DEVICE_COUNT + 1];
    struct gpu_account accounts[SLOT_COUNT];
} gpu = { .mutex = PTHREAD_MUTEX_INITIALIZER };

int gpu_enter(void) { return this_thread.gpu_depth++ != 0; }
void gpu_leave(void) { this_thread.gpu_depth--; }

/* -- accounts -- */

static struct gpu_account *account_of(task_handle task)
{
    struct gpu_account *a = &gpu.accounts[handle_slot(task)];
    return load_acquire(&a->generation) == handle_generation(task) ? a : NULL;
}

static struct task_device *find_device(struct gpu_account *a, uint32_t device)
{
    for (int i = 0; i < TASK_DEVICES; i++)
        if (load_acquire(&a->devices[i].device) == device + 1) return &a->devices[i];
    return NULL;
}

static void open_account(struct gpu_account *a, uint64_t generation)
{
    store_release(&a->generation, 0);
    for (int i = 0; i < TASK_DEVICES; i++) {
        store_relaxed(&a->devices[i].device, 0);
        store_relaxed(&a->devices[i].live_bytes, sum_zero(generation));
        store_relaxed(&a->devices[i].peak_bytes, sum_tag(generation));
        store_relaxed(&a->devices[i].pool_used_bytes, ABSENT);
        store_relaxed(&a->devices[i].pool_total_bytes, ABSENT);
    }
    store_relaxed(&a->oom.count, 0);
    store_release(&a->generation, generation);
}

/* The task's figures on a device, added at its first allocation there. NULL: the task does not run,
 * or uses more than TASK_DEVICES devices. */
static struct task_device *device_of_task(task_handle task, uint32_t device)
{
    struct gpu_account *a = account_of(task);
    struct task_device *d = a ? find_device(a, device) : NULL;
    if (d || !lineage_runs(task)) return d;
    pthread_mutex_lock(&gpu.mutex);
    /* ended meanwhile: the account may belong to the next task of the slot */
    if (!lineage_runs(task)) {
        pthread_mutex_unlock(&gpu.mutex);
        return NULL;
    }
    a = &gpu.accounts[handle_slot(task)];
    if (a->generation != handle_generation(task)) open_account(a, handle_generation(task));
    d = find_device(a, device);
    for (int i = 0; i < TASK_DEVICES && !d; i++)
        if (!a->devices[i].device)
            store_release(&a->devices[i].device, device + 1), d = &a->devices[i];
    pthread_mutex_unlock(&gpu.mutex);
    if (!d) add_relaxed(&gpu.unfollowed, 1);
    return d;
}

int gpu_add_block(task_handle task, uint32_t device, uint64_t bytes)
{
    if (device > GPU_PINNED) {
        add_relaxed(&gpu.unfollowed, 1);
        return 0;
    }
    struct device_fields *f = &gpu.devices[device].fields;
    word live = add_relaxed(&f->live_bytes, bytes) + bytes;
    int raised = live > load_relaxed(&f->peak_bytes);
    if (raised) max_relaxed(&f->peak_bytes, live);
    add_relaxed(&f->alloc_count, 1);
    if (!load_relaxed(&f->present)) store_release(&f->present, 1);
    for (; is_somebody(task); task = lineage_parent(task)) {
        struct task_device *d = device_of_task(task, device);
        if (!d || !sum_add(&d->live_bytes, handle_generation(task), (int64_t)bytes)) continue;
        int64_t own = sum_value(load_relaxed(&d->live_bytes));
        if (own > 0 && peak_raise(&d->peak_bytes, handle_generation(task), (uint64_t)own))
            raised = 1;
    }
    return raised;
}

void gpu_remove_block(task_handle task, uint32_t device, uint64_t bytes)
{
    if (device > GPU_PINNED) return;
    add_relaxed(&gpu.devices[device].fields.live_bytes, -bytes);
    for (; is_somebody(task); task = lineage_parent(task)) {
        struct gpu_account *a = account_of(task);
        struct task_device *d = a ? find_device(a, device) : NULL;
        if (d) sum_add(&d->live_bytes, handle_generation(task), -(int64_t)bytes);
    }
}

void gpu_note_pool(task_handle task, uint32_t device, const struct gpu_pool *pool, int raised)
{
    if (device >= DEVICE_COUNT) return;
    struct device_fields *f = &gpu.devices[device].fields;
    store_relaxed(&f->pool_used_bytes, pool->used_bytes);
    store_relaxed(&f->pool_total_bytes, pool->total_bytes);
    store_relaxed(&f->pool_limit_bytes, pool->limit_bytes);
    store_relaxed(&f->unseen_bytes, pool->unseen_bytes);
    for (; raised && is_somebody(task); task = lineage_parent(task)) {
        struct gpu_account *a = account_of(task);
        struct task_device *d = a ? find_device(a, device) : NULL;
        /* the allocation did not raise this task's peak */
        if (!d
            || (int64_t)(load_relaxed(&d->peak_bytes) & SUM_MASK)
                   > sum_value(load_relaxed(&d->live_bytes)))
            continue;
        store_relaxed(&d->pool_used_bytes, pool->used_bytes);
        store_relaxed(&d->pool_total_bytes, pool->total_bytes);
    }
}

static uint64_t live_of(const struct task_device *d)
{
    int64_t live = sum_value(load_relaxed(&d->live_bytes));
    return live < 0 ? 0 : (uint64_t)live;
}

void gpu_note_oom(task_handle task, uint32_t device, uint64_t requested_bytes,
                  const struct gpu_pool *pool)
{
    add_relaxed(&gpu.ooms, 1);
    if (device > GPU_PINNED) return;
    for (; is_somebody(task); task = lineage_parent(task)) {
        struct task_device *d = device_of_task(task, device);
        struct gpu_account *a = account_of(task);
        if (!d || !a) continue;
        store_relaxed(&a->oom.device, device);
        store_relaxed(&a->oom.requested_bytes, requested_bytes);
        store_relaxed(&a->oom.live_bytes, live_of(d));
        store_relaxed(&a->oom.pool_used_bytes, pool->used_bytes);
        store_relaxed(&a->oom.pool_total_bytes, pool->total_bytes);
        store_relaxed(&a->oom.pool_limit_bytes, pool->limit_bytes);
        add_relaxed(&a->oom.count, 1);
    }
}

/* -- tasks -- */

void gpu_task_now(task_handle task, struct gpu_figures *f)
{
    const word hook = load_relaxed(&gpu.hook);
    f->known = f->pinned_known = f->has_live_bytes = 0;
    f->oom.count = 0;
    if (hook == GPU_HOOK_NONE) return; /* no CuPy: all that other tasks pay */
    memset(f->devices, 0, sizeof f->devices);
    f->known = hook == GPU_HOOK_ON;
    f->pinned_known = f->known && load_relaxed(&gpu.pinned_seen);
    struct gpu_account *a = account_of(task);
    if (!a) return;
    for (int i = 0; i < TASK_DEVICES; i++) {
        const struct task_device *d = &a->devices[i];
        struct task_device *to = &f->devices[i];
        to->device = load_acquire(&d->device);
        to->live_bytes = live_of(d);
        to->peak_bytes = load_relaxed(&d->peak_bytes) & SUM_MASK;
        to->pool_used_bytes = load_relaxed(&d->pool_used_bytes);
        to->pool_total_bytes = load_relaxed(&d->pool_total_bytes);
        if (to->device && to->live_bytes) f->has_live_bytes = 1;
    }
    for (size_t i = 0; i < sizeof f->oom / sizeof(word); i++)
        ((word *)&f->oom)[i] = load_relaxed((const word *)&a->oom + i);
}

void gpu_task_end(task_handle task, struct gpu_figures *f)
{
    gpu_task_now(task, f);
    if (load_relaxed(&gpu.hook) == GPU_HOOK_NONE) return;
    struct gpu_account *a = account_of(task);
    if (a) store_release(&a->generation, 0);
}

/* -- devices -- */

void gpu_note_hook(enum gpu_hook state, int pinned)
{
    store_relaxed(&gpu.hook, state);
    store_relaxed(&gpu.pinned_seen, (word)pinned);
}

void gpu_note_unfollowed(void) { add_relaxed(&gpu.unfollowed, 1); }

void gpu_note_nvml(enum nvml_state state) { store_relaxed(&gpu.nvml, state); }

int gpu_is_used(uint32_t device)
{
    return device < DEVICE_COUNT && load_acquire(&gpu.devices[device].fields.present) == 1;
}

static void set_text(char *to, size_t size, const char *text)
{
    word padded[16] = { 0 };
    _Static_assert(sizeof(((struct device *)0)->name) <= sizeof padded
                       && sizeof(((struct device *)0)->uuid) <= sizeof padded,
                   "texts fit");
    if (!text) return;
    memcpy(padded, text, text_clip(text, strlen(text), size - 1));
    copy_release((word *)to, padded, size / sizeof(word));
}

void gpu_identify(uint32_t device, const char *name, const char *uuid, uint64_t total_bytes)
{
    if (device >= DEVICE_COUNT) return;
    struct device *d = &gpu.devices[device];
    set_text(d->name, sizeof d->name, name);
    set_text(d->uuid, sizeof d->uuid, uuid);
    store_relaxed(&d->fields.total_bytes, total_bytes);
}

/* Raises a maximum that is ABSENT until the first known value. */
static void raise_known_max(word *most, uint64_t value)
{
    if (value != ABSENT && (load_relaxed(most) == ABSENT || load_relaxed(most) < value))
        store_relaxed(most, value);
}

void gpu_note_driver(uint32_t device, const struct gpu_driver *reading)
{
    if (device >= DEVICE_COUNT) return;
    struct device_fields *f = &gpu.devices[device].fields;
    store_relaxed(&f->used_bytes, reading->used_bytes);
    raise_known_max(&f->used_max_bytes, reading->used_bytes);
    if (reading->total_bytes != ABSENT) store_relaxed(&f->total_bytes, reading->total_bytes);
    store_relaxed(&f->process_bytes, reading->process_bytes);
    raise_known_max(&f->process_max_bytes, reading->process_bytes);
    store_relaxed(&f->utilisation_percent, reading->utilisation_percent);
    store_relaxed(&f->rmm_bytes, reading->rmm_bytes);
    store_relaxed(&f->rmm_peak_bytes, reading->rmm_peak_bytes);
    store_relaxed(&f->read_ns, now_ns());
}

void gpu_publish(struct board *b)
{
    const word hook = load_relaxed(&gpu.hook);
    store_relaxed(&b->live->gpu_hook, hook);
    store_relaxed(&b->live->nvml_state, load_relaxed(&gpu.nvml));
    if (hook == GPU_HOOK_NONE) return;
    const struct device_fields *pinned = &gpu.devices[GPU_PINNED].fields;
    const int seen = load_relaxed(&gpu.pinned_seen) != 0;
    store_relaxed(&b->live->pinned_bytes, seen ? load_relaxed(&pinned->live_bytes) : ABSENT);
    store_relaxed(&b->live->pinned_peak_bytes, seen ? load_relaxed(&pinned->peak_bytes) : ABSENT);
    store_relaxed(&b->live->gpu_unfollowed, load_relaxed(&gpu.unfollowed));
    store_relaxed(&b->live->gpu_ooms, load_relaxed(&gpu.ooms));
    for (uint32_t i = 0; i < DEVICE_COUNT; i++) {
        if (!gpu_is_used(i)) continue;
        const word *from = (const word *)&gpu.devices[i];
        word *to = (word *)(b->devices + i * DEVICE_BYTES);
        /* backwards, so that `present` comes last */
        for (size_t k = sizeof(struct device) / sizeof(word); k-- > 0;)
            store_release(to + k, load_relaxed(from + k));
    }
    if (!load_acquire(&b->live->room_for_tasks)) return;
    for (uint32_t i = 0; i < lineage_slots_used(); i++) {
        task_handle task = lineage_task_in(i);
        struct gpu_figures f;
        if (!is_somebody(task)) continue;
        gpu_task_now(task, &f);
        struct slot *slot = &b->slots[i];
        store_release(&slot->fields.gpu_serial, 0);
        if (!f.known) continue;
        copy_release((word *)slot->gpu, (const word *)f.devices,
                     TASK_DEVICES * (sizeof *f.devices / sizeof(word)));
        store_release(&slot->fields.gpu_serial, handle_serial(task));
    }
}

/* -- start, fork -- */

void gpu_open(void)
{
    store_relaxed(&gpu.unfollowed, 0);
    store_relaxed(&gpu.ooms, 0);
    for (uint32_t i = 0; i <= GPU_PINNED; i++) {
        struct device_fields *f = &gpu.devices[i].fields;
        store_relaxed(&f->peak_bytes, load_relaxed(&f->live_bytes));
        store_relaxed(&f->alloc_count, 0);
        store_relaxed(&f->used_max_bytes, ABSENT);
        store_relaxed(&f->process_max_bytes, ABSENT);
        if (load_relaxed(&f->present)) continue;
        word *unknown[] = { &f->pool_used_bytes, &f->pool_total_bytes,    &f->pool_limit_bytes,
                            &f->unseen_bytes,    &f->total_bytes,         &f->used_bytes,
                            &f->process_bytes,   &f->utilisation_percent, &f->read_ns,
                            &f->rmm_bytes,       &f->rmm_peak_bytes };
        for (size_t k = 0; k < sizeof unknown / sizeof *unknown; k++)
            store_relaxed(unknown[k], ABSENT);
    }
}

void gpu_fork_lock(void) { pthread_mutex_lock(&gpu.mutex); }
void gpu_fork_unlock(void) { pthread_mutex_unlock(&gpu.mutex); }

void gpu_reset_in_child(void)
{
    pthread_mutex_init(&gpu.mutex, NULL);
    this_thread.gpu_depth = 0;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) gpu.accounts[i].generation = 0;
    /* the child has not allocated on any device */
    for (uint32_t i = 0; i < DEVICE_COUNT; i++) gpu.devices[i].fields.present = 0;
}
