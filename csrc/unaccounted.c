#define _GNU_SOURCE
#include "unaccounted.h"

#include "clock.h"
#include "patch.h"

/* Memory marks a task if it is more than LEAST_BYTES and more than one part in SHARE of the task's
 * own peak. */
#define LEAST_BYTES  (INT64_C(1) << 20)
#define SHARE        20
#define HEADER_BYTES 16 /* of a block of malloc */

/* The sampler asks glibc for its free bytes at most for one part in FREE_SHARE of the time. */
#define FREE_SHARE 100

static struct {
    word announced, explained; /* summed up */
    word data;                 /* the kernel's count at the last boundary */
    word window, in_use; /* by the sampler: the largest count in a window, without free bytes */
} seen;

/* Of the sampler alone. */
static struct {
    uint64_t data, known;   /* when all was known last: the kernel's count, and what was known */
    uint64_t window;        /* the window in which more was seen since, or ABSENT */
    uint64_t free_until_ns; /* when it may ask for the free bytes again */
} sampled = { .window = ABSENT };

static int is_much(int64_t bytes, uint64_t own_peak)
{
    return bytes > LEAST_BYTES && (uint64_t)bytes > own_peak / SHARE;
}

/* -- what is known -- */

/* Bytes that glibc holds and nobody uses: its heap does not shrink with every free. UINT64_MAX: not
 * known, without glibc or before its release 2.33. */
static uint64_t free_bytes_of_heap(void)
{
    struct info {
        size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks,
            keepcost;
    } (*mallinfo2)(void) = (struct info (*)(void))patch_mallinfo2();
    return mallinfo2 ? mallinfo2().fordblks : UINT64_MAX;
}

/* The kernel's count was read before the free bytes. If the heap has shrunk in between, both are of
 * different moments: so the count is read once more. */
static uint64_t lower_of_two(uint64_t data_bytes, struct rss *rss)
{
    rss_now(rss);
    return rss->data_bytes < data_bytes ? rss->data_bytes : data_bytes;
}

/* Live bytes of all running tasks and of no task, and what was explained. Memory of ended tasks is
 * not in it, and that of nested tasks is in it more than once. */
static uint64_t known_bytes(void)
{
    uint64_t sum = accounts_unowned_bytes() + load_relaxed(&seen.announced);
    for (uint32_t i = 0; i < lineage_slots_used(); i++) {
        struct account_figures f;
        if (accounts_task_now(lineage_task_in(i), &f) == 0) sum += f.live_bytes;
    }
    return sum;
}

/* -- windows -- */

void unaccounted_open(void)
{
    store_relaxed(&seen.window, ABSENT);
    store_relaxed(&seen.data, ABSENT);
    sampled.window = ABSENT;
    sampled.data = sampled.known = 0;
}

void unaccounted_reset_in_child(void)
{
    store_relaxed(&seen.explained, load_relaxed(&seen.announced));
}

void unaccounted_note_idle(const struct rss *rss)
{
    if (rss->data_bytes == ABSENT) return;
    sampled.data = rss->data_bytes;
    sampled.known = known_bytes();
    sampled.window = ABSENT;
}

static void note_in_use(uint64_t window, uint64_t in_use)
{
    if (load_relaxed(&seen.window) == window) {
        max_relaxed(&seen.in_use, in_use);
        return;
    }
    store_release(&seen.window, ABSENT);
    store_release(&seen.in_use, in_use);
    store_release(&seen.window, window);
}

void unaccounted_note_sample(uint64_t window, struct rss *rss, uint64_t now_ns)
{
    const uint64_t data_bytes = rss->data_bytes;
    if (data_bytes == ABSENT) return;
    const uint64_t known = known_bytes();
    if (sampled.window != ABSENT && sampled.window != window) {
        /* what was seen in an earlier window, and was there when it ended, counts as known */
        sampled.data = load_relaxed(&seen.data);
        sampled.known = known;
        sampled.window = ABSENT;
    }
    const uint64_t more_known = known > sampled.known ? known - sampled.known : 0;
    if (data_bytes <= sampled.data + more_known + LEAST_BYTES) {
        sampled.data = data_bytes;
        sampled.known = known;
        return;
    }
    if (now_ns < sampled.free_until_ns) return;
    const uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID), free_bytes = free_bytes_of_heap();
    sampled.free_until_ns = now_ns + FREE_SHARE * (clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin);
    sampled.window = window;
    const uint64_t lower = lower_of_two(data_bytes, rss);
    if (free_bytes < lower) note_in_use(window, lower - free_bytes);
}

void unaccounted_announce(uint64_t bytes) { add_relaxed(&seen.announced, bytes); }
void unaccounted_explain(uint64_t bytes) { add_relaxed(&seen.explained, bytes); }

struct unaccounted_window unaccounted_end_window(uint64_t data_bytes, uint64_t window)
{
    store_relaxed(&seen.data, data_bytes);
    return (struct unaccounted_window){
        .unowned = unowned_end_window(),
        .unowned_bytes = accounts_unowned_bytes(),
        .data_bytes = data_bytes,
        .in_use_peak = load_acquire(&seen.window) == window ? load_acquire(&seen.in_use) : 0,
    };
}

void unaccounted_begin(struct unaccounted *u, const struct unaccounted_window *w)
{
    *u = (struct unaccounted){
        .unowned = { { w->unowned.native.live, w->unowned.native.live },
                     { w->unowned.python.live, w->unowned.python.live } },
        .unowned_before = w->unowned_bytes,
        .unowned_peak = w->unowned_bytes,
        .data_before = w->data_bytes,
        .explained_before = load_relaxed(&seen.explained),
        .loaded_before = patch_loaded_objects(),
    };
}

static void raise_signed(int64_t *peak, int64_t value)
{
    if (*peak < value) *peak = value;
}

void unaccounted_raise(struct unaccounted *u, const struct unaccounted_window *w)
{
    raise_signed(&u->unowned.native.peak, w->unowned.native.peak);
    raise_signed(&u->unowned.python.peak, w->unowned.python.peak);
    if (u->unowned_peak < w->unowned_bytes) u->unowned_peak = w->unowned_bytes;
    u->data_now = w->data_bytes;
    if (u->in_use_peak < w->in_use_peak) u->in_use_peak = w->in_use_peak;
}

/* -- the kernel's count -- */

/* The growth of the process's private memory beyond everything that is known: at the task's end, or
 * as the sampler saw it. Not for tasks that overlap: what another thread is just allocating is in
 * the kernel's count before it is in the accounts. */
static int64_t unexplained_growth(const struct unaccounted *u, const struct unaccounted_task *ended,
                                  struct rss *rss, struct hold *h)
{
    if (!ended->alone || u->data_before == ABSENT || u->data_now == ABSENT) return 0;
    const int64_t at_end = (int64_t)(u->data_now - u->data_before),
                  between = (int64_t)(u->in_use_peak - u->data_before);
    int64_t known = (int64_t)(ended->peak_bytes + ended->count * HEADER_BYTES
                              + load_relaxed(&seen.announced) - u->explained_before);
    /* what follows takes longer, and is needed only if there is something to explain */
    if (at_end - known <= LEAST_BYTES && between - known <= LEAST_BYTES) return 0;
    known += (int64_t)(u->unowned_peak - u->unowned_before);
    if (at_end - known <= LEAST_BYTES && between - known <= LEAST_BYTES) return 0;
    /* a library's constructor runs before its calls are hooked: it may map memory and start threads
     */
    if (patch_has_loaded_since(u->loaded_before)) return 0;
    hold_release(h);
    const uint64_t free_bytes = free_bytes_of_heap(), stack = rss_stack_bytes(rss);
    if (free_bytes == UINT64_MAX || stack == ABSENT) return 0;
    const int64_t in_use =
        (int64_t)(lower_of_two(u->data_now, rss) - u->data_before) - (int64_t)free_bytes;
    return (in_use > between ? in_use : between) - known - (int64_t)stack;
}

/* -- the end of a task -- */

enum attribution_reason unaccounted_reason(const struct unaccounted *u,
                                           const struct unaccounted_task *ended, struct rss *rss,
                                           struct hold *h, struct text *detail)
{
    enum attribution_reason reason = REASON_NONE;
    const uint64_t foreign = ended->foreign_bytes;
    if (is_much(foreign > INT64_MAX ? INT64_MAX : (int64_t)foreign, ended->peak_bytes)) {
        reason = REASON_FOREIGN_ALLOCATOR;
        *detail = ended->library;
    } else if (is_much(u->unowned.python.peak - u->unowned.python.live, ended->peak_bytes)) {
        reason = REASON_UNOWNED_THREAD;
        *detail = unowned_largest_name();
    } else {
        *detail = (struct text){ NULL, 0 };
        if (is_much(u->unowned.native.peak - u->unowned.native.live, ended->peak_bytes))
            reason = REASON_NATIVE_THREADS;
        else if (is_much(unexplained_growth(u, ended, rss, h), ended->peak_bytes))
            reason = REASON_FOREIGN_ALLOCATOR;
    }
    return reason;
}
