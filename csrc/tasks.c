#define _GNU_SOURCE
#include "tasks.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "accounts.h"
#include "alloc.h"
#include "clock.h"
#include "gpu.h"

#define GAP_COUNTED_NS 50000

static uint32_t thread_id(void)
{
    if (!this_thread.id) this_thread.id = (uint32_t)syscall(SYS_gettid);
    return this_thread.id;
}

static void count(word *counter) { store_relaxed(counter, load_relaxed(counter) + 1); }

/* Odd while a boundary is under way, so that the sampler never credits a mark to the wrong side of it. */
static void turn_boundary(struct tasks *t) { store_release(&t->board->live->boundary, t->board->live->boundary + 1); }

static void raise_peak(word *peak, uint64_t value)
{
    if (value != ABSENT && (load_relaxed(peak) == ABSENT || load_relaxed(peak) < value)) store_relaxed(peak, value);
}

/* Read the window's peak, give it to all running tasks, start a new window. Returns the resident size. */
static uint64_t fold_window(struct tasks *t)
{
    struct board_live *live = t->board->live;
    struct rss_window w;
    rss_window_take(&t->rss, &w);
    if (w.reset) count(&live->resets);
    if (w.gap_ns > GAP_COUNTED_NS) count(&live->reset_gaps);
    store_relaxed(&live->rss_source, t->rss.source);
    if (t->rss.reopened) add_relaxed(&live->files_reopened, t->rss.reopened), t->rss.reopened = 0;

    uint64_t peak = w.peak_bytes;
    if (w.source == RSS_SAMPLED && load_acquire(&live->window_boundary) == live->boundary - 1) {
        uint64_t sampled = load_acquire(&live->window_peak_bytes);
        if (sampled != ABSENT && (peak == ABSENT || sampled > peak)) peak = sampled;
    }
    int ambiguous = t->accounting && lineage_was_ambiguous(); /* native threads allocated while several tasks ran: any of these */
    for (word i = 0; i < t->running; i++) {
        struct task_fields *task = &t->board->slots[t->active[i]].task;
        if (ambiguous) store_relaxed(&task->attribution, ATTRIBUTION_SHARED);
        raise_peak(&task->rss_peak_bytes, peak);
        if (w.source == RSS_SAMPLED) store_relaxed(&task->rss_source, RSS_SAMPLED);
    }
    if (peak != ABSENT) max_relaxed(&live->rss_max_bytes, peak);
    if (w.rss_bytes != ABSENT) store_relaxed(&live->rss_bytes, w.rss_bytes);
    return w.rss_bytes;
}

static void note_overlap(struct tasks *t)
{
    for (word i = 0; i < t->running; i++) {
        word *overlap = &t->board->slots[t->active[i]].task.overlap;
        if (load_relaxed(overlap) < t->lanes - 1) store_relaxed(overlap, t->lanes - 1);
    }
}

static char *append(char *to, struct text text)
{
    if (text.len) memcpy(to, text.at, text.len);
    return to + text.len;
}

static void fill_slot(struct tasks *t, struct slot *slot, const struct task_begin *b, uint64_t parent, uint64_t rss)
{
    struct text name = { b->name.at, text_clip(b->name.at, b->name.len, TASK_NAME_MOST) };
    struct text key = { b->key.at, text_clip(b->key.at, b->key.len, TASK_KEY_MOST) };
    struct text inputs = b->inputs;
    uint64_t omitted = b->inputs_omitted;
    if (inputs.len > SLOT_TEXT_BYTES - TASK_NAME_MOST - TASK_KEY_MOST) {
        inputs.len = 0;
        omitted = b->input_count;
    }
    struct board_live *live = t->board->live;
    const struct task_fields f = {
        .serial = live->tasks_begun + 1, .parent = parent, .thread = thread_id(), .state = TASK_RUNNING, .attribution = b->attribution, .worker = b->worker,
        .rss_before_bytes = rss, .rss_peak_bytes = rss, .rss_source = t->rss.source, .input_bytes = b->input_bytes,
        .inputs_omitted = omitted, .output_bytes = ABSENT, .alloc_peak_bytes = ABSENT, .alloc_end_bytes = ABSENT, .alloc_count = ABSENT, .gc_freed_bytes = ABSENT,
        .pinned_peak_bytes = ABSENT, .pinned_end_bytes = ABSENT,
        .name_len = name.len, .key_len = key.len, .inputs_len = inputs.len,
        .start_ns = now_ns(),
    };
    append(append(append(t->text, name), key), inputs);
    store_release(&slot->turn, slot->turn + 1);
    copy_release((word *)&slot->task, (const word *)&f, sizeof f / sizeof(word));
    copy_release((word *)slot->text, (const word *)t->text, (name.len + key.len + inputs.len + 7) / sizeof(word));
    store_release(&slot->turn, slot->turn + 1);
    store_relaxed(&live->tasks_begun, f.serial);
}

/* Who owns what native threads allocate from here on. */
static void note_owners(struct tasks *t)
{
    if (!t->accounting) return;
    uint32_t lanes = 0, innermost = 0;
    for (word i = 0; i < t->running; i++) {
        if (t->lane[t->active[i]].detached) continue;
        innermost = t->active[i];
        lanes += t->lane[innermost].leads;
    }
    lineage_running(lanes, lineage_handle(innermost, lanes ? t->board->slots[innermost].task.serial : 0));
}

task_handle tasks_begin(struct tasks *t, const struct task_begin *begin)
{
    task_handle task = NOBODY;
    uint32_t thread = thread_id();
    pthread_mutex_lock(&t->mutex);
    if (!t->board) goto out;
    if (t->vacant_count == 0 || !t->board->slots) {
        count(&t->board->live->tasks_dropped);
        goto out;
    }
    turn_boundary(t);
    uint64_t rss = fold_window(t);
    uint64_t parent = 0;
    uint32_t parent_index = 0;
    for (word i = 0; i < t->running; i++) /* begun later stands later: the last of this thread is the innermost */
        if (!begin->detached && t->lane[t->active[i]].thread == thread)
            parent_index = t->active[i], parent = t->board->slots[parent_index].task.serial;
    uint32_t index = t->vacant[--t->vacant_count];
    struct slot *slot = &t->board->slots[index];
    fill_slot(t, slot, begin, parent, rss);
    t->lane[index].thread = begin->detached ? 0 : thread;
    t->lane[index].detached = begin->detached != 0;
    t->lane[index].leads = parent == 0;
    if (parent == 0) t->lanes++;
    t->active[t->running] = (uint16_t)index;
    store_seq_cst(&t->running, t->running + 1); /* before the look at the sampler's `idle` */
    store_relaxed(&t->board->live->running, t->running);
    note_overlap(t);
    task = lineage_handle(index, slot->task.serial);
    if (!begin->detached) accounts_task_begin(task, lineage_handle(parent_index, parent));
    note_owners(t);
    turn_boundary(t);
out:
    pthread_mutex_unlock(&t->mutex);
    return task;
}

static void leave_lane(struct tasks *t, uint32_t index)
{
    word i = 0, kept = 0;
    int heir = !t->lane[index].leads;
    for (; i < t->running; i++) {
        uint16_t other = t->active[i];
        if (other == index) continue;
        t->active[kept++] = other; /* order of begin is kept */
        if (!heir && !t->lane[index].detached && t->lane[other].thread == t->lane[index].thread) heir = t->lane[other].leads = 1;
    }
    if (!heir) t->lanes--;
    store_relaxed(&t->running, kept);
    store_relaxed(&t->board->live->running, kept);
}

/* The task's own memory, host and device; `texts` is where JSON about devices goes, GPU_TEXT_BYTES of it. */
static void take_figures(struct tasks *t, uint32_t index, const struct task_end *end, struct task_fields *done, char *texts)
{
    struct account_figures host = { ABSENT, ABSENT, ABSENT, 0 };
    struct gpu_figures device = { 0 };
    if (!t->lane[index].detached) {
        task_handle task = lineage_handle(index, done->serial);
        gpu_task_end(task, &device);
        accounts_task_end(task, device.leaves, &host);
        if (t->accounting && !alloc_holds()) store_relaxed(&t->board->live->alloc_state, ALLOC_UNAVAILABLE);
        /* Calls have gone by unseen, or none were looked at: no number is better than a wrong one. */
        if (!t->accounting || !alloc_holds()) host = (struct account_figures){ ABSENT, ABSENT, ABSENT, 0 };
    }
    done->alloc_peak_bytes = host.peak_bytes;
    done->alloc_end_bytes = host.live_bytes;
    done->alloc_count = host.count;
    if (end->shared || host.inexact) done->attribution = ATTRIBUTION_SHARED;
    if (device.known) {
        done->pinned_peak_bytes = done->pinned_end_bytes = device.pinned_known ? 0 : ABSENT;
        for (int i = 0; i < TASK_DEVICES; i++)
            if (device.devices[i].device == GPU_PINNED + 1)
                done->pinned_peak_bytes = device.devices[i].peak_bytes, done->pinned_end_bytes = device.devices[i].live_bytes;
        done->gpu_len = gpu_devices_json(device.devices, texts, GPU_TEXT_BYTES);
    }
    if (end->out_of_memory && !device.oom.count) {
        device.oom.count = 1;
        device.oom.device = OOM_HOST;
        device.oom.requested_bytes = end->requested_bytes;
        device.oom.live_bytes = host.live_bytes;
        device.oom.pool_used_bytes = device.oom.pool_total_bytes = device.oom.pool_limit_bytes = ABSENT;
    }
    done->oom_len = gpu_oom_json(&device, texts + done->gpu_len, GPU_TEXT_BYTES - done->gpu_len);
}

/* With the mutex held. */
static void end_task(struct tasks *t, uint32_t index, uint64_t end_ns, const struct task_end *end)
{
    struct slot *slot = &t->board->slots[index];
    turn_boundary(t);
    fold_window(t);
    /* The slot says `running` until the record is out, so that a kill in between finds one of the two. */
    struct task_fields done = slot->task;
    if (done.name_len > TASK_NAME_MOST || done.key_len > TASK_KEY_MOST || done.inputs_len > SLOT_TEXT_BYTES - TASK_NAME_MOST - TASK_KEY_MOST)
        done.name_len = done.key_len = done.inputs_len = 0; /* somebody wrote into the file: lengths are used as such below */
    uint64_t text = done.name_len + done.key_len + done.inputs_len;
    memcpy(t->text, slot->text, text);
    done.output_len = text + end->output.len <= SLOT_TEXT_BYTES ? end->output.len : 0;
    append(t->text + text, (struct text){ end->output.at, done.output_len });
    take_figures(t, index, end, &done, t->text + text + done.output_len);
    done.seq = ++t->seq;
    done.state = end->state;
    done.duration_ns = end_ns - done.start_ns;
    done.output_bytes = end->output_bytes;
    done.gc_freed_bytes = end->gc_freed_bytes;
    board_publish_record(t->board, &done, t->text);
    store_release(&slot->turn, slot->turn + 1);
    store_release(&slot->task.state, TASK_NONE);
    store_release(&slot->turn, slot->turn + 1);
    leave_lane(t, index);
    note_owners(t);
    t->vacant[t->vacant_count++] = (uint16_t)index;
    turn_boundary(t);
}

void tasks_end(struct tasks *t, task_handle task, const struct task_end *end)
{
    uint64_t end_ns = now_ns();
    uint32_t index = handle_slot(task), thread = thread_id();
    pthread_mutex_lock(&t->mutex);
    if (t->board) {
        const struct task_fields *f = t->board->slots ? &t->board->slots[index].task : NULL; /* NULL: of an earlier board */
        if (!f || f->state != TASK_RUNNING || !same_task(task, lineage_handle(index, f->serial))) {
            count(&t->board->live->ends_unmatched);
        } else {
            if (t->lane[index].thread != thread && !t->lane[index].detached) count(&t->board->live->ends_elsewhere);
            end_task(t, index, end_ns, end);
        }
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_thread_exit(struct tasks *t)
{
    const struct task_end abandoned = { .state = TASK_CANCELLED, .output_bytes = ABSENT, .gc_freed_bytes = ABSENT };
    uint64_t end_ns = now_ns();
    uint32_t thread = thread_id();
    pthread_mutex_lock(&t->mutex);
    for (word i = t->board ? t->running : 0; i-- > 0;) {
        if (t->lane[t->active[i]].thread != thread) continue;
        count(&t->board->live->ends_missing);
        end_task(t, t->active[i], end_ns, &abandoned);
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_open(struct tasks *t, struct board *b, int accounting)
{
    pthread_mutex_lock(&t->mutex);
    t->accounting = accounting;
    t->lanes = 0;
    store_relaxed(&t->running, 0);
    t->vacant_count = SLOT_COUNT;
    t->seq = 0;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) t->vacant[i] = (uint16_t)(SLOT_COUNT - 1 - i); /* low slots first */
    t->board = b;
    store_relaxed(&b->live->rss_source, t->rss.source);
    pthread_mutex_unlock(&t->mutex);
}

void tasks_close(struct tasks *t, int leave_running)
{
    const struct task_end cut_off = { .state = TASK_CANCELLED, .output_bytes = ABSENT, .gc_freed_bytes = ABSENT };
    uint64_t end_ns = now_ns();
    pthread_mutex_lock(&t->mutex);
    if (t->board) {
        turn_boundary(t);
        fold_window(t);
        turn_boundary(t);
        while (!leave_running && t->running) end_task(t, t->active[t->running - 1], end_ns, &cut_off);
        store_relaxed(&t->running, 0);
        t->board = NULL;
        rss_close(&t->rss);
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_abandon(struct tasks *t)
{
    this_thread.id = 0;
    pthread_mutex_init(&t->mutex, NULL);
    if (!t->board) return;
    rss_close(&t->rss);
    t->board = NULL;
    t->running = 0;
}
