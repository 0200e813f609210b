/* The whole probe in one process: threads, forks, restarts, thread exits, and a reader beside it.
 */
#include "check.h"
#include "board_read.h"
#include "clock.h"
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *root;

static struct probe_settings settings(void)
{
    return (struct probe_settings){ .directory = root,
                                    .run = "r",
                                    .host = "h",
                                    .task_name = "test",
                                    .proc_root = "/proc",
                                    .cgroup_root = "/sys/fs/cgroup",
                                    .period_ns = 1000000 };
}

static int start(void)
{
    const char *step;
    struct probe_settings s = settings();
    return probe_start(&s, &step);
}

static task_handle begin(void)
{
    return probe_task_begin(
        &(struct task_begin){ .name = { "t", 1 }, .input_bytes = ABSENT, .reason = REASON_NONE },
        NULL);
}

static void end(task_handle task)
{
    probe_task_end(task, &(struct task_end){ .state = TASK_OK, .output_bytes = ABSENT }, NULL);
}

static uint64_t live_count(const char *path, size_t offset)
{
    struct board_reader r;
    struct board_live live;
    CHECK(board_reader_open(&r, path) == 0 && board_read_live(&r, &live) == 0);
    board_reader_close(&r);
    return *(word *)((char *)&live + offset);
}
#define LIVE(path, field) live_count(path, offsetof(struct board_live, field))

static int files(void)
{
    int n = 0;
    DIR *d = opendir(root);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void start_and_stop(void)
{
    char path[512];
    CHECK(!probe_active() && !is_somebody(begin()));
    end(handle_from_serial(1, 1, 0));
    for (int i = 0; i < 20; i++) {
        CHECK(start() == 0 && probe_active());
        CHECK(start() == -EALREADY);
        CHECK(probe_board_path(path, sizeof path) == 0);
        task_handle h = begin();
        CHECK(is_somebody(h));
        if (i % 2) end(h);
        probe_stop(BOARD_CLOSED, 0, 0);
        probe_stop(BOARD_CLOSED, 0, 0);
        /* the open one as cancelled */
        CHECK(LIVE(path, state) == BOARD_CLOSED && LIVE(path, records_written) == 1);
        unlink(path);
    }
    CHECK(start() == 0);
    probe_stop(BOARD_CLOSED, 0, 1);
    CHECK(files() == 0);
}

static void a_process_without_tasks_stays_small(void)
{
    char path[512];
    struct stat st;
    int error;
    const char *step;
    CHECK(start() == 0 && probe_board_path(path, sizeof path) == 0);
    CHECK(stat(path, &st) == 0 && st.st_size == HEAD_BYTES && LIVE(path, room_for_tasks) == 0);
    end(begin());
    CHECK(stat(path, &st) == 0 && st.st_size == BOARD_BYTES && LIVE(path, records_written) == 1);
    probe_stop(BOARD_CLOSED, 0, 1);

    CHECK(start() == 0);
    probe_expect_tasks();
    CHECK(probe_board_path(path, sizeof path) == 0 && LIVE(path, room_for_tasks) == 1);
    probe_stop(BOARD_CLOSED, 0, 1);

    CHECK(start() == 0 && probe_board_path(path, sizeof path) == 0);
    int kept = open(path, O_RDONLY);
    struct board_live live;
    /* the board cannot grow: tasks are counted as dropped, and the failure is reported once */
    CHECK(unlink(path) == 0);
    for (int i = 0; i < 3; i++) CHECK(!is_somebody(begin()));
    CHECK(probe_take_room_failure(&error, &step) && error == ENOENT
          && !strcmp(step, "open the board file"));
    CHECK(!probe_take_room_failure(&error, &step));
    CHECK(pread(kept, &live, sizeof live, LIVE_OFFSET) == sizeof live && live.tasks_dropped == 3);
    close(kept);
    probe_stop(BOARD_CLOSED, 0, 1);
}

static void *leaves_a_task_open(void *unused)
{
    begin();
    return unused;
}

static void a_thread_that_exits_ends_its_tasks(void)
{
    pthread_t thread;
    char path[512];
    CHECK(start() == 0);
    probe_board_path(path, sizeof path);
    pthread_create(&thread, NULL, leaves_a_task_open, NULL);
    pthread_join(thread, NULL);
    CHECK(LIVE(path, ends_missing) == 1 && LIVE(path, running) == 0);
    probe_stop(BOARD_CLOSED, 0, 1);
}

static word busy;

static void *work(void *unused)
{
    while (load_acquire(&busy)) end(begin());
    return unused;
}

static void fork_storm(void)
{
    pthread_t threads[4];
    char path[512];
    const int forks = SANITIZED ? 40 : 300;
    CHECK(start() == 0);
    probe_board_path(path, sizeof path);
    store_release(&busy, 1);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < forks; i++) {
        task_handle mine = begin();
        int announced = i % 2; /* as Python's fork, and as any other */
        if (announced) probe_announce_fork();
        pid_t pid = fork();
        if (pid == 0) {
            int bad = probe_active() || probe_board_path(path, sizeof path) == 0;
            end(mine);
#if !SANITIZED /* the sanitizers' own locks do not survive a fork of several threads (gcc 12): the \
                  plain build covers this */
            if (i % 3 == 0) {
                bad |= start() != 0;
                end(begin());
                probe_stop(BOARD_CLOSED, 0, 1);
            }
#endif
            _exit(bad);
        }
        if (announced) probe_restart_sampler();
        end(mine);
        int status = -1;
        waitpid(pid, &status, 0);
        CHECK(status == 0);
    }
    store_release(&busy, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    uint64_t samples = LIVE(path, samples_written), deadline = now_ns() + 600 * NS_PER_S;
    while (LIVE(path, samples_written) == samples && now_ns() < deadline) usleep(1000);
    CHECK(LIVE(path, samples_written) > samples); /* the sampler is back */
    CHECK(LIVE(path, tasks_begun) == LIVE(path, records_written) && LIVE(path, ends_unmatched) == 0
          && LIVE(path, running) == 0);
    probe_stop(BOARD_CLOSED, 0, 1);
    CHECK(files() == 0);
}

static void *read_all(void *path)
{
    static char frames[1 << 16] __attribute__((aligned(8)));
    struct board_reader r;
    struct running_task slot;
    uint64_t position = 0, last = 0;
    int64_t bytes;
    CHECK(board_reader_open(&r, path) == 0);
    while (load_acquire(&busy)) {
        for (uint64_t i = 0; i < 10; i++) CHECK(board_read_slot(&r, i, &slot) >= 0);
        while ((bytes = board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX)) > 0)
            for (int64_t at = 0; at < bytes;
                 at += (int64_t)frame_valid_bytes(&r.layout, frames + at, (uint64_t)(bytes - at))) {
                struct record found;
                CHECK(frame_unpack(&r.layout, frames + at, &found) == 0 && found.task.seq > last);
                last = found.task.seq;
            }
        CHECK(bytes == 0);
    }
    board_reader_close(&r);
    return NULL;
}

static void readers_beside_writers(void)
{
    pthread_t threads[6];
    char path[512];
    CHECK(start() == 0);
    probe_board_path(path, sizeof path);
    store_release(&busy, 1);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, NULL);
    pthread_create(&threads[4], NULL, read_all, path);
    uint64_t deadline = now_ns() + 600 * NS_PER_S, target = SANITIZED ? 20000 : 200000;
    while (LIVE(path, records_written) < target && now_ns() < deadline) usleep(1000);
    CHECK(LIVE(path, records_written) >= target);
    store_release(&busy, 0);
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    probe_stop(BOARD_CLOSED, 0, 1);
}

static void stop_while_busy(void)
{
    pthread_t threads[4];
    store_release(&busy, 1);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < (SANITIZED ? 20 : 100); i++) {
        CHECK(start() == 0);
        usleep(500);
        probe_stop(BOARD_CLOSED, i % 2, 1);
    }
    store_release(&busy, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(files() == 0);
}

/* Among a process and all its forked children, only one writes the message. */
static void a_failure_is_said_once(void)
{
    int firsts = 0, status;
    CHECK(start() == 0);
    for (int i = 0; i < 8; i++)
        if (fork() == 0) _exit(probe_claim_message(3));
    for (int i = 0; i < 8; i++)
        if (wait(&status) > 0) firsts += WEXITSTATUS(status);
    CHECK(firsts == 1);
    CHECK(!probe_claim_message(3));
    CHECK(probe_claim_message(4) && !probe_claim_message(4));
    /* an unknown kind is always written */
    CHECK(probe_claim_message(PROBE_MESSAGE_KINDS) && probe_claim_message(PROBE_MESSAGE_KINDS));
    probe_stop(BOARD_CLOSED, 0, 1);
}

int main(void)
{
    root = strdup(scratch());
    RUN(start_and_stop);
    RUN(a_process_without_tasks_stays_small);
    RUN(a_thread_that_exits_ends_its_tasks);
    RUN(fork_storm);
    RUN(a_failure_is_said_once);
    RUN(readers_beside_writers);
    RUN(stop_while_busy);
    remove_tree(root);
    free((void *)root);
    return failures;
}
