/* Limits and headroom of cgroups v1 and v2, from fixtures, and of the machine. */
#include "check.h"
#include "limit.h"
#include "board_layout.h"

static char proc[128], cgroup[128];
static const char *root;

static void put_fixture(const char *cgroups)
{
    root = scratch();
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    put(root, "proc/meminfo",
        "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   12288 kB\n");
    put(root, "proc/self/cgroup", cgroups);
}

static void v2_takes_the_smallest_ancestor(void)
{
    put_fixture("0::/a/b\n");
    put(root, "cgroup/a/b/memory.max", "max\n");
    put(root, "cgroup/a/memory.max", "4194304\n");
    CHECK(limit_bytes(proc, cgroup) == 4194304);
    put(root, "cgroup/a/b/memory.max", "1048576\n");
    CHECK(limit_bytes(proc, cgroup) == 1048576);
    remove_tree(root);
}

static void v1_knows_its_unlimited(void)
{
    put_fixture("5:cpu:/x\n4:memory:/x/y\n0::/\n");
    put(root, "cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(limit_bytes(proc, cgroup) == 16384 * 1024);
    put(root, "cgroup/memory/x/memory.limit_in_bytes", "2097152\n");
    CHECK(limit_bytes(proc, cgroup) == 2097152);
    remove_tree(root);
}

static void container_path_that_is_not_there(void)
{
    put_fixture("0::/kubepods/pod1\n");
    put(root, "cgroup/memory.max", "3145728\n");
    CHECK(limit_bytes(proc, cgroup) == 3145728);
    remove_tree(root);
}

static void nothing_readable_is_absent(void)
{
    CHECK(limit_bytes("/nowhere", "/nowhere") == ABSENT);
    put_fixture("garbage\n::\n:::\n0::\n");
    CHECK(limit_bytes(proc, cgroup) == 16384 * 1024);
    remove_tree(root);
}

static void put_group(const char *name, const char *limit, const char *usage, const char *stat)
{
    const int v1 = strncmp(name, "memory", 6) == 0;
    const char *files[3] = { v1 ? "memory.limit_in_bytes" : "memory.max",
                             v1 ? "memory.usage_in_bytes" : "memory.current", "memory.stat" };
    const char *texts[3] = { limit, usage, stat };
    char path[256];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "cgroup/%s/%s", name, files[i]);
        put(root, path, texts[i]);
    }
}

static void headroom_is_the_least_of_group_and_ancestors(void)
{
    put_fixture("0::/a/b/c\n");
    put_group("a/b/c", "max\n", "1000000\n", "anon 1000000\ninactive_file 0\nactive_file 0\n");
    put_group("a/b", "8388608\n", "3000000\n", "anon 3000000\ninactive_file 0\nactive_file 0\n");
    CHECK(headroom_bytes(proc, cgroup) == 8388608 - 3000000);
    /* usage of a neighbour under the same ancestor */
    put_group("a", "10485760\n", "9000000\n", "anon 9000000\ninactive_file 0\nactive_file 0\n");
    CHECK(headroom_bytes(proc, cgroup) == 10485760 - 9000000);
    put_group("a/b/c", "500000\n", "1000000\n", ""); /* lowered below what is used */
    CHECK(headroom_bytes(proc, cgroup) == 0);
    remove_tree(root);
}

static void headroom_leaves_page_cache_out(void)
{
    put_fixture("0::/a\n");
    put_group("a", "4194304\n", "4194304\n",
              "anon 1048576\nfile 3145728\ninactive_anon 7\nactive_anon 8\ninactive_file "
              "3000000\nactive_file 145728\nunevictable 9\n");
    CHECK(headroom_bytes(proc, cgroup) == 4194304 - (4194304 - 3145728));
    /* read a moment later */
    put_group("a", "4194304\n", "1000\n", "inactive_file 3000000\nactive_file 145728\n");
    CHECK(headroom_bytes(proc, cgroup) == 4194304);
    remove_tree(root);
}

static void headroom_of_v1_counts_the_groups_below(void)
{
    put_fixture("5:cpu:/x\n4:memory:/x/y\n0::/\n");
    put_group("memory/x/y", "9223372036854771712\n", "500000\n", "");
    put_group(
        "memory/x", "4194304\n", "4000000\n",
        "inactive_file 1\nactive_file 2\ntotal_inactive_file 2000000\ntotal_active_file 1000000\n");
    CHECK(headroom_bytes(proc, cgroup) == 4194304 - 1000000);
    remove_tree(root);
}

static void headroom_without_a_limit_is_the_machines(void)
{
    put_fixture("0::/a\n");
    CHECK(headroom_bytes(proc, cgroup) == 12288 * 1024);
    put_group("a", "max\n", "1000000\n", "inactive_file 0\n");
    CHECK(headroom_bytes(proc, cgroup) == 12288 * 1024);
    /* more than the machine has */
    put_group("a", "1073741824\n", "1000000\n", "inactive_file 0\n");
    CHECK(headroom_bytes(proc, cgroup) == 12288 * 1024);
    remove_tree(root);
    CHECK(headroom_bytes("/nowhere", "/nowhere") == ABSENT);
}

static void reading_headroom_keeps_no_descriptor(void)
{
    int before = dup(0);
    close(before);
    for (int i = 0; i < 100; i++) CHECK(headroom_bytes("/proc", "/sys/fs/cgroup") != ABSENT);
    int after = dup(0);
    close(after);
    CHECK(before == after);
}

int main(void)
{
    RUN(v2_takes_the_smallest_ancestor);
    RUN(v1_knows_its_unlimited);
    RUN(container_path_that_is_not_there);
    RUN(nothing_readable_is_absent);
    RUN(headroom_is_the_least_of_group_and_ancestors);
    RUN(headroom_leaves_page_cache_out);
    RUN(headroom_of_v1_counts_the_groups_below);
    RUN(headroom_without_a_limit_is_the_machines);
    RUN(reading_headroom_keeps_no_descriptor);
    return failures;
}
