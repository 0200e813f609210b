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

uint64_t rss_error_bound(unsigned kernel_major, unsigned kernel_minor, long cpus, long threads, uint64_t page_bytes)
{
    if (cpus < 1) cpus = 1;
    if (threads < 1) threads = 1;
    /* Before 6.2 each thread kept up to 64 page events to itself; since then each CPU keeps a batch. */
    if (kernel_major < 6 || (kernel_major == 6 && kernel_minor < 2)) return 64 * (uint64_t)threads * page_bytes;
    uint64_t batch = cpus > 16 ? 2 * (uint64_t)cpus : 32;
    return batch * (uint64_t)cpus * page_bytes;
}

static uint64_t error_bound_here(uint64_t page_bytes)
{
    struct utsname u;
    unsigned major = 0, minor = 0;
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2) major = 6, minor = 2;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return rss_error_bound(major, minor, cpus, 2 * cpus, page_bytes); /* threads come and go: two per CPU is the usual most */
}

/* Bytes behind "\nVmHWM:" or its like. */
static uint64_t status_bytes(struct rss *r, const char *label)
{
    char text[4096];
    if (proc_file_ensure(&r->status, &r->reopened) < 0 || proc_file_read(&r->status, text, sizeof text) <= 0) return ABSENT;
    const char *at = strstr(text, label);
    if (!at) return ABSENT;
    return strtoull(at + strlen(label), NULL, 10) * 1024;
}

static uint64_t maxrss(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_THREAD, &u) < 0 || u.ru_maxrss <= 0) return ABSENT;
    return (uint64_t)u.ru_maxrss * 1024;
}

/* "size resident shared text 0 data 0\n": the form is checked so strictly that the descriptor need not be. */
static uint64_t statm_pages(const struct rss *r)
{
    char text[128];
    uint64_t number[7];
    ssize_t n = proc_file_read(&r->statm, text, sizeof text);
    const char *at = text;
    if (n <= 0) return ABSENT;
    for (int i = 0; i < 7; i++) {
        const char *begin = at;
        for (number[i] = 0; *at >= '0' && *at <= '9'; at++) number[i] = 10 * number[i] + (uint64_t)(*at - '0');
        if (at == begin || *at++ != (i < 6 ? ' ' : '\n')) return ABSENT;
    }
    return at - text == n && number[4] == 0 && number[6] == 0 && number[1] <= number[0] ? number[1] : ABSENT;
}

uint64_t rss_now(struct rss *r)
{
    uint64_t pages = statm_pages(r);
    if (pages == ABSENT && proc_file_ensure(&r->statm, &r->reopened) == 0) pages = statm_pages(r);
    return pages == ABSENT ? ABSENT : pages * r->page_bytes;
}

uint64_t rss_mark(struct rss *r, int precise)
{
    uint64_t mark = maxrss();
    if (mark != ABSENT && mark > r->floor_bytes) return mark;
    if (!precise) return ABSENT;
    uint64_t hwm = status_bytes(r, "\nVmHWM:");
    if (hwm == ABSENT || mark == ABSENT) return hwm;
    if (hwm >= mark) r->floor_bytes = mark - 1024; /* our own mark explains the value: the floor, if any, lies below */
    return hwm;
}

/* Some sandboxes accept the write and ignore it: believe only what can be seen. */
static int reset_works(struct rss *r)
{
    if (proc_file_poke(&r->clear_refs, '5', &r->reopened) < 0) return 0;
    uint64_t hwm = status_bytes(r, "\nVmHWM:"), rss = rss_now(r), mark = maxrss();
    if (hwm == ABSENT || rss == ABSENT || mark == ABSENT) return 0;
    return hwm <= rss + r->error_bytes && hwm + r->error_bytes >= rss;
}

void rss_open(struct rss *r, const char *proc_root, int keep_peak, uint64_t *max_bytes)
{
    memset(r, 0, sizeof *r);
    snprintf(r->proc_root, sizeof r->proc_root, "%s", proc_root);
    r->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    r->error_bytes = error_bound_here(r->page_bytes);
    r->source = RSS_SAMPLED;
    proc_file_open(&r->statm, proc_root, "statm", O_RDONLY);
    proc_file_open(&r->status, proc_root, "status", O_RDONLY);
    r->clear_refs.fd = -1;
    *max_bytes = status_bytes(r, "\nVmHWM:");
    uint64_t mark = maxrss();
    r->floor_bytes = mark == ABSENT ? 0 : mark; /* until rss_mark knows better */
    if (keep_peak || proc_file_open(&r->clear_refs, proc_root, "clear_refs", O_WRONLY) < 0) return;
    if (reset_works(r)) r->source = RSS_KERNEL;
    uint64_t after = maxrss();
    if (after != ABSENT) r->floor_bytes = after;
    rss_mark(r, 1);
}

void rss_open_reader(struct rss *r, const struct rss *first)
{
    *r = *first;
    r->reopened = 0;
    proc_file_open(&r->statm, r->proc_root, "statm", O_RDONLY);
    proc_file_open(&r->status, r->proc_root, "status", O_RDONLY);
    r->clear_refs.fd = -1;
}

void rss_close(struct rss *r)
{
    proc_file_close(&r->statm);
    proc_file_close(&r->status);
    proc_file_close(&r->clear_refs);
}

void rss_window_take(struct rss *r, struct rss_window *w)
{
    uint64_t begin = now_ns();
    uint64_t mark = r->source == RSS_KERNEL ? rss_mark(r, 1) : ABSENT;
    uint64_t rss = rss_now(r);
    w->rss_bytes = rss;
    w->peak_bytes = mark != ABSENT && (rss == ABSENT || mark > rss) ? mark : rss;
    w->reset = 0;
    w->gap_ns = 0;
    if (mark == ABSENT || rss == ABSENT || mark <= rss + r->error_bytes) return;
    if (proc_file_poke(&r->clear_refs, '5', &r->reopened) < 0) {
        r->source = RSS_SAMPLED; /* permission was taken away: say so from here on */
        return;
    }
    w->reset = 1;
    w->gap_ns = now_ns() - begin;
}
