/* Files in memory and their mappings, with real files and made-up addresses: what the creating task
 * is charged with, and when it is credited. */
#include "check.h"
#include "accounts.h"
#include "shared_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define PAGE UINT64_C(4096)
#define MIB  (UINT64_C(1) << 20)
#define AT   ((uintptr_t)1 << 40)

static uint64_t next_serial = 1;
static task_handle task; /* the one that the test below runs in */

static uint64_t live_of(task_handle t)
{
    struct account_figures f = { 0 };
    CHECK(accounts_task_now(t, &f) == 0);
    return f.live_bytes;
}

static uint64_t live(void) { return live_of(task); }

static task_handle begin(uint32_t slot)
{
    task_handle t = lineage_handle(slot, next_serial++);
    accounts_task_begin(t, NOBODY);
    return t;
}

static void end(task_handle t)
{
    struct account_figures f;
    accounts_task_end(t, 0, &f);
}

/* A file without a name, whose creator is `task`. */
static int new_file(void)
{
    int fd = memfd_create("test", 0);
    CHECK(fd >= 0);
    shared_files_created(fd, 1, task);
    return fd;
}

static uint64_t map(uintptr_t address, uint64_t bytes, int fd, uint64_t offset)
{
    uint64_t charged;
    CHECK(shared_files_map(address, bytes, fd, offset, &charged) == 0);
    return charged;
}

static void unmap(uintptr_t address, uint64_t bytes)
{
    CHECK(shared_files_unmap(address, bytes) == 0);
}

static void start(void)
{
    shared_files_open();
    CHECK(!shared_files_any() && !shared_files_any_mapped());
    task = begin(0);
}

static void each_part_is_charged_once(void)
{
    start();
    int fd = new_file();
    CHECK(shared_files_any() && live() == 0);
    CHECK(map(AT, 4 * MIB, fd, 0) == 4 * MIB && live() == 4 * MIB);
    CHECK(map(AT + 64 * MIB, 4 * MIB, fd, 0) == 0 && live() == 4 * MIB);
    CHECK(map(AT + 128 * MIB, 4 * MIB, fd, 2 * MIB) == 2 * MIB && live() == 6 * MIB);
    CHECK(map(AT + 192 * MIB, MIB, fd, 10 * MIB) == MIB && live() == 7 * MIB);
    /* over both and the gap between them */
    CHECK(map(AT + 256 * MIB, 12 * MIB, fd, 0) == 5 * MIB && live() == 12 * MIB);
    CHECK(map(AT + 320 * MIB, 1, fd, 12 * MIB) == PAGE && live() == 12 * MIB + PAGE);
    for (int i = 0; i < 6; i++) {
        CHECK(live() == 12 * MIB + PAGE);
        unmap(AT + 64 * MIB * i, 12 * MIB);
    }
    CHECK(live() == 0 && !shared_files_any_mapped());
    CHECK(map(AT, MIB, fd, 0) == MIB && live() == MIB); /* the descriptor is still open */
    unmap(AT, MIB);
    CHECK(live() == 0);
    close(fd);
    end(task);
}

static void parts_of_a_mapping_are_unmapped(void)
{
    start();
    int fd = new_file();
    map(AT, 8 * MIB, fd, 0);
    unmap(AT + 2 * MIB, MIB); /* a hole */
    unmap(AT, MIB);           /* the begin */
    unmap(AT + 7 * MIB, 9 * MIB);
    unmap(AT + 100 * MIB, MIB); /* nothing is there */
    CHECK(live() == 8 * MIB);
    unmap(AT + MIB, MIB);
    CHECK(live() == 8 * MIB);
    unmap(AT + 3 * MIB, 4 * MIB);
    CHECK(live() == 0);
    /* another mapping in the place of this one */
    int other = new_file();
    map(AT, 8 * MIB, fd, 0);
    CHECK(map(AT, 3 * MIB, other, 0) == 3 * MIB && live() == 11 * MIB);
    CHECK(map(AT, 8 * MIB, other, 0) == 5 * MIB && live() == 8 * MIB);
    unmap(AT, 8 * MIB);
    CHECK(live() == 0);
    close(fd), close(other);
    end(task);
}

static void a_name_keeps_the_bytes(void)
{
    char path[] = "/dev/shm/dwsr-test-XXXXXX", second[64];
    struct shared_file_id id;
    start();
    int fd = mkstemp(path);
    if (fd < 0) SKIP("/dev/shm cannot be written to");
    shared_files_created(fd, 1, task);
    map(AT, MIB, fd, 0);
    unmap(AT, MIB);
    CHECK(live() == MIB);
    snprintf(second, sizeof second, "%s-2", path);
    CHECK(link(path, second) == 0);
    CHECK(!shared_files_find_last_name(AT_FDCWD, path, &id) && unlink(path) == 0);
    CHECK(shared_files_find_last_name(AT_FDCWD, second, &id) && unlink(second) == 0);
    CHECK(!shared_files_find_last_name(AT_FDCWD, second, &id));
    shared_files_unlinked(id);
    CHECK(live() == 0);
    map(AT, MIB, fd, 0);
    shared_files_unlinked(id); /* mapped: only the name is gone */
    CHECK(live() == MIB);
    unmap(AT, MIB);
    CHECK(live() == 0);
    close(fd);
    end(task);
}

static void only_created_files_in_memory(void)
{
    char disk[] = "./dwsr-test-XXXXXX", memory[] = "/dev/shm/dwsr-test-XXXXXX";
    start();
    int fd = mkstemp(disk);
    CHECK(fd >= 0 && unlink(disk) == 0);
    shared_files_created(fd, 1, task);
    if (!shared_files_any()) CHECK(map(AT, MIB, fd, 0) == 0); /* else this folder is in memory */
    close(fd);
    shared_files_open();
    shared_files_created(open("/dev/null", O_RDWR), 0, task);
    CHECK(!shared_files_any());
    fd = mkstemp(memory);
    if (fd < 0) SKIP("/dev/shm cannot be written to");
    CHECK(unlink(memory) == 0 && ftruncate(fd, MIB) == 0);
    shared_files_created(fd, 0, task); /* it has content: another process made it */
    CHECK(!shared_files_any() && map(AT, MIB, fd, 0) == 0);
    CHECK(ftruncate(fd, 0) == 0);
    shared_files_created(fd, 0, task);
    CHECK(shared_files_any() && map(AT, MIB, fd, 0) == MIB);
    close(fd);
    end(task);
}

static void the_creator_pays_whoever_maps(void)
{
    start();
    int fd = new_file();
    task_handle second = begin(1);
    map(AT, MIB, fd, 0);
    CHECK(live() == MIB && live_of(second) == 0);
    end(second);
    /* the file of an ended task is nobody's */
    int later = new_file();
    end(task);
    second = begin(1);
    CHECK(map(AT + 64 * MIB, MIB, later, 0) == MIB && live_of(second) == 0);
    unmap(AT, 128 * MIB);
    CHECK(live_of(second) == 0);
    end(second);
    close(fd), close(later);
}

static void files_grow_and_shrink(void)
{
    start();
    int fd = new_file();
    CHECK(ftruncate(fd, 4 * MIB) == 0 && shared_files_resized(fd) == 0);
    map(AT, 4 * MIB, fd, 0);
    CHECK(ftruncate(fd, MIB + 1) == 0 && shared_files_resized(fd) == 0);
    CHECK(live() == MIB + PAGE);
    CHECK(ftruncate(fd, 2 * MIB) == 0 && shared_files_resized(fd) == 0);
    CHECK(live() == 2 * MIB);
    CHECK(ftruncate(fd, 64 * MIB) == 0 && shared_files_resized(fd) == 0);
    CHECK(live() == 4 * MIB); /* as much as is mapped */
    CHECK(ftruncate(fd, 0) == 0);
    shared_files_created(fd, 0, task); /* opened again with O_TRUNC */
    CHECK(live() == 0);
    CHECK(ftruncate(fd, MIB) == 0 && shared_files_resized(fd) == 0 && live() == MIB);
    unmap(AT, 4 * MIB);
    CHECK(live() == 0);
    close(fd);
    end(task);
}

static void mappings_move(void)
{
    start();
    int fd = new_file();
    map(AT, 4 * MIB, fd, MIB);
    struct shared_part part = shared_files_begin_move(AT, 4 * MIB, 0);
    CHECK(part.file && part.offset == MIB && live() == 4 * MIB);
    CHECK(shared_files_end_move(part, AT + 64 * MIB, 6 * MIB) == 0 && live() == 6 * MIB);
    part = shared_files_begin_move(AT + 64 * MIB + PAGE, PAGE, 0); /* a page of it */
    CHECK(part.file && part.offset == MIB + PAGE);
    CHECK(shared_files_end_move(part, AT, PAGE) == 0 && live() == 6 * MIB);
    part = shared_files_begin_move(AT, 0, 1); /* duplicated */
    CHECK(shared_files_end_move(part, AT + 32 * MIB, PAGE) == 0 && live() == 6 * MIB);
    part = shared_files_begin_move(AT, PAGE, 0); /* refused */
    CHECK(shared_files_end_move(part, AT, PAGE) == 0 && live() == 6 * MIB);
    CHECK(!shared_files_begin_move(AT + 16 * MIB, PAGE, 0).file);
    unmap(AT + 64 * MIB, 6 * MIB);
    unmap(AT + 32 * MIB, PAGE);
    CHECK(live() == 6 * MIB);
    unmap(AT, PAGE);
    CHECK(live() == 0 && !shared_files_any_mapped());
    close(fd);
    end(task);
}

/* Files without bytes make room for others; files with bytes stay. */
static void more_files_than_fit(void)
{
    start();
    int first = new_file(), fd;
    map(AT, MIB, first, 0);
    for (int i = 0; i < 3 * SHARED_FILES; i++) close(new_file());
    CHECK(load_relaxed(&shared_files_known) == SHARED_FILES && live() == MIB);
    fd = new_file();
    CHECK(map(AT + 64 * MIB, MIB, fd, 0) == MIB && live() == 2 * MIB);
    close(fd);
    unmap(AT, 128 * MIB);
    CHECK(live() == 0);
    close(first);
    static int kept[SHARED_FILES];
    struct rlimit descriptors;
    CHECK(getrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    descriptors.rlim_cur = descriptors.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    uint64_t charged;
    shared_files_open();
    for (int i = 0; i < SHARED_FILES; i++) {
        if ((kept[i] = memfd_create("test", 0)) < 0) SKIP("too few descriptors");
        shared_files_created(kept[i], 1, task);
        map(AT + PAGE * 2 * i, PAGE, kept[i], 0);
    }
    CHECK(live() == SHARED_FILES * PAGE);
    fd = new_file();
    CHECK(shared_files_map(AT - MIB, MIB, fd, 0, &charged) == MIB && charged == 0);
    CHECK(live() == SHARED_FILES * PAGE);
    unmap(AT, 2 * PAGE * SHARED_FILES);
    CHECK(live() == 0);
    for (int i = 0; i < SHARED_FILES; i++) close(kept[i]);
    close(fd);
    end(task);
}

static void more_mappings_than_fit(void)
{
    start();
    int fd = new_file();
    uint64_t charged, lost = 0;
    for (uint64_t i = 0; i < SHARED_MAPPINGS + 5; i++)
        lost += shared_files_map(AT + 2 * PAGE * i, PAGE, fd, 2 * PAGE * i, &charged);
    CHECK(lost == 5 * PAGE && live() == SHARED_MAPPINGS * PAGE);
    unmap(AT, 4 * PAGE * SHARED_MAPPINGS);
    CHECK(live() == 0 && !shared_files_any_mapped());
    close(fd);
    end(task);
}

static void a_child_forgets(void)
{
    start();
    int fd = new_file();
    map(AT, MIB, fd, 0);
    fflush(stdout);
    shared_files_lock();
    pid_t pid = fork();
    if (pid == 0) {
        failures = 0;
        shared_files_reset_in_child();
        CHECK(!shared_files_any() && !shared_files_any_mapped());
        unmap(AT, MIB);
        CHECK(map(AT, MIB, fd, 0) == 0);
        _exit(failures != 0);
    }
    shared_files_unlock();
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0 && live() == MIB);
    unmap(AT, MIB);
    CHECK(live() == 0);
    close(fd);
    end(task);
}

#define THREADS 4
static void *use_files(void *p)
{
    const uintptr_t at = AT + (uintptr_t)p * 64 * MIB;
    for (int i = 0; i < 500; i++) {
        int fd = new_file();
        map(at, 2 * PAGE, fd, 0);
        struct shared_part part = shared_files_begin_move(at, 2 * PAGE, 0);
        CHECK(part.file && shared_files_end_move(part, at + MIB, 4 * PAGE) == 0);
        unmap(at + MIB, 4 * PAGE);
        close(fd);
    }
    return NULL;
}

static void many_threads(void)
{
    pthread_t threads[THREADS];
    start();
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, use_files, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(live() == 0 && !shared_files_any_mapped());
    end(task);
}

int main(void)
{
    lineage_open(NULL);
    accounts_open();
    RUN(each_part_is_charged_once);
    RUN(parts_of_a_mapping_are_unmapped);
    RUN(a_name_keeps_the_bytes);
    RUN(only_created_files_in_memory);
    RUN(the_creator_pays_whoever_maps);
    RUN(files_grow_and_shrink);
    RUN(mappings_move);
    RUN(more_files_than_fit);
    RUN(more_mappings_than_fit);
    RUN(a_child_forgets);
    RUN(many_threads);
    return failures;
}
