/* Resident size of this process and its high-water mark, from the kernel.
 *
 * The mark is read with getrusage (0.4 us) and reset through /proc/self/clear_refs. ru_maxrss has a
 * floor inherited across exec; at the floor VmHWM of /proc/self/status is read instead (16 us).
 *
 * A handle belongs to one thread at a time: the task boundaries have one (under their mutex), the
 * sampler has its own.
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
    word floor_bytes;     /* ru_maxrss up to here may be inherited: ask VmHWM */
    const word *floor;    /* the one that counts: a reader's is the first handle's */
    uint64_t error_bytes; /* of the kernel's own counters on this machine */
    uint64_t reopened;    /* descriptors that the job took away */
    enum rss_source source;
    int resettable; /* resets worked at the start: after a failure they are tried again */
};

struct rss_window {
    uint64_t rss_bytes; /* ABSENT if /proc cannot be read */
    /* of the window that ends; equals rss_bytes where marks are not available */
    uint64_t peak_bytes;
    enum rss_source source; /* of peak_bytes */
    int reset;              /* the mark was reset */
    uint64_t gap_ns;        /* from reading the mark to the end of the reset */
    /* of the calling thread since it began: page faults, those that read a disk; ABSENT: not known
     */
    uint64_t faults, major_faults;
};

/* Files are opened at their first use, so that a handle in a process without tasks needs no
 * descriptor; and, after rss_close, again. /proc/self/status is held open only while ru_maxrss is
 * at its floor.
 *
 * proc_root: "/proc", or a fixture. keep_peak: never touch the mark. *max_bytes: the mark as found,
 * before any reset. Always succeeds: `source` says what is available. The handle must not move
 * afterwards. */
void rss_open(struct rss *r, const char *proc_root, int keep_peak, uint64_t *max_bytes);
/* A second handle, for reading only and from its own thread, that follows the first one's floor.
 * `first` must outlive it and not move. */
void rss_open_reader(struct rss *r, const struct rss *first);
void rss_close(struct rss *r);

/* Bytes, or ABSENT. rss_mark's `precise` 0 gives ABSENT at the floor instead of reading the slow
 * file. */
uint64_t rss_now(struct rss *r);
uint64_t rss_mark(struct rss *r, int precise);
/* A window ends and the next begins: read rss and mark, reset the mark if it stands above rss by
 * more than the error bound. */
void rss_window_end(struct rss *r, struct rss_window *w, struct hold *h);

/* The kernel's counter error, from its version, CPUs and threads. */
uint64_t rss_error_bound(unsigned kernel_major, unsigned kernel_minor, long cpus, long threads,
                         uint64_t page_bytes);

#endif
