/* What a caller holds that others wait for: Python's GIL.
 *
 * A boundary mostly takes two microseconds, less than handing over the GIL. So it is entered with
 * the GIL held, and lets go before anything that may take long: a lock, the reset of the kernel's
 * mark (which waits for mmap_lock), files of /proc that are slow. The caller takes the GIL again
 * after the call; it is never waited for inside, where the tasks' mutex may be held.
 */
#ifndef DWSR_HOLD_H
#define DWSR_HOLD_H

struct hold {
    void (*let_go)(struct hold *h);
    int gone; /* it has been let go */
};

/* h may be NULL: nothing is held. */
static inline void hold_let_go(struct hold *h)
{
    if (!h || h->gone) return;
    h->gone = 1;
    h->let_go(h);
}

#endif
