/* The resident set size of this process (*rss*) and its high-water mark (*the mark*), from the
 * kernel.
 *
 * The mark is read with getrusage (0.4 us) and reset through /proc/self/clear_refs. ru_maxrss is
 * never below a value that the process inherited across exec, the *floor*. While ru_maxrss is at
 * the floor, VmHWM of /proc/self/status is read instead (16 us).
 *
 * A handle belongs to one thread at a time: the task boundaries have one, under their mutex, and
 * the sampler has one.
 */
#ifndef DWSR_RSS_H
#define DWSR_RSS_H

#include "board_layout.h"
#include "hold.h"
#include "proc_file.h"

struct rss {
    char proc_root[200];
    struct proc_file statm, status, clear_refs;
    uint64_t page_bytes;
    word floor_bytes;         /* ru_maxrss up to this value may be inherited */
    const word *floor_in_use; /* this handle's, or that of a reader's first handle */
    uint64_t error_bytes;     /* bound of the error of the kernel's counters on this machine */
    uint64_t data_bytes;      /* rss_now: private memory of the process, resident or not */
    uint64_t reopened;        /* how often the job had closed a descriptor */
    enum rss_source source;
    int resettable; /* resets worked at the start; after a failure they are tried again */
};

struct rss_window {
    uint64_t rss_bytes;     /* ABSENT if /proc cannot be read */
    uint64_t data_bytes;    /* private memory of the process, resident or not; ABSENT likewise */
    uint64_t peak_bytes;    /* of the window that ends; rss_bytes if there is no mark */
    enum rss_source source; /* of peak_bytes */
    int reset;              /* the mark was reset */
    uint64_t gap_ns;        /* from reading the mark to the end of the reset */
    /* page faults of the calling thread since it began; ABSENT: unknown */
    uint64_t faults, major_faults;
};

/* Always succeeds: `source` says what is available. The handle must not move afterwards.
 *
 * proc_root: "/proc", or a fixture. keep_peak: the mark is never reset. *max_bytes: the mark before
 * any reset. Files are opened again at their next use after rss_close, so a process without tasks
 * needs no descriptor. /proc/self/status is open only while ru_maxrss is at its floor. */
void rss_open(struct rss *r, const char *proc_root, int keep_peak, uint64_t *max_bytes);
/* A second handle, for reading from another thread, with the floor of the first one. `first` must
 * outlive it and not move. */
void rss_open_reader(struct rss *r, const struct rss *first);
void rss_close(struct rss *r);

/* The resident set size in bytes, or ABSENT. Sets `data_bytes`, too. */
uint64_t rss_now(struct rss *r);
/* The size of the main thread's stack in bytes, or ABSENT. Reads a slow file. */
uint64_t rss_stack_bytes(struct rss *r);
/* The mark in bytes, or ABSENT. precise: at the floor, read VmHWM from the slow file. Without
 * `precise` the result is ABSENT there. */
uint64_t rss_high_water_mark(struct rss *r, int precise);
/* Ends a window and begins the next one: reads rss and mark, and resets the mark if it exceeds rss
 * by more than the error bound. h is released before slow steps. */
void rss_window_end(struct rss *r, struct rss_window *w, struct hold *h);

/* What the error of the kernel's counters depends on. */
struct rss_machine {
    unsigned kernel_major, kernel_minor;
    long cpus, threads; /* threads of this process */
    uint64_t page_bytes;
};
/* The bound of that error, in bytes: exposed for tests. */
uint64_t rss_error_bound(struct rss_machine m);

#endif
