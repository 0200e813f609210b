#define _GNU_SOURCE
#include "limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board_layout.h"
#include "proc_file.h"

/* cgroup v1 says "no limit" with a page-rounded LONG_MAX. */
#define UNLIMITED (UINT64_C(1) << 60)

/* Where a version of cgroups keeps what we need. In v1 the fields without "total_" leave out the
 * groups below. */
struct version {
    const char *folder, *limit, *usage, *inactive, *active;
};
static const struct version V1 = { "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file", "total_active_file" };
static const struct version V2 = { "", "memory.max", "memory.current", "inactive_file",
                                   "active_file" };

struct room {
    uint64_t limit, left; /* the least of all groups; ABSENT: no group has a limit */
};

static uint64_t read_number(const char *path)
{
    char text[64];
    /* "max" */
    if (file_read_once(path, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
        return ABSENT;
    uint64_t bytes = strtoull(text, NULL, 10);
    return bytes >= UNLIMITED ? ABSENT : bytes;
}

/* The number behind a name that begins a line, or ABSENT. */
static uint64_t field(const char *text, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = text; at; at = strchr(at, '\n')) {
        if (*at == '\n') at++;
        if (strncmp(at, name, len) == 0 && (at[len] == ' ' || at[len] == ':'))
            return strtoull(at + len + 1, NULL, 10);
    }
    return ABSENT;
}

/* path: of a group's folder, with room for a file's name behind its length. */
static uint64_t left_of(char *path, size_t len, size_t size, const struct version *v,
                        uint64_t limit)
{
    char text[8192];
    snprintf(path + len, size - len, "/%s", v->usage);
    uint64_t usage = read_number(path), cache = 0;
    if (usage == ABSENT) return ABSENT;
    snprintf(path + len, size - len, "/memory.stat");
    if (file_read_once(path, text, sizeof text) > 0) {
        uint64_t inactive = field(text, v->inactive), active = field(text, v->active);
        cache = (inactive == ABSENT ? 0 : inactive) + (active == ABSENT ? 0 : active);
    }
    uint64_t used = usage > cache ? usage - cache : 0;
    return limit > used ? limit - used : 0;
}

/* A group and its ancestors. In a container the path may not exist below the mount: then only the
 * root counts. */
static void look_upwards(const char *cgroup_root, const char *group, const struct version *v,
                         int left, struct room *r)
{
    char path[4096];
    size_t depth = strlen(group);
    for (;;) {
        int len =
            snprintf(path, sizeof path, "%s%s%.*s", cgroup_root, v->folder, (int)depth, group);
        if (len < 0 || (size_t)len + 64 > sizeof path) return;
        snprintf(path + len, sizeof path - (size_t)len, "/%s", v->limit);
        uint64_t limit = read_number(path);
        if (limit < r->limit) r->limit = limit;
        uint64_t room =
            left && limit != ABSENT ? left_of(path, (size_t)len, sizeof path, v, limit) : ABSENT;
        if (room < r->left) r->left = room;
        if (depth == 0) return;
        while (depth > 0 && group[--depth] != '/') {}
    }
}

/* left: with what the groups have left, which takes two files more of each that has a limit. */
static struct room groups_room(const char *proc_root, const char *cgroup_root, int left)
{
    char text[8192];
    struct room r = { ABSENT, ABSENT };
    if (proc_read_once(proc_root, "cgroup", text, sizeof text) <= 0) return r;
    for (char *line = text, *next; line; line = next) { /* "4:memory:/a/b" (v1), "0::/a/b" (v2) */
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        if (controllers[1] == 0)
            look_upwards(cgroup_root, group, &V2, left, &r);
        else if (strstr(controllers + 1, "memory"))
            look_upwards(cgroup_root, group, &V1, left, &r);
    }
    return r;
}

static uint64_t machine_bytes(const char *proc_root, const char *name)
{
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/meminfo", proc_root);
    uint64_t kib = file_read_once(path, text, sizeof text) > 0 ? field(text, name) : ABSENT;
    return kib == ABSENT ? ABSENT : kib * 1024;
}

uint64_t limit_bytes(const char *proc_root, const char *cgroup_root)
{
    uint64_t group = groups_room(proc_root, cgroup_root, 0).limit,
             machine = machine_bytes(proc_root, "MemTotal");
    return group < machine ? group : machine;
}

uint64_t headroom_bytes(const char *proc_root, const char *cgroup_root)
{
    uint64_t group = groups_room(proc_root, cgroup_root, 1).left,
             machine = machine_bytes(proc_root, "MemAvailable");
    return group < machine ? group : machine;
}
