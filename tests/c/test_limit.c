#include "check.h"
#include "limit.h"
#include "board_layout.h"

static char proc[128], cgroup[128];
static const char *root;

static void fixture(const char *cgroups)
{
    root = scratch();
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    put(root, "proc/meminfo", "MemFree: 1 kB\nMemTotal:       16384 kB\n");
    put(root, "proc/self/cgroup", cgroups);
}

static void v2_takes_the_smallest_ancestor(void)
{
    fixture("0::/a/b\n");
    put(root, "cgroup/a/b/memory.max", "max\n");
    put(root, "cgroup/a/memory.max", "4194304\n");
    CHECK(limit_bytes(proc, cgroup) == 4194304);
    put(root, "cgroup/a/b/memory.max", "1048576\n");
    CHECK(limit_bytes(proc, cgroup) == 1048576);
    remove_tree(root);
}

static void v1_knows_its_unlimited(void)
{
    fixture("5:cpu:/x\n4:memory:/x/y\n0::/\n");
    put(root, "cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(limit_bytes(proc, cgroup) == 16384 * 1024);
    put(root, "cgroup/memory/x/memory.limit_in_bytes", "2097152\n");
    CHECK(limit_bytes(proc, cgroup) == 2097152);
    remove_tree(root);
}

static void container_path_that_is_not_there(void)
{
    fixture("0::/kubepods/pod1\n");
    put(root, "cgroup/memory.max", "3145728\n");
    CHECK(limit_bytes(proc, cgroup) == 3145728);
    remove_tree(root);
}

static void nothing_readable_is_absent(void)
{
    CHECK(limit_bytes("/nowhere", "/nowhere") == ABSENT);
    fixture("garbage\n::\n:::\n0::\n");
    CHECK(limit_bytes(proc, cgroup) == 16384 * 1024);
    remove_tree(root);
}

int main(void)
{
    RUN(v2_takes_the_smallest_ancestor);
    RUN(v1_knows_its_unlimited);
    RUN(container_path_that_is_not_there);
    RUN(nothing_readable_is_absent);
    return failures;
}
