/* What the benchmarks need outside Python: spikes, memory that moves, an empty loop at the
 * sampler's rate, and the bare kernel calls. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static char *touched(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < bytes; i += 4096) ((volatile char *)p)[i] = 1;
    return p;
}

/* Touch `bytes`, note the resident size as the truth, hold, release. Returns the truth. */
uint64_t spike(size_t bytes, unsigned hold_us)
{
    char text[128], *end, *p = touched(bytes);
    int fd = open("/proc/self/statm", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    strtoull(text, &end, 10);
    uint64_t rss = strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    usleep(hold_us);
    munmap(p, bytes);
    return rss;
}

/* Resident size wanders: eight blocks of changing sizes, one replaced several times a millisecond.
 */
void move_memory(double seconds)
{
    uint64_t end = clock_of(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    char *blocks[8] = { 0 };
    size_t sizes[8] = { 0 };
    unsigned seed = 1;
    for (unsigned n = 0; clock_of(CLOCK_MONOTONIC) < end; n = (n + 1) % 8) {
        if (blocks[n]) munmap(blocks[n], sizes[n]);
        sizes[n] = (size_t)(64 + rand_r(&seed) % 448) * 4096;
        blocks[n] = touched(sizes[n]);
        usleep(100 + (unsigned)rand_r(&seed) % 300);
    }
    for (unsigned n = 0; n < 8; n++)
        if (blocks[n]) munmap(blocks[n], sizes[n]);
}

/* The work of a task that makes a reset necessary. */
void touch_and_free(size_t bytes) { munmap(touched(bytes), bytes); }

static int statm, status, clear_refs;

static void one_boundary(int reset, int floor)
{
    char text[4096];
    struct stat st;
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    if (floor && (fstat(status, &st) < 0 || pread(status, text, sizeof text - 1, 0) < 0)) abort();
    if (pread(statm, text, 127, 0) < 0) abort();
    if (reset
        && (fstat(clear_refs, &st) < 0 || pwrite(clear_refs, "5", 1, INT64_MAX - 1) < 0
            || getrusage(RUSAGE_THREAD, &u) < 0))
        abort();
}

/* Mean nanoseconds of the kernel calls of one begin/end pair with `bytes` touched and freed in
 * between: statm and mark twice, a reset and a look at the floor at the end if anything was
 * touched; below the floor that exec leaves also the slow file, twice. */
double kernel_calls(unsigned pairs, size_t bytes, int floor)
{
    uint64_t total = 0;
    statm = open("/proc/self/statm", O_RDONLY);
    status = open("/proc/self/status", O_RDONLY);
    clear_refs = open("/proc/self/clear_refs", O_WRONLY);
    for (unsigned i = 0; i < pairs; i++) {
        uint64_t t0 = clock_of(CLOCK_MONOTONIC);
        one_boundary(0, floor);
        uint64_t t1 = clock_of(CLOCK_MONOTONIC);
        if (bytes) touch_and_free(bytes);
        uint64_t t2 = clock_of(CLOCK_MONOTONIC);
        one_boundary(bytes != 0, floor);
        total += t1 - t0 + clock_of(CLOCK_MONOTONIC) - t2;
    }
    close(statm);
    close(status);
    close(clear_refs);
    return (double)total / pairs;
}

/* Nanoseconds of a malloc/free pair of that size, CPU time of this thread. */
double malloc_pairs(unsigned count, size_t bytes)
{
    uint64_t begin = clock_of(CLOCK_THREAD_CPUTIME_ID);
    for (unsigned i = 0; i < count; i++) {
        void *volatile p = malloc(bytes);
        free(p);
    }
    return (double)(clock_of(CLOCK_THREAD_CPUTIME_ID) - begin) / count;
}

static uint64_t resident(void)
{
    unsigned long pages[2] = { 0, 0 };
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lu %lu", &pages[0], &pages[1]) != 2) pages[1] = 0;
    if (f) fclose(f);
    return pages[1] * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Allocate that many blocks and keep them; the resident size then. */
uint64_t hold_blocks(unsigned count, size_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        void *volatile p = malloc(bytes);
        (void)p;
    }
    return resident();
}
