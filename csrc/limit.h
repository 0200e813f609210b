/* How much memory this process may use, and how much of it is left: by its memory cgroup (v1 or
 * v2), the group's ancestors, and the machine.
 *
 * Every call reads the files anew: limits change and processes are moved. One file is open at a
 * time, on a high number. No allocation.
 */
#ifndef DWSR_LIMIT_H
#define DWSR_LIMIT_H

#include <stdint.h>

/* Roots are "/proc" and "/sys/fs/cgroup", or fixtures. Both return bytes; ABSENT if nothing could
 * be read. */

/* The smallest limit of the groups, or the machine's memory. */
uint64_t limit_bytes(const char *proc_root, const char *cgroup_root);

/* The least, over the groups that have a limit, of limit - (usage - page cache), and what the
 * machine has available. Page cache (inactive_file and active_file) is usage that the kernel gives
 * back before it kills. By the sampler. */
uint64_t headroom_bytes(const char *proc_root, const char *cgroup_root);

#endif
