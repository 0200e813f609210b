#define _GNU_SOURCE
#include "proc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Programs expect low numbers for themselves. So the highest minimum is taken that the limit on
 * descriptors allows. */
static int move_to_high_number(int low)
{
    static const int least[] = { 900, 200, 32, 3 };
    for (unsigned i = 0; i < sizeof least / sizeof *least; i++) {
        if (low >= least[i]) return low;
        int high = fcntl(low, F_DUPFD_CLOEXEC, least[i]);
        if (high < 0) continue;
        close(low);
        return high;
    }
    close(low);
    return -1;
}

static int reopen(struct proc_file *f)
{
    struct stat st;
    int low = open(f->path, f->flags | O_CLOEXEC | O_NOCTTY);
    if (low < 0) return f->fd = -1, -errno;
    f->fd = move_to_high_number(low);
    if (f->fd < 0) return -EMFILE;
    if (fstat(f->fd, &st) < 0) return -errno;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    return 0;
}

static int is_same_file(const struct proc_file *f)
{
    struct stat st;
    return f->fd >= 0 && fstat(f->fd, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino;
}

int standard_streams_are_open(void)
{
    for (int stream = 0; stream <= 2; stream++)
        if (fcntl(stream, F_GETFD) < 0) return 0;
    return 1;
}

int proc_file_ensure_open(struct proc_file *f, uint64_t *reopened)
{
    if (is_same_file(f)) return 0;
    f->fd = -1; /* not closed: the number belongs to the job now */
    if (!f->ino) return reopen(f);
    if (!standard_streams_are_open()) return -EBADF;
    ++*reopened;
    return reopen(f);
}

int proc_file_open(struct proc_file *f, const char *root, const char *name, int flags)
{
    f->flags = flags;
    f->fd = -1;
    f->ino = 0;
    int n = snprintf(f->path, sizeof f->path, "%s/self/%s", root, name);
    if (n < 0 || (size_t)n >= sizeof f->path) return -ENAMETOOLONG;
    return reopen(f);
}

void proc_file_close(struct proc_file *f)
{
    if (is_same_file(f)) close(f->fd);
    f->fd = -1;
    f->ino = 0;
}

ssize_t proc_file_read(const struct proc_file *f, char *text, size_t size)
{
    ssize_t n = pread(f->fd, text, size - 1, 0);
    if (n < 0) return -errno;
    text[n] = 0;
    return n;
}

int proc_file_write_byte(struct proc_file *f, char byte, uint64_t *reopened)
{
    int e = proc_file_ensure_open(f, reopened);
    if (e < 0) return e;
    /* The kernel ignores the position here. If the job replaces the descriptor after the check,
     * most other files refuse this position. */
    return pwrite(f->fd, &byte, 1, INT64_MAX - 1) == 1 ? 0 : -errno;
}

ssize_t proc_read_once(const char *root, const char *name, char *text, size_t size)
{
    char path[256];
    int n = snprintf(path, sizeof path, "%s/self/%s", root, name);
    return n < 0 || (size_t)n >= sizeof path ? -ENAMETOOLONG : file_read_once(path, text, size);
}

ssize_t file_read_once(const char *path, char *text, size_t size)
{
    int low = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY),
        fd = low < 0 ? -1 : move_to_high_number(low);
    if (fd < 0) return low < 0 ? -errno : -EMFILE;
    size_t n = 0;
    ssize_t got;
    /* a read may return less than asked for, at the end of a line */
    while (n < size - 1 && (got = read(fd, text + n, size - 1 - n)) != 0) {
        if (got < 0) {
            int e = errno;
            close(fd);
            return -e;
        }
        n += (size_t)got;
    }
    close(fd);
    text[n] = 0;
    return (ssize_t)n;
}
