#include "check.h"
#include "foreign.h"
#include "unowned.h"

#define MIB    (UINT64_C(1) << 20)
#define MINE   "/x/_mine.cpython-311.so"
#define OTHERS (UINT64_C(1) << 63) /* the bit of code that is not in the table */

/* An object is a range of addresses of code: these stand for the code of libraries. */
static char codes[8][64];

static void add_object(int i, const char *path, int was_loaded)
{
    foreign_add_object((uintptr_t)codes[i], (uintptr_t)codes[i] + sizeof codes[i], path,
                       was_loaded);
}

static int is_watched(int i, const char *path)
{
    return foreign_is_watched((uintptr_t)codes[i], path);
}

static uint64_t serial;

static task_handle begin(uint32_t slot, task_handle parent)
{
    task_handle task = lineage_handle(slot, ++serial);
    lineage_begin(task, parent);
    return task;
}

static int is_named(struct text found, const char *name)
{
    return found.len == strlen(name) && !memcmp(found.at, name, found.len);
}

static void an_object_that_maps_for_itself_is_watched(void)
{
    struct text name;
    lineage_open(NULL);
    task_handle task = begin(0, NOBODY);
    add_object(0, MINE, 0);
    foreign_note_mapping(codes[0] + 5, MIB / 2, 0);
    CHECK(!foreign_is_due() && !is_watched(0, MINE));
    CHECK(lineage_foreign_mask(task) == 1 && foreign_bytes_of(1, &name) == MIB / 2);
    foreign_note_mapping(codes[0] + 5, MIB, 0);
    CHECK(foreign_is_due() && is_watched(0, MINE));
    CHECK(foreign_bytes_of(lineage_foreign_mask(task), &name) == 3 * MIB / 2
          && is_named(name, "mine"));
    foreign_clear_due();
    CHECK(!foreign_is_due());
    lineage_end(task, 0);
}

static void code_that_is_in_no_object(void)
{
    struct text name;
    lineage_open(NULL);
    task_handle task = begin(0, NOBODY);
    foreign_note_mapping(codes[7], 9 * MIB, 1);
    CHECK(!lineage_foreign_mask(task));
    foreign_note_mapping(codes[7], 9 * MIB, 0);
    CHECK(lineage_foreign_mask(task) == OTHERS && !foreign_is_due());
    CHECK(foreign_bytes_of(OTHERS, &name) == 9 * MIB && !name.len);
    lineage_end(task, 0);
}

static void accounted_mappings_matter_for_known_objects_only(void)
{
    struct text name;
    lineage_open(NULL);
    task_handle task = begin(0, NOBODY);
    add_object(1, "/x/_other.so", 0);
    foreign_note_mapping(codes[1], 8 * MIB, 1);
    CHECK(foreign_bytes_of(2, &name) == 0 && !lineage_foreign_mask(task));
    add_object(2, "/x/_polars_runtime.abi3.so", 0); /* watched from the beginning */
    CHECK(foreign_is_due() && is_watched(2, "/x/_polars_runtime.abi3.so"));
    foreign_note_mapping(codes[2], 8 * MIB, 1);
    CHECK(foreign_bytes_of(4, &name) == 8 * MIB && is_named(name, "polars"));
    add_object(3, "/x/_duckdb.cpython-311.so", 1); /* what it has mapped is not known */
    CHECK(foreign_bytes_of(8, &name) == UINT64_MAX && is_named(name, "duckdb"));
    CHECK(foreign_bytes_of(12, &name) == UINT64_MAX);
    add_object(3, "/x/_duckdb.cpython-311.so", 1); /* twice is once */
    CHECK(foreign_bytes_of(16, &name) == 0);
    lineage_end(task, 0);
}

static void *copy(void *unused)
{
    void *(*wrapped)(void *, const void *, size_t) =
        (void *(*)(void *, const void *, size_t))foreign_wrapper_of_name("memmove");
    char to[4] = "", from[4] = "abc";
    (void)unused;
    CHECK(wrapped(to, from, 4) == to && !strcmp(to, "abc"));
    return NULL;
}

static void calls_of_a_watched_object(void)
{
    lineage_open(NULL);
    CHECK(!foreign_wrapper_of_name("memmove"));
    foreign_find_functions();
    CHECK(foreign_wrapper_of_name("memmove") && foreign_wrapper_of_name("memset")
          && !foreign_wrapper_of_name("strlen"));
    CHECK(!foreign_wrapper_of_name("PyEval_SaveThread")); /* there is no Python here */
    /* by the address that a slot holds, whatever its name */
    const uintptr_t wrapper = foreign_wrapper_of_name("memmove");
    CHECK(foreign_wrapper_of(foreign_real_of(wrapper)) && !foreign_wrapper_of((uintptr_t)copy)
          && !foreign_wrapper_of(0));
    CHECK(foreign_real_of(foreign_wrapper_of_name("memmove")) && !foreign_real_of(1));
    copy(NULL); /* no task */
    task_handle outer = begin(0, NOBODY), task = begin(1, outer);
    copy(NULL); /* from here: of no object */
    CHECK(!lineage_foreign_mask(task));
    /* the code of this test is an object */
    foreign_add_object((uintptr_t)copy & ~UINT64_C(4095), ((uintptr_t)copy | 4095) + 1,
                       "/x/duckdb.so", 0);
    copy(NULL);
    CHECK(lineage_foreign_mask(task) && !lineage_foreign_mask(outer));
    lineage_note_foreign(outer, lineage_foreign_mask(task));
    lineage_end(task, 0);
    lineage_note_foreign(task, 1); /* it has ended */
    lineage_note_foreign(NOBODY, 1);
    CHECK(lineage_foreign_mask(outer) > 1);
    lineage_end(outer, 0);
}

static void of_no_task(void)
{
    lineage_open(NULL);
    unowned_reset_in_child();
    lineage_set_running(1, NOBODY);
    task_handle other = begin(0, NOBODY);
    this_thread.task = NOBODY;
    lineage_set_running(2, other);
    foreign_note_mapping(codes[0], 3 * MIB, 0);
    uint32_t thread, entry = unowned_next_unnamed(&thread);
    unowned_name(entry, (struct text){ "reader", 6 }, 1);
    CHECK(unowned_end_window().python.peak == (int64_t)(3 * MIB));
    CHECK(!lineage_foreign_mask(other));
    lineage_end(other, 0);
}

static void an_object_that_is_unloaded(void)
{
    struct text name;
    lineage_open(NULL);
    task_handle task = begin(0, NOBODY);
    foreign_keep_objects(0);
    add_object(0, MINE, 0);
    foreign_note_mapping(codes[0], 2 * MIB, 0);
    CHECK(is_watched(0, MINE) && !is_watched(0, "/x/other.so") && !is_watched(1, MINE));
    const uint64_t old = lineage_foreign_mask(task);
    CHECK(foreign_mask_of((uintptr_t)codes[0], MINE) == old);
    foreign_clear_due();
    add_object(0, MINE, 0); /* again at the same address: its slots are fresh */
    CHECK(foreign_is_due() && foreign_mask_of((uintptr_t)codes[0], MINE) == old);
    foreign_keep_objects(~old);
    CHECK(!is_watched(0, MINE) && !foreign_mask_of((uintptr_t)codes[0], MINE));
    /* another object at its address */
    add_object(0, "/x/other.so", 0);
    const uint64_t other = foreign_mask_of((uintptr_t)codes[0], "/x/other.so");
    CHECK(other && other != old);
    foreign_note_mapping(codes[0], MIB / 2, 0);
    CHECK(lineage_foreign_mask(task) == (old | other));
    CHECK(foreign_bytes_of(other, &name) == MIB / 2 && is_named(name, "other"));
    CHECK(foreign_bytes_of(old, &name) == 2 * MIB && is_named(name, "mine"));
    lineage_end(task, 0);
}

static void places_are_used_again(void)
{
    struct text name;
    char path[32];
    lineage_open(NULL);
    foreign_keep_objects(0);
    task_handle task = begin(0, NOBODY);
    add_object(0, MINE, 0);
    foreign_note_mapping(codes[0], 2 * MIB, 0);
    const uint64_t mine = lineage_foreign_mask(task);
    for (int i = 0; i < 1000; i++) { /* more than there are places, and names */
        foreign_keep_objects(0);
        snprintf(path, sizeof path, "/x/%d.so", i);
        add_object(0, path, 0);
        const uint64_t mask = foreign_mask_of((uintptr_t)codes[0], path);
        CHECK(mask && mask != mine && foreign_bytes_of(mask, &name) == 0);
        task_handle inner = begin(1, NOBODY);
        foreign_note_mapping(codes[0], 3 * MIB, 0);
        CHECK(lineage_foreign_mask(inner) == mask);
        CHECK(foreign_bytes_of(mask, &name) == 3 * MIB && (i > 200 || name.len));
        lineage_end(inner, 0);
        CHECK(foreign_bytes_of(mine, &name) == 2 * MIB && is_named(name, "mine"));
        CHECK(lineage_foreign_mask(task) == mine);
    }
    lineage_end(task, 0);
}

int main(void)
{
    RUN(an_object_that_maps_for_itself_is_watched);
    RUN(code_that_is_in_no_object);
    RUN(accounted_mappings_matter_for_known_objects_only);
    RUN(calls_of_a_watched_object);
    RUN(of_no_task);
    RUN(an_object_that_is_unloaded);
    RUN(places_are_used_again);
    return failures;
}
