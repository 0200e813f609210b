#define _GNU_SOURCE
#include "tasks.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "accounts.h"
#include "alloc.h"
#include "clock.h"
#include "foreign.h"
#include "gpu.h"

_Static_assert(TASK_NAME_MOST + TASK_KEY_MOST + TASK_INPUTS_MOST + TASK_OPERATION_MOST
                   <= SLOT_TEXT_BYTES,
               "all texts but the chain and the parameters fit a slot");

/* Longer gaps between reading and resetting the mark are counted: they may hide a peak. */
#define GAP_COUNTED_NS 50000

static uint32_t thread_id(void)
{
    if (!this_thread.id) this_thread.id = (uint32_t)syscall(SYS_gettid);
    return this_thread.id;
}

/* The first reason stays. */
static void mark_shared(struct task_fields *task, enum attribution_reason reason)
{
    if (reason == REASON_NONE || load_relaxed(&task->attribution) == ATTRIBUTION_SHARED) return;
    store_relaxed(&task->attribution_reason, reason);
    store_relaxed(&task->attribution, ATTRIBUTION_SHARED);
}

static void increment(word *counter) { store_relaxed(counter, load_relaxed(counter) + 1); }

/* Called at the start and at the end of a boundary. The count is odd while a boundary is under way,
 * so that the sampler never credits a mark to the wrong window. */
static void count_boundary(struct tasks *t)
{
    store_release(&t->board->live->boundary, t->board->live->boundary + 1);
}

static void raise_peak(word *peak, uint64_t value)
{
    if (value != ABSENT && (load_relaxed(peak) == ABSENT || load_relaxed(peak) < value))
        store_relaxed(peak, value);
}

/* Reads the window's peak, raises the peaks of all running tasks to it, and starts a new window. */
static struct rss_window end_window(struct tasks *t, int at_end, struct hold *h)
{
    struct board_live *live = t->board->live;
    struct rss_window w;
    /* before the mark is read: rss_window_end would otherwise read it twice */
    if (t->reset_likely[at_end]) hold_release(h);
    rss_window_end(&t->rss, &w, h);
    t->reset_likely[at_end] = w.reset;
    if (w.reset) increment(&live->resets);
    if (w.gap_ns > GAP_COUNTED_NS) increment(&live->reset_gaps);
    store_relaxed(&live->rss_source, t->rss.source);
    if (t->rss.reopened) add_relaxed(&live->files_reopened, t->rss.reopened), t->rss.reopened = 0;

    uint64_t peak = w.peak_bytes;
    if (w.source == RSS_SAMPLED && load_acquire(&live->window_boundary) == live->boundary - 1) {
        uint64_t sampled = load_acquire(&live->window_peak_bytes);
        if (sampled != ABSENT && (peak == ABSENT || sampled > peak)) peak = sampled;
    }
    t->unaccounted = unaccounted_end_window(w.data_bytes, live->boundary - 1);
    for (word i = 0; i < t->running; i++) {
        struct task_fields *task = &t->board->slots[t->active[i]].task;
        unaccounted_raise(&t->slot_info[t->active[i]].unaccounted, &t->unaccounted);
        raise_peak(&task->rss_peak_bytes, peak);
        if (w.source == RSS_SAMPLED) store_relaxed(&task->rss_source, RSS_SAMPLED);
    }
    if (peak != ABSENT) max_relaxed(&live->rss_max_bytes, peak);
    if (w.rss_bytes != ABSENT) store_relaxed(&live->rss_bytes, w.rss_bytes);
    return w;
}

static void note_overlap(struct tasks *t)
{
    for (word i = 0; i < t->running; i++) {
        word *overlap = &t->board->slots[t->active[i]].task.overlap;
        if (load_relaxed(overlap) < t->busy_threads - 1)
            store_relaxed(overlap, t->busy_threads - 1);
    }
}

static char *append(char *to, struct text text)
{
    if (text.len) memcpy(to, text.at, text.len);
    return to + text.len;
}

static void fill_slot(struct tasks *t, struct slot *slot, const struct task_begin *b,
                      uint64_t parent, uint64_t rss)
{
    struct text name = { b->name.at, text_clip(b->name.at, b->name.len, TASK_NAME_MOST) };
    struct text key = { b->key.at, text_clip(b->key.at, b->key.len, TASK_KEY_MOST) };
    struct text operation = { b->operation.at,
                              text_clip(b->operation.at, b->operation.len, TASK_OPERATION_MOST) };
    struct text inputs = b->inputs, chain = b->chain;
    uint64_t omitted = b->inputs_omitted;
    if (inputs.len > TASK_INPUTS_MOST) {
        inputs.len = 0;
        omitted = b->input_count;
    }
    struct text params = b->params, values = b->params_values;
    uint64_t bytes = name.len + key.len + inputs.len + operation.len;
    if (chain.len > TASK_CHAIN_MOST || bytes + chain.len > SLOT_TEXT_BYTES) chain.len = 0;
    bytes += chain.len;
    if (params.len > PARAMS_NAMES_MOST || values.len > PARAMS_VALUES_MOST
        || bytes + params.len + values.len > SLOT_TEXT_BYTES)
        params.len = values.len = 0;
    bytes += params.len + values.len;
    struct board_live *live = t->board->live;
    const struct task_fields f = {
        .serial = live->tasks_begun + 1,
        .parent = parent,
        .thread = thread_id(),
        .state = TASK_RUNNING,
        .attribution = b->reason ? ATTRIBUTION_SHARED : ATTRIBUTION_EXACT,
        .attribution_reason = b->reason,
        .worker = b->worker,
        .rss_before_bytes = rss,
        .rss_peak_bytes = rss,
        .rss_source = t->rss.source,
        .input_bytes = b->input_bytes,
        .inputs_omitted = omitted,
        .output_bytes = ABSENT,
        .alloc_peak_bytes = ABSENT,
        .alloc_end_bytes = ABSENT,
        .alloc_count = ABSENT,
        .gc_freed_bytes = ABSENT,
        .pinned_peak_bytes = ABSENT,
        .pinned_end_bytes = ABSENT,
        .page_faults = ABSENT,
        .major_page_faults = ABSENT,
        .start_ns = now_ns(),
    };
    char *after_chain =
        append(append(append(append(append(t->scratch, name), key), inputs), operation), chain);
    append(append(after_chain, params), values);
    store_release(&slot->fields.turn, slot->fields.turn + 1);
    store_release(&slot->fields.name_len, name.len);
    store_release(&slot->fields.key_len, key.len);
    store_release(&slot->fields.inputs_len, inputs.len);
    store_release(&slot->fields.operation_len, operation.len);
    store_release(&slot->fields.chain_len, chain.len);
    store_release(&slot->fields.params_len, params.len);
    store_release(&slot->fields.params_values_len, values.len);
    copy_release((word *)&slot->task, (const word *)&f, sizeof f / sizeof(word));
    copy_release((word *)slot->text, (const word *)t->scratch, (bytes + 7) / sizeof(word));
    store_release(&slot->fields.turn, slot->fields.turn + 1);
    store_relaxed(&live->tasks_begun, f.serial);
}

/* Tells lineage.h which task owns the allocations of native threads from here on. */
static void note_running(struct tasks *t)
{
    if (!t->accounting) return;
    uint32_t busy_threads = 0, innermost = 0;
    for (word i = 0; i < t->running; i++) {
        if (t->slot_info[t->active[i]].detached) continue;
        innermost = t->active[i];
        busy_threads += t->slot_info[innermost].counts_thread;
    }
    lineage_set_running(
        busy_threads,
        lineage_handle(innermost, busy_threads ? t->board->slots[innermost].task.serial : 0));
}

static void lock(struct tasks *t, struct hold *h)
{
    if (pthread_mutex_trylock(&t->mutex) == 0) return;
    hold_release(h);
    pthread_mutex_lock(&t->mutex);
}

task_handle tasks_begin(struct tasks *t, const struct task_begin *begin, struct hold *h)
{
    task_handle task = NOBODY;
    uint32_t thread = thread_id();
    lock(t, h);
    if (!t->board) goto out;
    if (t->vacant_count == 0 || !t->board->slots) {
        increment(&t->board->live->tasks_dropped);
        goto out;
    }
    count_boundary(t);
    const struct rss_window w = end_window(t, 0, h);
    uint64_t parent = 0;
    uint32_t parent_index = 0;
    /* in order of begin: the last task of this thread is the innermost */
    for (word i = 0; i < t->running; i++)
        if (!begin->detached && t->slot_info[t->active[i]].thread == thread)
            parent_index = t->active[i], parent = t->board->slots[parent_index].task.serial;
    uint32_t index = t->vacant[--t->vacant_count];
    struct slot *slot = &t->board->slots[index];
    fill_slot(t, slot, begin, parent, w.rss_bytes);
    t->slot_info[index].thread = begin->detached ? 0 : thread;
    t->slot_info[index].detached = begin->detached != 0;
    t->slot_info[index].counts_thread = parent == 0;
    t->slot_info[index].reason_detail = (struct text){ NULL, 0 };
    unaccounted_begin(&t->slot_info[index].unaccounted, &t->unaccounted);
    t->slot_info[index].faults = w.faults;
    t->slot_info[index].major_faults = w.major_faults;
    if (parent == 0) t->busy_threads++;
    t->active[t->running] = (uint16_t)index;
    store_seq_cst(&t->running, t->running + 1); /* before the load of the sampler's `idle` */
    store_relaxed(&t->board->live->running, t->running);
    note_overlap(t);
    task = lineage_handle(index, slot->task.serial);
    if (!begin->detached) accounts_task_begin(task, lineage_handle(parent_index, parent));
    note_running(t);
    count_boundary(t);
out:
    pthread_mutex_unlock(&t->mutex);
    return task;
}

/* The task counts its thread no more. Another task of the thread does so now, if there is one. */
static void stop_counting_thread(struct tasks *t, uint32_t index)
{
    if (!t->slot_info[index].counts_thread) return;
    t->slot_info[index].counts_thread = 0;
    for (word i = 0; i < t->running && !t->slot_info[index].detached; i++) {
        uint16_t other = t->active[i];
        if (other == index || t->slot_info[other].thread != t->slot_info[index].thread) continue;
        t->slot_info[other].counts_thread = 1;
        return;
    }
    t->busy_threads--;
}

static void remove_running(struct tasks *t, uint32_t index)
{
    word kept = 0;
    stop_counting_thread(t, index);
    for (word i = 0; i < t->running; i++)
        if (t->active[i] != index) t->active[kept++] = t->active[i];
    store_relaxed(&t->running, kept);
    store_relaxed(&t->board->live->running, kept);
}

/* The task's own memory, on the host and on devices. */
static void collect_figures(struct tasks *t, uint32_t index, const struct task_end *end,
                            struct record *r, struct hold *h)
{
    struct account_figures host = { ABSENT, ABSENT, ABSENT, 0 };
    struct gpu_figures device;
    device.known = device.has_live_bytes = 0;
    device.oom.count = 0;
    struct task_fields *done = &r->task;
    struct unaccounted_task ended = { 0 };
    int accounted = 0;
    if (!t->slot_info[index].detached) {
        task_handle task = lineage_handle(index, done->serial);
        accounted = 1;
        const uint64_t foreign = lineage_foreign_mask(task);
        if (foreign) { /* while the task runs, so that the objects keep their bits */
            lineage_note_foreign(lineage_nearest_running(lineage_parent(task)), foreign);
            ended.foreign_bytes = foreign_bytes_of(foreign, &ended.library);
        }
        gpu_task_end(task, &device);
        accounts_task_end(task, device.has_live_bytes, &host);
        if (t->accounting && !alloc_check_intact())
            store_relaxed(&t->board->live->alloc_state, ALLOC_UNAVAILABLE);
        /* Without accounting, or after calls that were not seen, the figures are unknown. */
        if (!t->accounting || !alloc_check_intact())
            host = (struct account_figures){ ABSENT, ABSENT, ABSENT, 0 };
    }
    done->alloc_peak_bytes = host.peak_bytes;
    done->alloc_end_bytes = host.live_bytes;
    done->alloc_count = host.count;
    mark_shared(done, end->reason);
    if (host.inexact) mark_shared(done, REASON_INNER_TASKS);
    if (accounted && host.peak_bytes != ABSENT) {
        ended.alone = done->overlap == 0 && done->parent == 0;
        ended.peak_bytes = host.peak_bytes;
        ended.count = host.count;
        struct text detail;
        const enum attribution_reason reason =
            unaccounted_reason(&t->slot_info[index].unaccounted, &ended, &t->rss, h, &detail);
        if (reason && done->attribution == ATTRIBUTION_EXACT)
            t->slot_info[index].reason_detail = detail;
        mark_shared(done, reason);
    }
    r->devices_known = device.known;
    r->device_count = 0;
    if (device.known) {
        done->pinned_peak_bytes = done->pinned_end_bytes = device.pinned_known ? 0 : ABSENT;
        for (int i = 0; i < TASK_DEVICES; i++) {
            const struct task_device *d = &device.devices[i];
            if (d->device == GPU_PINNED + 1)
                done->pinned_peak_bytes = d->peak_bytes, done->pinned_end_bytes = d->live_bytes;
            else if (d->device && d->device <= DEVICE_COUNT)
                r->devices[r->device_count++] = *d;
        }
    }
    r->oom.count = 0;
    if (device.oom.count) r->oom = device.oom;
    if (end->out_of_memory && !device.oom.count)
        r->oom = (struct task_oom){ .count = 1,
                                    .device = OOM_HOST,
                                    .requested_bytes = end->requested_bytes,
                                    .live_bytes = host.live_bytes,
                                    .pool_used_bytes = ABSENT,
                                    .pool_total_bytes = ABSENT,
                                    .pool_limit_bytes = ABSENT };
}

/* The length of the recurring part of a key. In "('sum-3fa9', 0, 1)" that is "('sum-3fa9'", in
 * "inc-8b3c" it is "inc-". */
static uint64_t prefix_len(struct text key)
{
    const char *end;
    if (key.len > 2 && key.at[0] == '(' && key.at[1] == '\'')
        end = memchr(key.at + 2, '\'', key.len - 2);
    else
        end = memrchr(key.at, '-', key.len);
    return end ? (uint64_t)(end - key.at) + 1 : 0;
}

/* Texts that differ from task to task take no place among the interned ones. */
static int differs(enum task_text kind)
{
    return kind == TEXT_key_rest || kind == TEXT_params_values;
}

/* The texts of the slot and of the output; interned ones by their numbers (texts.h). */
static void collect_texts(struct tasks *t, uint32_t index, const struct task_end *end,
                          struct record *r)
{
    const struct slot *slot = &t->board->slots[index];
    uint64_t name = slot->fields.name_len, key = slot->fields.key_len,
             inputs = slot->fields.inputs_len, operation = slot->fields.operation_len,
             chain = slot->fields.chain_len, params = slot->fields.params_len,
             values = slot->fields.params_values_len;
    /* somebody wrote into the file: such lengths would be read */
    if (name > TASK_NAME_MOST || key > TASK_KEY_MOST || inputs > TASK_INPUTS_MOST
        || operation > TASK_OPERATION_MOST || chain > TASK_CHAIN_MOST || params > PARAMS_NAMES_MOST
        || values > PARAMS_VALUES_MOST)
        name = key = inputs = operation = chain = params = values = 0;
    const struct text whole_key = { slot->text + name, key };
    const char *after_inputs = slot->text + name + key + inputs,
               *after_chain = after_inputs + operation + chain;
    const uint64_t prefix = prefix_len(whole_key);
    r->texts[TEXT_name] = (struct text){ slot->text, name };
    r->texts[TEXT_key_prefix] = (struct text){ whole_key.at, prefix };
    r->texts[TEXT_key_rest] = (struct text){ whole_key.at + prefix, key - prefix };
    r->texts[TEXT_inputs] = (struct text){ slot->text + name + key, inputs };
    if (end->inputs.len && end->inputs.len <= TASK_INPUTS_MOST) {
        r->texts[TEXT_inputs] = end->inputs;
        r->task.input_bytes = end->input_bytes;
        r->task.inputs_omitted = end->inputs_omitted;
    }
    r->texts[TEXT_operation] = (struct text){ after_inputs, operation };
    r->texts[TEXT_chain] = (struct text){ after_inputs + operation, chain };
    r->texts[TEXT_params] = (struct text){ after_chain, params };
    r->texts[TEXT_params_values] = (struct text){ after_chain + params, values };
    r->texts[TEXT_output] = end->output;
    r->texts[TEXT_reason_detail] = t->slot_info[index].reason_detail;
    uint64_t inline_bytes = 0;
    for (enum task_text i = 0; i < TEXT_COUNT; i++) {
        r->numbers[i] = differs(i) ? ABSENT : texts_intern(&t->texts, i, r->texts[i]);
        if (r->numbers[i] == ABSENT) inline_bytes += r->texts[i].len;
    }
    /* the others fit: TASK_INPUTS_MOST leaves room for them */
    static const enum task_text dispensable[] = { TEXT_output,        TEXT_chain,
                                                  TEXT_params_values, TEXT_params,
                                                  TEXT_reason_detail, TEXT_operation };
    for (int i = 0; inline_bytes > FRAME_TEXTS_MOST && i < 6; i++) {
        struct text *text = &r->texts[dispensable[i]];
        if (r->numbers[dispensable[i]] == ABSENT) inline_bytes -= text->len, text->len = 0;
    }
}

/* Called with the mutex held. */
static void end_task(struct tasks *t, uint32_t index, uint64_t end_ns, const struct task_end *end,
                     struct hold *h)
{
    struct slot *slot = &t->board->slots[index];
    struct record *r = &t->record;
    count_boundary(t);
    const struct rss_window w = end_window(t, 1, h);
    /* The slot says `running` until the record is published: after a kill in between, a reader
     * finds the slot or the record. */
    r->task = slot->task;
    collect_figures(t, index, end, r, h);
    collect_texts(t, index, end, r);
    r->task.seq = ++t->seq;
    r->task.state = end->state;
    r->task.duration_ns = end_ns - r->task.start_ns;
    r->task.output_bytes = end->output_bytes;
    r->task.gc_freed_bytes = end->gc_freed_bytes;
    /* Page faults are counted per thread: unknown for coroutines, whose thread is 0 here, and for
     * tasks that another thread ends. */
    if (t->slot_info[index].thread == thread_id() && t->slot_info[index].faults != ABSENT
        && w.faults != ABSENT) {
        r->task.page_faults = w.faults - t->slot_info[index].faults;
        r->task.major_page_faults = w.major_faults - t->slot_info[index].major_faults;
    }
    board_publish_frame(t->board, t->scratch, frame_pack(r, t->scratch), r->task.seq);
    totals_add(&t->totals, r);
    store_release(&slot->fields.turn, slot->fields.turn + 1);
    store_release(&slot->task.state, TASK_NONE);
    store_release(&slot->fields.turn, slot->fields.turn + 1);
    remove_running(t, index);
    note_running(t);
    t->vacant[t->vacant_count++] = (uint16_t)index;
    count_boundary(t);
}

/* Whether this task runs on the present board. Called with the mutex held. */
static int is_running(const struct tasks *t, task_handle task)
{
    uint32_t index = handle_slot(task);
    /* without slots, the task is of an earlier board */
    if (!t->board || !t->board->slots) return 0;
    const struct task_fields *f = &t->board->slots[index].task;
    return f->state == TASK_RUNNING && same_task(task, lineage_handle(index, f->serial));
}

void tasks_end(struct tasks *t, task_handle task, const struct task_end *end, struct hold *h)
{
    uint64_t end_ns = now_ns();
    uint32_t index = handle_slot(task), thread = thread_id();
    lock(t, h);
    if (is_running(t, task)) {
        if (t->slot_info[index].thread != thread && !t->slot_info[index].detached)
            increment(&t->board->live->ends_elsewhere);
        end_task(t, index, end_ns, end, h);
    } else if (t->board) {
        increment(&t->board->live->ends_unmatched);
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_detach(struct tasks *t, task_handle task, struct hold *h)
{
    uint32_t index = handle_slot(task);
    struct account_figures host;
    struct gpu_figures device;
    lock(t, h);
    if (is_running(t, task) && !t->slot_info[index].detached) {
        struct slot *slot = &t->board->slots[index];
        mark_shared(&slot->task, REASON_COROUTINE);
        gpu_task_end(task, &device);
        /* 1: tasks inside this one may still run, and their memory passes on to its parent */
        accounts_task_end(task, 1, &host);
        /* no figures for readers of the running task */
        store_release(&slot->fields.alloc_serial, 0);
        store_release(&slot->fields.gpu_serial, 0);
        stop_counting_thread(t, index);
        t->slot_info[index].detached = 1;
        t->slot_info[index].thread = 0;
        t->slot_info[index].counts_thread = 1;
        t->busy_threads++;
        note_running(t);
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_thread_exit(struct tasks *t)
{
    const struct task_end abandoned = { .state = TASK_CANCELLED,
                                        .output_bytes = ABSENT,
                                        .gc_freed_bytes = ABSENT };
    uint64_t end_ns = now_ns();
    uint32_t thread = thread_id();
    pthread_mutex_lock(&t->mutex);
    for (word i = t->board ? t->running : 0; i-- > 0;) {
        if (t->slot_info[t->active[i]].thread != thread) continue;
        increment(&t->board->live->ends_missing);
        end_task(t, t->active[i], end_ns, &abandoned, NULL);
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_open(struct tasks *t, struct board *b, int accounting)
{
    pthread_mutex_lock(&t->mutex);
    t->accounting = accounting;
    t->busy_threads = 0;
    store_relaxed(&t->running, 0);
    t->vacant_count = SLOT_COUNT;
    t->seq = 0;
    unaccounted_open();
    /* the last one is used first: low slots before high ones */
    for (uint32_t i = 0; i < SLOT_COUNT; i++) t->vacant[i] = (uint16_t)(SLOT_COUNT - 1 - i);
    t->board = b;
    if (b->slots) tasks_use_room(t);
    store_relaxed(&b->live->rss_source, t->rss.source);
    pthread_mutex_unlock(&t->mutex);
}

void tasks_use_room(struct tasks *t)
{
    texts_open(&t->texts, &t->texts_index, t->board->texts, &t->board->live->texts_end);
    totals_open(&t->totals, &t->totals_index, t->board->totals, t->board->journal,
                &t->board->live->totals_used);
}

void tasks_close(struct tasks *t, int leave_running)
{
    const struct task_end cut_off = { .state = TASK_CANCELLED,
                                      .output_bytes = ABSENT,
                                      .gc_freed_bytes = ABSENT };
    uint64_t end_ns = now_ns();
    pthread_mutex_lock(&t->mutex);
    if (t->board) {
        count_boundary(t);
        end_window(t, 1, NULL);
        count_boundary(t);
        while (!leave_running && t->running)
            end_task(t, t->active[t->running - 1], end_ns, &cut_off, NULL);
        store_relaxed(&t->running, 0);
        t->board = NULL;
        rss_close(&t->rss);
    }
    pthread_mutex_unlock(&t->mutex);
}

void tasks_reset_in_child(struct tasks *t)
{
    this_thread.id = 0;
    pthread_mutex_init(&t->mutex, NULL);
    unaccounted_reset_in_child();
    if (!t->board) return;
    rss_close(&t->rss);
    t->board = NULL;
    t->running = 0;
}
