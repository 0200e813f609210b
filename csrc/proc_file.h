/* A small file of /proc kept open, safe in a process whose program may close every descriptor.
 *
 * If the job closed or reused the descriptor, the file is opened again and the job's descriptor is
 * left alone. Writing compares the descriptor with the file that was opened, every time; reading
 * leaves that to callers who can tell foreign bytes by their form. One handle belongs to one thread
 * at a time.
 */
#ifndef DWSR_PROC_FILE_H
#define DWSR_PROC_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_file {
    char path[256];
    int flags, fd; /* fd < 0: closed */
    dev_t dev;
    ino_t ino; /* 0: not opened yet */
};

/* All return 0 or a count, or -errno. `reopened` counts descriptors that the job took away. */
int proc_file_open(struct proc_file *f, const char *root, const char *name, int flags);
void proc_file_close(struct proc_file *f);
/* Open it, if it is closed; again, if the descriptor is no longer the file that was opened. */
int proc_file_ensure(struct proc_file *f, uint64_t *reopened);
/* Up to size-1 bytes from the start, zero-terminated, of whatever the descriptor is now. */
ssize_t proc_file_read(const struct proc_file *f, char *text, size_t size);
/* One byte to a file of /proc that takes commands. */
int proc_file_write_byte(struct proc_file *f, char byte, uint64_t *reopened);

/* Read a whole small file once: of this process, or by its path. Up to size-1 bytes,
 * zero-terminated; returns how many, or -errno. */
ssize_t proc_read_once(const char *root, const char *name, char *text, size_t size);
ssize_t file_read_once(const char *path, char *text, size_t size);
/* A program that has closed a standard stream is about to open another file in its place: nothing
 * may be opened meanwhile. */
int standard_streams_are_open(void);

#endif
