/* How much memory this process may use: the smallest cgroup limit (v1 or v2, any ancestor) or the machine's memory. */
#ifndef DWSR_LIMIT_H
#define DWSR_LIMIT_H

#include <stdint.h>

/* Roots are "/proc" and "/sys/fs/cgroup", or fixtures. Returns bytes; ABSENT if nothing could be read. */
uint64_t limit_bytes(const char *proc_root, const char *cgroup_root);

#endif
