/* Files of /proc kept open in a program that closes descriptors, reuses their numbers, or is about
 * to become a daemon. */
#include "check.h"
#include "proc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

static int is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += is_open(fd);
    return n;
}

static void numbers_are_high(void)
{
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    static const struct {
        rlim_t limit;
        int least;
    } cases[] = { { 1024, 900 }, { 800, 200 }, { 100, 32 }, { 30, 3 } };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct proc_file f;
        limit = before;
        limit.rlim_cur = cases[i].limit;
        if (limit.rlim_cur > before.rlim_max) SKIP("the hard limit on descriptors is too low");
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        CHECK(proc_file_open(&f, "/proc", "statm", O_RDONLY) == 0 && f.fd >= cases[i].least);
        CHECK(fcntl(f.fd, F_GETFD) & FD_CLOEXEC);
        proc_file_close(&f);
        CHECK(f.fd < 0);
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

static void no_descriptor_left(void)
{
    struct rlimit before, limit;
    struct proc_file f;
    char text[64];
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    limit = before;
    limit.rlim_cur = 3; /* the standard streams have them all */
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(proc_file_open(&f, "/proc", "statm", O_RDONLY) == -EMFILE && f.fd < 0);
    CHECK(proc_read_once("/proc", "statm", text, sizeof text) == -EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    uint64_t reopened = 0;
    /* not counted: the file had never been open */
    CHECK(proc_file_ensure_open(&f, &reopened) == 0 && reopened == 0);
    proc_file_close(&f);
}

static void one_that_was_closed_is_opened_again(void)
{
    struct proc_file f;
    char text[256];
    uint64_t reopened = 0;
    CHECK(proc_file_open(&f, "/proc", "statm", O_RDONLY) == 0);
    CHECK(proc_file_ensure_open(&f, &reopened) == 0 && reopened == 0);
    close(f.fd);
    CHECK(proc_file_read(&f, text, sizeof text) == -EBADF);
    CHECK(proc_file_ensure_open(&f, &reopened) == 0 && reopened == 1);
    CHECK(proc_file_read(&f, text, sizeof text) > 0 && strchr(text, '\n'));
    proc_file_close(&f);
    CHECK(proc_file_ensure_open(&f, &reopened) == 0 && reopened == 1); /* closed by ourselves */
    proc_file_close(&f);
}

static void a_number_that_the_program_uses_is_left_alone(void)
{
    struct proc_file f, other;
    char path[128], text[64] = { 0 };
    uint64_t reopened = 0;
    const char *root = scratch();
    put(root, "mine", "precious");
    snprintf(path, sizeof path, "%s/mine", root);
    CHECK(proc_file_open(&f, "/proc", "clear_refs", O_WRONLY) == 0
          && proc_file_open(&other, "/proc", "statm", O_RDONLY) == 0);
    int mine = open(path, O_RDWR), taken = f.fd, also = other.fd;
    CHECK(dup2(mine, taken) == taken && dup2(mine, also) == also);
    /* into the right file */
    CHECK(proc_file_write_byte(&f, '5', &reopened) == 0 && reopened == 1 && f.fd != taken);
    proc_file_close(&other); /* the number belongs to the program now */
    CHECK(is_open(taken) && is_open(also) && other.fd < 0);
    CHECK(pread(mine, text, sizeof text - 1, 0) == 8 && !strcmp(text, "precious"));
    proc_file_close(&f);
    close(mine), close(taken), close(also);
    remove_tree(root);
}

/* If the number is reused between check and write, a regular file refuses the write. */
static void a_write_into_a_regular_file_is_refused(void)
{
    struct proc_file f;
    struct stat st;
    char path[128];
    uint64_t reopened = 0;
    const char *root = scratch();
    put(root, "self/clear_refs", "as it was");
    CHECK(proc_file_open(&f, root, "clear_refs", O_WRONLY) == 0
          && proc_file_write_byte(&f, '5', &reopened) < 0 && reopened == 0);
    snprintf(path, sizeof path, "%s/self/clear_refs", root);
    CHECK(stat(path, &st) == 0 && st.st_size == 9);
    proc_file_close(&f);
    remove_tree(root);
}

static void closed_standard_streams_are_not_filled(void)
{
    for (int stream = 0; stream <= 2; stream++) {
        struct proc_file f;
        uint64_t reopened = 0;
        CHECK(standard_streams_are_open() && proc_file_open(&f, "/proc", "statm", O_RDONLY) == 0);
        int kept = fcntl(stream, F_DUPFD_CLOEXEC, 10);
        close(stream);
        close(f.fd);
        int e = proc_file_ensure_open(&f, &reopened), filled = is_open(stream),
            streams = standard_streams_are_open();
        dup2(kept, stream);
        close(kept);
        CHECK(e == -EBADF && !filled && !streams && reopened == 0);
        /* the program has its streams */
        CHECK(proc_file_ensure_open(&f, &reopened) == 0 && reopened == 1 && f.fd > 2);
        proc_file_close(&f);
    }
}

static void files_that_are_not_there(void)
{
    struct proc_file f;
    char text[64], longest[300];
    uint64_t reopened = 0;
    CHECK(proc_file_open(&f, "/nowhere", "statm", O_RDONLY) == -ENOENT && f.fd < 0);
    CHECK(proc_file_ensure_open(&f, &reopened) == -ENOENT && reopened == 0
          && proc_file_write_byte(&f, '5', &reopened) == -ENOENT);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    CHECK(proc_file_open(&f, longest, "statm", O_RDONLY) == -ENAMETOOLONG);
    CHECK(proc_read_once(longest, "statm", text, sizeof text) == -ENAMETOOLONG);
    CHECK(proc_read_once("/nowhere", "statm", text, sizeof text) == -ENOENT);
    CHECK(file_read_once("/", text, sizeof text) == -EISDIR);
}

static void read_once_and_closed(void)
{
    char path[128], text[64], much[20000];
    int before = descriptors();
    const char *root = scratch();
    put(root, "self/stat", "0123456789");
    snprintf(path, sizeof path, "%s/self/stat", root);
    CHECK(proc_read_once(root, "stat", text, sizeof text) == 10 && !strcmp(text, "0123456789"));
    CHECK(file_read_once(path, text, 5) == 4 && !strcmp(text, "0123"));
    /* in several pieces */
    CHECK(file_read_once("/proc/self/maps", much, sizeof much) > 0
          && strstr(much, "test_proc_file"));
    CHECK(descriptors() == before);
    remove_tree(root);
}

int main(void)
{
    RUN(numbers_are_high);
    RUN(no_descriptor_left);
    RUN(one_that_was_closed_is_opened_again);
    RUN(a_number_that_the_program_uses_is_left_alone);
    RUN(a_write_into_a_regular_file_is_refused);
    RUN(closed_standard_streams_are_not_filled);
    RUN(files_that_are_not_there);
    RUN(read_once_and_closed);
    return failures;
}
