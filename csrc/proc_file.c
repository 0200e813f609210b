#define _GNU_SOURCE
#include "proc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Away from the low numbers, which programs expect to get for themselves; as high as the limit on descriptors allows. */
static int move_up(int low)
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

static int open_again(struct proc_file *f)
{
    struct stat st;
    int low = open(f->path, f->flags | O_CLOEXEC | O_NOCTTY);
    if (low < 0) return f->fd = -1, -errno;
    f->fd = move_up(low);
    if (f->fd < 0) return -EMFILE;
    if (fstat(f->fd, &st) < 0) return -errno;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    return 0;
}

static int still_ours(const struct proc_file *f)
{
    struct stat st;
    return f->fd >= 0 && fstat(f->fd, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino;
}

int proc_file_ensure(struct proc_file *f, uint64_t *reopened)
{
    if (still_ours(f)) return 0;
    f->fd = -1; /* whatever the descriptor is now, it is the job's: not closed here */
    /* A program that has closed its standard streams is about to open others in their place: not even for a moment may we be there. */
    for (int stream = 0; stream <= 2; stream++)
        if (fcntl(stream, F_GETFD) < 0) return -EBADF;
    ++*reopened;
    return open_again(f);
}

int proc_file_open(struct proc_file *f, const char *root, const char *name, int flags)
{
    f->flags = flags;
    f->fd = -1;
    int n = snprintf(f->path, sizeof f->path, "%s/self/%s", root, name);
    if (n < 0 || (size_t)n >= sizeof f->path) return -ENAMETOOLONG;
    return open_again(f);
}

void proc_file_close(struct proc_file *f)
{
    if (still_ours(f)) close(f->fd);
    f->fd = -1;
}

ssize_t proc_file_read(const struct proc_file *f, char *text, size_t size)
{
    ssize_t n = pread(f->fd, text, size - 1, 0);
    if (n < 0) return -errno;
    text[n] = 0;
    return n;
}

int proc_file_poke(struct proc_file *f, char byte, uint64_t *reopened)
{
    int e = proc_file_ensure(f, reopened);
    if (e < 0) return e;
    /* The kernel ignores the position here. Should the job swap the descriptor within this microsecond, most other files refuse it. */
    return pwrite(f->fd, &byte, 1, INT64_MAX - 1) == 1 ? 0 : -errno;
}

ssize_t proc_read_once(const char *root, const char *name, char *text, size_t size)
{
    struct proc_file f;
    int e = proc_file_open(&f, root, name, O_RDONLY);
    if (e < 0) return e;
    ssize_t n = proc_file_read(&f, text, size);
    proc_file_close(&f);
    return n;
}
