#define _GNU_SOURCE
#include "limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board_layout.h"
#include "proc_file.h"

/* cgroup v1 says "no limit" with a page-rounded LONG_MAX. */
#define UNLIMITED (UINT64_C(1) << 60)

/* The file names and fields of a version of cgroups. In v1 the fields without "total_" leave out
 * the groups below. */
struct cgroup_version {
    const char *folder, *limit, *usage, *inactive, *active;
};
static const struct cgroup_version V1 = { "/memory", "memory.limit_in_bytes",
                                          "memory.usage_in_bytes", "total_inactive_file",
                                          "total_active_file" };
static const struct cgroup_version V2 = { "", "memory.max", "memory.current", "inactive_file",
                                          "active_file" };

/* The minimum over a group and its ancestors; ABSENT: none of them has a limit. */
struct group_memory {
    uint64_t limit, headroom;
};

/* What to read. */
struct query {
    const char *cgroup_root;
    int with_headroom; /* also the headroom, from two more files of each group that has a limit */
};

static uint64_t read_number(const char *path)
{
    char text[64];
    /* "max" is no number */
    if (file_read_once(path, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
        return ABSENT;
    uint64_t bytes = strtoull(text, NULL, 10);
    return bytes >= UNLIMITED ? ABSENT : bytes;
}

/* The number after a name at the start of a line, or ABSENT. */
static uint64_t read_field(const char *text, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = text; at; at = strchr(at, '\n')) {
        if (*at == '\n') at++;
        if (strncmp(at, name, len) == 0 && (at[len] == ' ' || at[len] == ':'))
            return strtoull(at + len + 1, NULL, 10);
    }
    return ABSENT;
}

/* path: the group's folder, of `len` bytes, with room for a file name up to `size`. */
static uint64_t group_headroom(char *path, size_t len, size_t size, const struct cgroup_version *v,
                               uint64_t limit)
{
    char text[8192];
    snprintf(path + len, size - len, "/%s", v->usage);
    uint64_t usage = read_number(path), cache = 0;
    if (usage == ABSENT) return ABSENT;
    snprintf(path + len, size - len, "/memory.stat");
    if (file_read_once(path, text, sizeof text) > 0) {
        uint64_t inactive = read_field(text, v->inactive), active = read_field(text, v->active);
        cache = (inactive == ABSENT ? 0 : inactive) + (active == ABSENT ? 0 : active);
    }
    uint64_t used = usage > cache ? usage - cache : 0;
    return limit > used ? limit - used : 0;
}

/* Lowers *m to the group and its ancestors. In a container the group's path may not exist below the
 * mount: then only the root counts. */
static void read_group_and_ancestors(const struct query *q, const char *group,
                                     const struct cgroup_version *v, struct group_memory *m)
{
    char path[4096];
    size_t depth = strlen(group);
    for (;;) {
        int len =
            snprintf(path, sizeof path, "%s%s%.*s", q->cgroup_root, v->folder, (int)depth, group);
        if (len < 0 || (size_t)len + 64 > sizeof path) return;
        snprintf(path + len, sizeof path - (size_t)len, "/%s", v->limit);
        uint64_t limit = read_number(path), headroom = ABSENT;
        if (q->with_headroom && limit != ABSENT)
            headroom = group_headroom(path, (size_t)len, sizeof path, v, limit);
        if (limit < m->limit) m->limit = limit;
        if (headroom < m->headroom) m->headroom = headroom;
        if (depth == 0) return;
        while (depth > 0 && group[--depth] != '/') {}
    }
}

static struct group_memory read_groups(const char *proc_root, struct query q)
{
    char text[8192];
    struct group_memory m = { ABSENT, ABSENT };
    if (proc_read_once(proc_root, "cgroup", text, sizeof text) <= 0) return m;
    for (char *line = text, *next; line; line = next) { /* "4:memory:/a/b" (v1), "0::/a/b" (v2) */
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        if (controllers[1] == 0)
            read_group_and_ancestors(&q, group, &V2, &m);
        else if (strstr(controllers + 1, "memory"))
            read_group_and_ancestors(&q, group, &V1, &m);
    }
    return m;
}

static uint64_t machine_bytes(const char *proc_root, const char *name)
{
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/meminfo", proc_root);
    uint64_t kib = file_read_once(path, text, sizeof text) > 0 ? read_field(text, name) : ABSENT;
    return kib == ABSENT ? ABSENT : kib * 1024;
}

uint64_t limit_bytes(const char *proc_root, const char *cgroup_root)
{
    uint64_t group = read_groups(proc_root, (struct query){ cgroup_root, 0 }).limit,
             machine = machine_bytes(proc_root, "MemTotal");
    return group < machine ? group : machine;
}

uint64_t headroom_bytes(const char *proc_root, const char *cgroup_root)
{
    uint64_t group = read_groups(proc_root, (struct query){ cgroup_root, 1 }).headroom,
             machine = machine_bytes(proc_root, "MemAvailable");
    return group < machine ? group : machine;
}
