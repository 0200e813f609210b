/* The sampler: its period, samples, headroom and descriptors; start, stop and fork. */
#define _GNU_SOURCE
#include "check.h"
#include "clock.h"
#include "sampler.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MS  UINT64_C(1000000)
#define MIB (UINT64_C(1) << 20)

/* The next period in ms, from the present one in ms and what else is not 0. */
#define NEXT(present, ...) \
    (sampler_next_period(&(struct sampler_pace){ MS, (present) * MS, __VA_ARGS__ }) / MS)

static void the_period_backs_off(void)
{
    uint64_t period = NEXT(1, .running = 1, .flat_samples = 3);
    CHECK(period == 1); /* constant, but not for long */
    for (int i = 0; i < 10; i++) period = NEXT(period, .running = 1, .flat_samples = 8);
    CHECK(period == 16);
    CHECK(NEXT(period, .running = 1, .rss_changed = 1) == 1);
    for (int i = 0; i < 10; i++) period = NEXT(period, .flat_samples = 8);
    CHECK(period == 100);
    CHECK(NEXT(100, .rss_changed = 1) == 10);
    CHECK(NEXT(100, .running = 1) == 1); /* a task began */
    CHECK(NEXT(1, .running = 1, .rss_changed = 1, .busy_samples = 3) == 1);
    CHECK(NEXT(1, .running = 1, .rss_changed = 1, .busy_samples = 4) == 8); /* many short tasks */
    CHECK(NEXT(16, .running = 1, .busy_samples = 9) == 16);                 /* constant as well */
    CHECK(NEXT(8, .running = 1, .rss_changed = 1) == 1);                    /* a task that lasts */
    CHECK(NEXT(1, .running = 1, .rss_changed = 1, .over_share = 1) == 16);
}

static void the_sampler_keeps_to_its_share_of_a_core(void)
{
    struct sampler_allowance a = { 0 };
    CHECK(!sampler_is_over_share(&a, 1000 * MS, 5 * MS)); /* half a percent of a second */
    CHECK(sampler_is_over_share(&a, 1000 * MS, 6 * MS));
    CHECK(!sampler_is_over_share(&a, 1200 * MS, 6 * MS));
    /* after a quiet hour not 18 s at once */
    CHECK(!sampler_is_over_share(&a, 3600000 * MS, 6 * MS));
    CHECK(!sampler_is_over_share(&a, 3600000 * MS, 16 * MS));
    CHECK(sampler_is_over_share(&a, 3600000 * MS, 17 * MS));
}

static struct board board;
static struct rss rss;
static struct sampler sampler;
static word running;
static const struct sampler_settings settings = { .board = &board,
                                                  .rss = &rss,
                                                  .running = &running,
                                                  .cgroup_root = "/sys/fs/cgroup",
                                                  .period_ns = MS };
static const char *root;

static void open_all(int keep_peak)
{
    uint64_t max;
    const char *step;
    root = scratch();
    struct board_settings s = { .directory = root, .pid = 1 };
    CHECK(board_create(&board, &s, &step) == 0);
    rss_open(&rss, "/proc", keep_peak, &max);
    store_relaxed(&board.live->rss_source, rss.source);
    store_relaxed(&running, 1);
    memset(&sampler, 0, sizeof sampler);
    CHECK(sampler_start(&sampler, &settings) == 0);
}

static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* pthread_join alone leaves it there for a moment. */
static void a_stopped_sampler_is_no_thread_any_more(void)
{
    int before = threads(); /* a sanitizer may have one of its own */
    open_all(0);
    for (int i = 0; i < 300; i++) {
        sampler_stop(&sampler);
        CHECK(threads() == before);
        CHECK(sampler_start(&sampler, &settings) == 0);
    }
    sampler_stop(&sampler);
    rss_close(&rss);
    board_unmap(&board, 1);
    remove_tree(root);
}

static void close_all(void)
{
    sampler_stop(&sampler);
    rss_close(&rss);
    board_unmap(&board, 1);
    remove_tree(root);
}

static void wait_for_samples(uint64_t more)
{
    uint64_t target = load_acquire(&board.live->samples_written) + more,
             deadline = now_ns() + 600 * NS_PER_S;
    while (load_acquire(&board.live->samples_written) < target && now_ns() < deadline) usleep(200);
    CHECK(load_acquire(&board.live->samples_written) >= target);
}

static void it_publishes_the_window(void)
{
    open_all(0);
    wait_for_samples(2);
    uint64_t before = load_relaxed(&board.live->rss_bytes);
    char *p = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t i = 0; i < 64 * MIB; i += 4096) p[i] = 1;
    munmap(p, 64 * MIB); /* freed before the next sample: only the kernel's mark shows it */
    wait_for_samples(3);
    CHECK(load_acquire(&board.live->window_boundary) == 0);
    CHECK(load_acquire(&board.live->window_peak_bytes) >= before + 63 * MIB);
    CHECK(load_acquire(&board.live->rss_max_bytes) >= before + 63 * MIB);
    /* A boundary: the peak of the old window must not be credited to the new one. */
    uint64_t max;
    struct rss other;
    rss_open(&other, "/proc", 0, &max); /* resets the mark */
    store_release(&board.live->boundary, 2);
    wait_for_samples(3);
    CHECK(load_acquire(&board.live->window_boundary) == 2);
    if (!SANITIZED) CHECK(load_acquire(&board.live->window_peak_bytes) < before + 32 * MIB);
    rss_close(&other);
    close_all();
}

static void an_idle_one_wakes_at_a_nudge(void)
{
    open_all(0);
    store_relaxed(&running, 0);
    uint64_t deadline = now_ns() + 600 * NS_PER_S;
    while (load_acquire(&board.live->sampler_period_ns) < 10 * MS && now_ns() < deadline)
        usleep(1000);
    CHECK(load_acquire(&board.live->sampler_period_ns) >= 10 * MS);
    wait_for_samples(1);
    store_seq_cst(&running, 1);
    sampler_wake_if_idle(&sampler);
    wait_for_samples(2);
    CHECK(load_acquire(&board.live->sampler_period_ns) <= 16 * MS);
    close_all();
}

static void headroom_is_read_seldom(void)
{
    CHECK(sampler_headroom_period(1, 50000) == 250 * MS);
    CHECK(sampler_headroom_period(0, 50000) == 2000 * MS);
    /* a group whose figures are slow to read */
    CHECK(sampler_headroom_period(1, 3 * MS) == 3000 * MS);
    open_all(1);
    wait_for_samples(2);
    CHECK(load_acquire(&board.live->headroom_bytes) != ABSENT
          && load_acquire(&board.live->headroom_bytes) > 0);
    for (int i = 0; i < 20; i++) { /* many starts in a row read it no more often */
        sampler_stop(&sampler);
        uint64_t read_ns = sampler.headroom_read_ns;
        CHECK(sampler_start(&sampler, &settings) == 0);
        wait_for_samples(1);
        sampler_stop(&sampler);
        CHECK(sampler.headroom_read_ns == read_ns
              || sampler.headroom_read_ns - read_ns >= 250 * MS);
        CHECK(sampler_start(&sampler, &settings) == 0);
    }
    close_all();
}

static void started_and_stopped_many_times(void)
{
    open_all(1);
    for (int i = 0; i < 200; i++) {
        sampler_stop(&sampler);
        sampler_stop(&sampler);
        CHECK(sampler_start(&sampler, &settings) == 0);
    }
    CHECK(load_acquire(&board.live->samples_written) >= 200); /* each took a last sample */
    close_all();
}

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* The job's files stay open and locked as they are, and it sees none of ours. */
static void it_has_descriptors_of_its_own(void)
{
    if (SANITIZED) SKIP("the sanitizers open files of their own");
    /* it would refuse a range that ends before it begins */
    if (syscall(436, 1, 0, 0) >= 0 || errno != EINVAL) SKIP("no close_range");
    open_all(1);
    sampler_stop(&sampler);
    rss_close(&rss); /* only the tasks' files count */
    FILE *kept = tmpfile();
    CHECK(fcntl(fileno(kept), F_SETLK, &(struct flock){ .l_type = F_WRLCK }) == 0);
    int before = descriptors();
    CHECK(sampler_start(&sampler, &settings) == 0);
    wait_for_samples(3);
    CHECK(descriptors() == before);
    /* the job closes descriptors: none of them is the sampler's */
    for (int fd = 900; fd < 910; fd++) close(fd);
    wait_for_samples(3);
    CHECK(load_acquire(&board.live->rss_bytes) > 0
          && load_relaxed(&board.live->files_reopened) == 0);
    sampler_stop(&sampler);
    CHECK(descriptors() == before);
    pid_t pid = fork();
    if (pid == 0) { /* the lock is the parent's still */
        struct flock lock = { .l_type = F_WRLCK };
        _exit(fcntl(fileno(kept), F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK
                      && lock.l_pid == getppid()
                  ? 0
                  : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    fclose(kept);
    CHECK(sampler_start(&sampler, &settings) == 0);
    close_all();
}

int main(void)
{
    RUN(the_period_backs_off);
    RUN(the_sampler_keeps_to_its_share_of_a_core);
    RUN(it_publishes_the_window);
    RUN(an_idle_one_wakes_at_a_nudge);
    RUN(headroom_is_read_seldom);
    RUN(started_and_stopped_many_times);
    RUN(it_has_descriptors_of_its_own);
    RUN(a_stopped_sampler_is_no_thread_any_more);
    return failures;
}
