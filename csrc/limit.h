/* How much memory this process may use, and how much of that is left: by its memory cgroup (v1 or
 * v2), the cgroup's ancestors, and the machine. Called by probe.c at the start, by the sampler, and
 * by the Python binding.
 *
 * Every call reads the files again, because limits change and processes are moved. At most one file
 * is open at a time, on a high number. Nothing here allocates.
 *
 * The roots are "/proc" and "/sys/fs/cgroup", or fixtures. Both functions return bytes; ABSENT if
 * nothing could be read.
 */
#ifndef DWSR_LIMIT_H
#define DWSR_LIMIT_H

#include <stdint.h>

/* The smallest limit of the groups; the machine's memory if that is smaller. */
uint64_t limit_bytes(const char *proc_root, const char *cgroup_root);

/* The minimum of limit - (usage - page cache) over the groups that have a limit; the machine's
 * available memory if that is smaller. Page cache is inactive_file + active_file: usage that the
 * kernel gives back before it kills. */
uint64_t headroom_bytes(const char *proc_root, const char *cgroup_root);

#endif
