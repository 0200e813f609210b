#define _GNU_SOURCE
#include "limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board_layout.h"

/* cgroup v1 says "no limit" with a page-rounded LONG_MAX. */
#define UNLIMITED (UINT64_C(1) << 60)

static uint64_t read_number(const char *path)
{
    char text[64];
    FILE *f = fopen(path, "re");
    if (!f) return ABSENT;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    if (n == 0 || text[0] < '0' || text[0] > '9') return ABSENT; /* "max" */
    uint64_t bytes = strtoull(text, NULL, 10);
    return bytes >= UNLIMITED ? ABSENT : bytes;
}

/* The smallest limit of a group and its ancestors. In a container the path may not exist below the mount: then only the root counts. */
static uint64_t smallest_upwards(const char *mount, const char *group, const char *file)
{
    char path[4096];
    uint64_t smallest = ABSENT;
    size_t len = strlen(group);
    for (;;) {
        snprintf(path, sizeof path, "%s%.*s/%s", mount, (int)len, group, file);
        uint64_t bytes = read_number(path);
        if (bytes < smallest) smallest = bytes;
        if (len == 0) return smallest;
        while (len > 0 && group[--len] != '/') { }
    }
}

static uint64_t cgroup_limit(const char *proc_root, const char *cgroup_root)
{
    char path[512], line[4096], mount[512];
    uint64_t smallest = ABSENT;
    snprintf(path, sizeof path, "%s/self/cgroup", proc_root);
    FILE *f = fopen(path, "re");
    if (!f) return ABSENT;
    while (fgets(line, sizeof line, f)) { /* "4:memory:/a/b" (v1), "0::/a/b" (v2) */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        uint64_t bytes = ABSENT;
        if (controllers[1] == 0) {
            bytes = smallest_upwards(cgroup_root, group, "memory.max");
        } else if (strstr(controllers + 1, "memory")) {
            snprintf(mount, sizeof mount, "%s/memory", cgroup_root);
            bytes = smallest_upwards(mount, group, "memory.limit_in_bytes");
        }
        if (bytes < smallest) smallest = bytes;
    }
    fclose(f);
    return smallest;
}

static uint64_t machine_bytes(const char *proc_root)
{
    char path[512], line[256];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "%s/meminfo", proc_root);
    FILE *f = fopen(path, "re");
    if (!f) return ABSENT;
    while (fgets(line, sizeof line, f) && sscanf(line, "MemTotal: %lu", &kib) != 1) { }
    fclose(f);
    return kib ? kib * 1024 : ABSENT;
}

uint64_t limit_bytes(const char *proc_root, const char *cgroup_root)
{
    uint64_t group = cgroup_limit(proc_root, cgroup_root), machine = machine_bytes(proc_root);
    return group < machine ? group : machine;
}
