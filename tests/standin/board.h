/* The board of the GPU stand-in: one file, `board` in the folder $STANDIN_DIR, mapped by every
 * process that uses the stand-in.
 *
 * Covers what is common to the CUDA stand-in (cuda.c, writes its own slot), the NVML stand-in
 * (nvml.c, reads all slots) and the tests (board.py mirrors these structs, creates the file and
 * sets its options at run time). Not a model of dwsr-probe's own board.
 *
 * A process owns slot i while it holds the file lock on byte i. An open-file-description lock goes
 * with its process at once, however it dies and even before its parent has waited for it, as a
 * GPU's memory does; and another descriptor in the same process does not drop it.
 */
#ifndef STANDIN_BOARD_H
#define STANDIN_BOARD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* F_OFD_SETLK */
#endif
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BOARD_DEVICES = 16, BOARD_SLOTS = 128 };

enum nvml_mode {
    NVML_WORKS,
    NVML_NO_DRIVER,
    NVML_NO_PERMISSION,
    NVML_NO_UTILIZATION,
    NVML_LOST,
    NVML_NO_MEMORY_INFO,
    NVML_NO_PROCESS_BYTES
};

typedef struct {
    _Atomic int64_t capacity_bytes;
    _Atomic int64_t fail_next; /* number of next mallocs, of any process, that fail */
} board_device;

typedef struct {
    /* as NVML reports: live bytes and those that an async pool keeps */
    _Atomic int64_t occupied_bytes;
    _Atomic int64_t live_bytes; /* allocated and not yet freed */
    _Atomic int64_t mallocs, frees;
} board_use;

typedef struct {
    _Atomic int64_t pid, pinned_bytes, launches;
    board_use use[BOARD_DEVICES];
} board_slot;

typedef struct {
    int64_t size; /* of this struct: a process built from another header is refused */
    int64_t devices;
    _Atomic int64_t nvml_mode;
    board_device device[BOARD_DEVICES];
    board_slot slot[BOARD_SLOTS];
} board;

/* Maps the board; NULL if there is none of our layout. */
static inline board *board_open(int *fd)
{
    const char *folder = getenv("STANDIN_DIR");
    char path[4096];
    struct stat status;
    if (!folder || snprintf(path, sizeof path, "%s/board", folder) >= (int)sizeof path) return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    board *b = MAP_FAILED;
    if (!fstat(file, &status) && status.st_size == (off_t)sizeof *b)
        b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (b != MAP_FAILED && b->size == (int64_t)sizeof *b) {
        *fd = file;
        return b;
    }
    if (b != MAP_FAILED) munmap(b, sizeof *b);
    close(file);
    return NULL;
}

static inline int board_claim(int fd, int slot)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1 };
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* Does a process other than the one behind this descriptor own the slot? */
static inline int board_owned(int fd, int slot)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1 };
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

#endif
