/* A lock that the caller of a task boundary holds, and that the boundary may release: Python's GIL.
 *
 * A boundary takes about two microseconds, less than releasing and taking the GIL. So it is entered
 * with the GIL held. The GIL is released before anything that may take long: a mutex that is
 * locked, the reset of the high-water mark (which waits for mmap_lock), slow files of /proc. The
 * caller takes the GIL again after the call. Nothing waits for the GIL inside, where the tasks'
 * mutex may be locked.
 */
#ifndef DWSR_HOLD_H
#define DWSR_HOLD_H

struct hold {
    void (*release)(struct hold *h);
    int released;
};

/* Releases the lock, once. h may be NULL: nothing is held. */
static inline void hold_release(struct hold *h)
{
    if (!h || h->released) return;
    h->released = 1;
    h->release(h);
}

#endif
