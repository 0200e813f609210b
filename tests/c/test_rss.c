/* Resident set and high-water mark: windows with known peaks, the floor after exec, lost files. */
#define _GNU_SOURCE
#include "check.h"
#include "rss.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

static void spike(uint64_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t i = 0; i < bytes; i += 4096) p[i] = 1;
    munmap(p, bytes);
}

static int near(uint64_t value, uint64_t truth, uint64_t error)
{
    return value + error >= truth && value <= truth + error;
}

static void error_bound_grows_with_cpus(void)
{
    CHECK(rss_error_bound((struct rss_machine){ 6, 18, 2, 4, 4096 }) == 32 * 2 * 4096);
    CHECK(rss_error_bound((struct rss_machine){ 6, 2, 64, 128, 4096 })
          == 128 * 64 * 4096); /* 32 MiB */
    CHECK(rss_error_bound((struct rss_machine){ 6, 1, 64, 8, 4096 }) == 64 * 8 * 4096);
    CHECK(rss_error_bound((struct rss_machine){ 5, 10, 0, 0, 4096 }) == 64 * 4096);
}

static void windows_have_their_own_peaks(void)
{
    struct rss r;
    struct rss_window w;
    uint64_t max;
    rss_open(&r, "/proc", 0, &max);
    CHECK(r.source == RSS_KERNEL);
    CHECK(max != ABSENT && max >= rss_now(&r) / 2);
    spike(200 * MIB); /* page tables are warm from here on */
    const uint64_t sizes[] = { 100 * MIB, 10 * MIB, 60 * MIB, 1 * MIB };
    rss_window_end(&r, &w, NULL);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t base = rss_now(&r);
        spike(sizes[i]);
        rss_window_end(&r, &w, NULL);
        if (!SANITIZED) CHECK(near(w.peak_bytes - base, sizes[i], 2 * r.error_bytes));
        CHECK(w.reset && w.gap_ns > 0);
    }
    rss_window_end(&r, &w, NULL);
    CHECK(!w.reset); /* mark and rss agree: no reset */
    rss_close(&r);
}

static void keep_peak_leaves_the_mark_alone(void)
{
    struct rss r;
    struct rss_window w;
    uint64_t max;
    spike(150 * MIB);
    rss_open(&r, "/proc", 1, &max);
    CHECK(r.source == RSS_SAMPLED);
    rss_window_end(&r, &w, NULL);
    CHECK(!w.reset && w.peak_bytes == w.rss_bytes);
    CHECK(rss_high_water_mark(&r, 1) >= w.rss_bytes + 100 * MIB);
    rss_close(&r);
}

static void without_clear_refs_peaks_are_sampled(void)
{
    const char *root = scratch();
    struct rss r;
    uint64_t max;
    put(root, "self/statm", "100 50 3 1 0 40 0\n");
    put(root, "self/status", "Name:\tx\nVmHWM:\t    300 kB\nVmRSS:\t 200 kB\n");
    rss_open(&r, root, 0, &max);
    CHECK(r.source == RSS_SAMPLED);
    CHECK(max == 300 * 1024);
    CHECK(rss_now(&r) == 50 * r.page_bytes);
    rss_close(&r);
    remove_tree(root);
}

static void a_reset_that_does_nothing_is_not_believed(void)
{
    const char *root = scratch();
    struct rss r;
    uint64_t max;
    put(root, "self/statm", "100 50 3 1 0 40 0\n");
    put(root, "self/status", "VmHWM:\t 900000 kB\n");
    put(root, "self/clear_refs", "");
    rss_open(&r, root, 0, &max);
    CHECK(r.source == RSS_SAMPLED);
    rss_close(&r);
    remove_tree(root);
}

static void unreadable_is_absent(void)
{
    struct rss r;
    struct rss_window w;
    uint64_t max;
    rss_open(&r, "/nowhere", 0, &max);
    CHECK(max == ABSENT && rss_now(&r) == ABSENT);
    rss_window_end(&r, &w, NULL);
    CHECK(w.rss_bytes == ABSENT && w.peak_bytes == ABSENT);
    rss_close(&r);
    const char *root = scratch();
    put(root, "self/statm", "garbage");
    rss_open(&r, root, 0, &max);
    CHECK(rss_now(&r) == ABSENT);
    const char *almost[] = { "100 50 3 1 0 40 0",
                             "100 50 3 1 0 40 0\n1",
                             "100 50 3 1 2 40 0\n",
                             "100 200 3 1 0 40 0\n",
                             "100  50 3 1 0 40 0\n",
                             "",
                             "1 2 3\n" };
    for (unsigned i = 0; i < sizeof almost / sizeof *almost; i++) {
        put(root, "self/statm", almost[i]);
        CHECK(rss_now(&r) == ABSENT);
    }
    put(root, "self/statm", "100 50 3 1 0 40 0\n");
    CHECK(rss_now(&r) == 50 * r.page_bytes);
    rss_close(&r);
    remove_tree(root);
}

/* The floor: a process exec'd by a large one starts with ru_maxrss at its parent's size. */
static int floor_child(void)
{
    struct rss r;
    struct rss_window w;
    uint64_t max;
    rss_open(&r, "/proc", 0, &max);
    rss_window_end(&r, &w, NULL);
    if (!SANITIZED) CHECK(w.peak_bytes < 60 * MIB); /* not the parent's 300 MiB */
    uint64_t base = rss_now(&r);
    spike(50 * MIB);
    rss_window_end(&r, &w, NULL);
    /* below the floor: from VmHWM */
    if (!SANITIZED) CHECK(near(w.peak_bytes - base, 50 * MIB, 2 * r.error_bytes));
    if (!SANITIZED) CHECK(rss_high_water_mark(&r, 0) == ABSENT);
    spike(400 * MIB);
    CHECK(rss_high_water_mark(&r, 0) != ABSENT); /* above it: from getrusage */
    rss_window_end(&r, &w, NULL);
    if (!SANITIZED) CHECK(near(w.peak_bytes - base, 400 * MIB, 2 * r.error_bytes));
    /* Above the floor page by page, with a window each, and back: afterwards ru_maxrss is the
     * floor, not the mark. */
    uint64_t floor = r.floor_bytes;
    char *p = mmap(NULL, 400 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t touched = 0;
    for (; touched < 400 * MIB && rss_now(&r) + 4 * MIB < floor; touched += MIB)
        for (uint64_t i = touched; i < touched + MIB; i += 4096) p[i] = 1;
    for (uint64_t i = touched; i < touched + 8 * MIB && i < 400 * MIB; i += 4096) {
        p[i] = 1;
        rss_window_end(&r, &w, NULL);
    }
    munmap(p, 400 * MIB);
    rss_window_end(&r, &w, NULL);
    rss_window_end(&r, &w, NULL);
    if (!SANITIZED) CHECK(near(w.peak_bytes, rss_now(&r), 2 * r.error_bytes));
    return failures;
}

static void floor_across_exec(void)
{
    volatile char *big = malloc(300 * MIB);
    for (uint64_t i = 0; i < 300 * MIB; i += 4096) big[i] = 1;
    pid_t pid = fork(); /* the copy has the parent's pages, so exec passes 300 MiB on */
    if (pid == 0) {
        execl("/proc/self/exe", "test_rss", "floor", NULL);
        _exit(99);
    }
    free((void *)big);
    int status;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
}

static void a_failed_reset_is_tried_again(void)
{
    struct rss r;
    struct rss_window w;
    uint64_t max;
    rss_open(&r, "/proc", 0, &max);
    char good[sizeof r.clear_refs.path];
    memcpy(good, r.clear_refs.path, sizeof good);
    close(r.clear_refs.fd);
    strcpy(r.clear_refs.path, "/nowhere");
    spike(50 * MIB);
    rss_window_end(&r, &w, NULL);
    /* this peak was read; the next ones cannot be */
    CHECK(w.source == RSS_KERNEL && r.source == RSS_SAMPLED);
    rss_window_end(&r, &w, NULL);
    CHECK(w.source == RSS_SAMPLED);
    memcpy(r.clear_refs.path, good, sizeof good);
    rss_window_end(&r, &w, NULL);
    CHECK(r.source == RSS_KERNEL);
    spike(50 * MIB);
    rss_window_end(&r, &w, NULL);
    CHECK(w.source == RSS_KERNEL && w.reset);
    rss_close(&r);
}

static void closed_streams_are_not_filled(void)
{
    struct rss r;
    uint64_t max;
    rss_open(&r, "/proc", 0, &max);
    int kept = dup(0), statm = r.statm.fd;
    close(0);
    close(statm);
    /* the number 0 is for the program's next open */
    CHECK(rss_now(&r) == ABSENT && fcntl(0, F_GETFD) < 0);
    dup2(kept, 0);
    CHECK(rss_now(&r) != ABSENT && r.statm.fd > 2);
    close(kept);
    rss_close(&r);
}

static void descriptors_taken_away_are_opened_again(void)
{
    struct rss r;
    struct rss_window w;
    uint64_t max;
    char text[16] = { 0 };
    const char *root = scratch();
    char path[128];
    rss_open(&r, "/proc", 0, &max);
    int taken[3] = { r.statm.fd, r.status.fd, r.clear_refs.fd };
    put(root, "mine", "precious");
    snprintf(path, sizeof path, "%s/mine", root);
    for (int i = 0; i < 3; i++) {
        int mine = open(path, O_RDWR);
        dup2(mine, taken[i]); /* the job reuses our number for a file of its own */
        close(mine);
    }
    spike(80 * MIB);
    rss_window_end(&r, &w, NULL);
    CHECK(w.rss_bytes != ABSENT && w.reset);
    CHECK(r.reopened >= 2);
    rss_close(&r);
    /* neither closed nor written */
    for (int i = 0; i < 3; i++)
        CHECK(pread(taken[i], text, 15, 0) == 8 && !strcmp(text, "precious"));
    remove_tree(root);
}

static void few_descriptors_are_held(void)
{
    struct rss r, reader;
    struct rss_window w;
    uint64_t max;
    rss_open(&r, "/proc", 0, &max);
    rss_close(&r);
    CHECK(r.statm.fd < 0 && r.status.fd < 0 && r.clear_refs.fd < 0);
    rss_open_reader(&reader, &r);
    CHECK(reader.statm.fd < 0 && reader.status.fd < 0);
    /* opened at its first use: not counted as reopened */
    CHECK(rss_now(&reader) != ABSENT && reader.reopened == 0);
    spike(80 * MIB);
    rss_window_end(&r, &w, NULL);
    CHECK(w.reset && w.source == RSS_KERNEL && r.reopened == 0);
    spike(80 * MIB);
    rss_window_end(&r, &w, NULL);
    if (rss_high_water_mark(&r, 0) != ABSENT)
        CHECK(r.status.fd < 0); /* above the floor it is not needed */
    rss_close(&reader);
    rss_close(&r);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "floor")) return floor_child();
    RUN(error_bound_grows_with_cpus);
    RUN(windows_have_their_own_peaks);
    RUN(keep_peak_leaves_the_mark_alone);
    RUN(without_clear_refs_peaks_are_sampled);
    RUN(a_reset_that_does_nothing_is_not_believed);
    RUN(unreadable_is_absent);
    RUN(floor_across_exec);
    RUN(a_failed_reset_is_tried_again);
    RUN(closed_streams_are_not_filled);
    RUN(descriptors_taken_away_are_opened_again);
    RUN(few_descriptors_are_held);
    return failures;
}
