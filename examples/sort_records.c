/* Records of a program that is not Python: it counts its own allocations, and writes a line of JSON
 * for each task. Run it:
 *
 *     cc -O2 -o sort_records examples/sort_records.c
 *     ./sort_records | dwsr-probe predict --learn - --task sort --nbytes 1GB
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t live_bytes, peak_bytes; /* of the present task */

static void *take(size_t size)
{
    void *block = malloc(size);
    if (!block) {
        fprintf(stderr, "no memory for %zu bytes\n", size);
        exit(1);
    }
    live_bytes += size;
    if (live_bytes > peak_bytes) peak_bytes = live_bytes;
    return block;
}

static void give(void *block, size_t size)
{
    free(block);
    live_bytes -= size;
}

/* A sorted copy. Its merges need the same once more: the peak is twice the input. */
static double *sort(const double *values, size_t count)
{
    size_t bytes = count * sizeof *values;
    double *from = take(bytes), *to = take(bytes);
    memcpy(from, values, bytes);
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            size_t left = begin, right = middle;
            for (size_t i = begin; i < end; i++) {
                int from_left = left < middle && (right >= end || from[left] <= from[right]);
                to[i] = from_left ? from[left++] : from[right++];
            }
        }
        double *merged = to;
        to = from;
        from = merged;
    }
    give(to, bytes);
    return from;
}

/* How often each of 100,000 ranges occurs: the peak does not depend on the input. */
enum { BINS = 100000 };

static uint64_t *histogram(const double *values, size_t count)
{
    uint64_t *bins = take(BINS * sizeof *bins);
    memset(bins, 0, BINS * sizeof *bins);
    for (size_t i = 0; i < count; i++) bins[(size_t)(values[i] * BINS)]++;
    return bins;
}

static void record(const char *task_name, size_t input_bytes, size_t output_bytes)
{
    printf("{\"task_name\": \"%s\", \"input_bytes\": %zu, \"output_bytes\": %zu, "
           "\"alloc_peak_bytes\": %zu}\n",
           task_name, input_bytes, output_bytes, peak_bytes);
    peak_bytes = live_bytes;
}

int main(void)
{
    for (size_t count = 100000; count <= 500000; count += 50000) {
        size_t bytes = count * sizeof(double);
        double *values = malloc(bytes); /* the input is not the task's own */
        if (!values) return 1;
        for (size_t i = 0; i < count; i++) values[i] = rand() / (RAND_MAX + 1.0);
        double *sorted = sort(values, count);
        give(sorted, bytes);
        record("sort", bytes, bytes);
        give(histogram(values, count), BINS * sizeof(uint64_t));
        record("histogram", bytes, BINS * sizeof(uint64_t));
        free(values);
    }
    return 0;
}
