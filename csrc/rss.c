#define _GNU_SOURCE
#include "rss.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "clock.h"

enum { RESET_ATTEMPTS = 10, RESET_PAUSE_NS = 50 * 1000 };

uint64_t rss_error_bound(struct rss_machine m)
{
    const uint64_t cpus = m.cpus < 1 ? 1 : (uint64_t)m.cpus;
    const uint64_t threads = m.threads < 1 ? 1 : (uint64_t)m.threads;
    /* Before 6.2 each thread kept up to 64 page events to itself. Since then each CPU keeps a batch
     * of them. */
    if (m.kernel_major < 6 || (m.kernel_major == 6 && m.kernel_minor < 2))
        return 64 * threads * m.page_bytes;
    const uint64_t batch = cpus > 16 ? 2 * cpus : 32;
    return batch * cpus * m.page_bytes;
}

static uint64_t error_bound_here(uint64_t page_bytes)
{
    struct utsname u;
    struct rss_machine m = { .cpus = sysconf(_SC_NPROCESSORS_ONLN), .page_bytes = page_bytes };
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &m.kernel_major, &m.kernel_minor) != 2)
        m.kernel_major = 6, m.kernel_minor = 2;
    /* the number of threads changes: two per CPU is a usual maximum */
    m.threads = 2 * m.cpus;
    return rss_error_bound(m);
}

/* The number of KiB after a label such as "\nVmHWM:", in bytes. */
static uint64_t status_bytes(struct rss *r, const char *label)
{
    char text[4096];
    if (proc_file_ensure_open(&r->status, &r->reopened) < 0
        || proc_file_read(&r->status, text, sizeof text) <= 0)
        return ABSENT;
    const char *at = strstr(text, label);
    if (!at) return ABSENT;
    return strtoull(at + strlen(label), NULL, 10) * 1024;
}

static int thread_usage(struct rusage *u) { return getrusage(RUSAGE_THREAD, u); }

static uint64_t maxrss_of(const struct rusage *u)
{
    return u->ru_maxrss > 0 ? (uint64_t)u->ru_maxrss * 1024 : ABSENT;
}

static uint64_t maxrss(void)
{
    struct rusage u;
    return thread_usage(&u) < 0 ? ABSENT : maxrss_of(&u);
}

/* "size resident shared text 0 data 0\n". The form is checked strictly, because the job may have
 * put another file behind the descriptor. */
static uint64_t statm_pages(struct rss *r)
{
    char text[128];
    uint64_t number[7];
    ssize_t n = proc_file_read(&r->statm, text, sizeof text);
    const char *at = text;
    if (n <= 0) return ABSENT;
    for (int i = 0; i < 7; i++) {
        const char *begin = at;
        for (number[i] = 0; *at >= '0' && *at <= '9'; at++)
            number[i] = 10 * number[i] + (uint64_t)(*at - '0');
        if (at == begin || *at++ != (i < 6 ? ' ' : '\n')) return ABSENT;
    }
    if (at - text != n || number[4] != 0 || number[6] != 0 || number[1] > number[0]) return ABSENT;
    r->data_bytes = number[5] * r->page_bytes;
    return number[1];
}

uint64_t rss_now(struct rss *r)
{
    uint64_t pages = statm_pages(r);
    if (pages == ABSENT && proc_file_ensure_open(&r->statm, &r->reopened) == 0)
        pages = statm_pages(r);
    if (pages == ABSENT) r->data_bytes = ABSENT;
    return pages == ABSENT ? ABSENT : pages * r->page_bytes;
}

uint64_t rss_stack_bytes(struct rss *r) { return status_bytes(r, "\nVmStk:"); }

/* mark: ru_maxrss, which is the mark if it is above the floor. */
static uint64_t mark_from_maxrss(struct rss *r, uint64_t mark, int precise, struct hold *h)
{
    if (mark != ABSENT && mark > load_relaxed(r->floor_in_use)) {
        /* not needed above the floor: one descriptor less in the job */
        if (r->status.fd >= 0) proc_file_close(&r->status);
        return mark;
    }
    if (precise) hold_release(h);
    return precise ? status_bytes(r, "\nVmHWM:") : ABSENT;
}

uint64_t rss_high_water_mark(struct rss *r, int precise)
{
    return mark_from_maxrss(r, maxrss(), precise, NULL);
}

/* Right after a reset the mark equals rss. If ru_maxrss is larger, it is the floor, inherited from
 * the program before exec. A floor within the error bound of rss is ignored: the mark is at least
 * rss until the next reset, so the error stays within the bound. */
static void learn_floor(struct rss *r, uint64_t rss)
{
    uint64_t mark = maxrss();
    store_relaxed(&r->floor_bytes,
                  mark != ABSENT && rss != ABSENT && mark > rss + r->error_bytes ? mark : 0);
}

static int reset(struct rss *r, uint64_t rss)
{
    int e = proc_file_write_byte(&r->clear_refs, '5', &r->reopened);
    if (e == 0) learn_floor(r, rss);
    return e;
}

/* Some sandboxes accept the write and ignore it, so the effect is checked. Other threads, and a
 * kernel that reclaims pages, may change rss between two readings for some milliseconds: several
 * attempts, each pause twice as long as the last, 50 ms in all. */
static int reset_works(struct rss *r)
{
    for (int attempt = 0; attempt < RESET_ATTEMPTS; attempt++) {
        if (attempt > 0)
            nanosleep(&(struct timespec){ .tv_nsec = RESET_PAUSE_NS << attempt }, NULL);
        if (reset(r, rss_now(r)) < 0) return 0;
        uint64_t hwm = status_bytes(r, "\nVmHWM:"), rss = rss_now(r);
        if (hwm == ABSENT || rss == ABSENT || maxrss() == ABSENT) return 0;
        if (hwm <= rss + r->error_bytes && hwm + r->error_bytes >= rss) return 1;
    }
    return 0;
}

void rss_open(struct rss *r, const char *proc_root, int keep_peak, uint64_t *max_bytes)
{
    memset(r, 0, sizeof *r);
    snprintf(r->proc_root, sizeof r->proc_root, "%s", proc_root);
    r->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    r->error_bytes = error_bound_here(r->page_bytes);
    r->source = RSS_SAMPLED;
    r->floor_in_use = &r->floor_bytes;
    r->floor_bytes = ABSENT; /* unknown without resets: VmHWM is always read */
    proc_file_open(&r->statm, proc_root, "statm", O_RDONLY);
    proc_file_open(&r->status, proc_root, "status", O_RDONLY);
    r->clear_refs.fd = -1;
    *max_bytes = status_bytes(r, "\nVmHWM:");
    if (keep_peak || proc_file_open(&r->clear_refs, proc_root, "clear_refs", O_WRONLY) < 0) return;
    r->resettable = reset_works(r);
    if (r->resettable)
        r->source = RSS_KERNEL;
    else
        r->floor_bytes = ABSENT;
}

void rss_open_reader(struct rss *r, const struct rss *first)
{
    *r = *first;
    r->floor_in_use = &first->floor_bytes;
    r->reopened = 0;
    r->statm.fd = r->status.fd = r->clear_refs.fd = -1;
    r->statm.ino = r->status.ino = 0;
}

void rss_close(struct rss *r)
{
    proc_file_close(&r->statm);
    proc_file_close(&r->status);
    proc_file_close(&r->clear_refs);
}

void rss_window_end(struct rss *r, struct rss_window *w, struct hold *h)
{
    uint64_t begin = now_ns();
    struct rusage usage;
    const int known = thread_usage(&usage) == 0;
    w->major_faults = known ? (uint64_t)usage.ru_majflt : ABSENT;
    w->faults = known ? (uint64_t)usage.ru_minflt + w->major_faults : ABSENT;
    uint64_t mark = r->source == RSS_KERNEL
                        ? mark_from_maxrss(r, known ? maxrss_of(&usage) : ABSENT, 1, h)
                        : ABSENT;
    uint64_t rss = rss_now(r);
    w->rss_bytes = rss;
    w->data_bytes = r->data_bytes;
    w->peak_bytes = mark != ABSENT && (rss == ABSENT || mark > rss) ? mark : rss;
    w->reset = 0;
    w->gap_ns = 0;
    w->source = mark == ABSENT ? RSS_SAMPLED : r->source;
    if (r->source == RSS_KERNEL
        && (mark == ABSENT || rss == ABSENT || mark <= rss + r->error_bytes))
        return;
    if (!r->resettable) return;
    /* Releasing the GIL takes a while. The mark is read again right before the reset, so that
     * allocations of other threads in between are not missed. */
    if (h && !h->released) {
        hold_release(h);
        begin = now_ns();
        mark = r->source == RSS_KERNEL ? mark_from_maxrss(r, maxrss(), 1, NULL) : ABSENT;
        rss = rss_now(r);
        const uint64_t peak = mark != ABSENT && (rss == ABSENT || mark > rss) ? mark : rss;
        if (peak != ABSENT && (w->peak_bytes == ABSENT || peak > w->peak_bytes))
            w->peak_bytes = peak;
        if (rss != ABSENT) w->rss_bytes = rss;
    }
    if (reset(r, rss) < 0) {
        /* no descriptor left, or permission lost: the next boundary tries again */
        r->source = RSS_SAMPLED;
        return;
    }
    r->source = RSS_KERNEL;
    w->reset = 1;
    w->gap_ns = now_ns() - begin;
}
