/* A small file of /proc that stays open, in a process whose program may close any descriptor.
 * Called by rss.c and limit.c.
 *
 * If the job has closed or reused the descriptor, the file is opened again and the job's descriptor
 * is left alone. Before each write, the descriptor is compared with the file that was opened. Reads
 * are not checked: the caller must recognise bytes of another file by their form. A handle belongs
 * to one thread at a time.
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

/* All return 0 or a count, or -errno. *reopened counts descriptors that the job had closed. */
int proc_file_open(struct proc_file *f, const char *root, const char *name, int flags);
void proc_file_close(struct proc_file *f);
/* Opens the file if it is closed, or if the descriptor is no longer that file. */
int proc_file_ensure_open(struct proc_file *f, uint64_t *reopened);
/* Up to size-1 bytes from the start, zero-terminated, of whatever file the descriptor is now. */
ssize_t proc_file_read(const struct proc_file *f, char *text, size_t size);
/* Writes one byte, a command to the kernel. */
int proc_file_write_byte(struct proc_file *f, char byte, uint64_t *reopened);

/* Read a whole small file once: of /proc/self below the root, or by its path. Up to size-1 bytes,
 * zero-terminated. Return the number of bytes, or -errno. */
ssize_t proc_read_once(const char *root, const char *name, char *text, size_t size);
ssize_t file_read_once(const char *path, char *text, size_t size);
/* Whether descriptors 0, 1 and 2 are open. A program that has closed one is about to open a file
 * with its number: the probe must open nothing meanwhile. */
int standard_streams_are_open(void);

#endif
