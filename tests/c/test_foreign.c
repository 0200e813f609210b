#include "check.h"
#include "foreign.h"
#include "unowned.h"

#define MIB (UINT64_C(1) << 20)

/* An object is a range of addresses of code: these stand for the code of libraries. */
static char codes[8][64];

static void add_object(int i, const char *path, int was_loaded)
{
    foreign_add_object((uintptr_t)codes[i], (uintptr_t)codes[i] + sizeof codes[i], path,
                       was_loaded);
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
    add_object(0, "/x/_mine.cpython-311.so", 0);
    foreign_note_mapping(codes[0] + 5, MIB / 2, 0);
    CHECK(!foreign_is_due() && !foreign_is_watched((uintptr_t)codes[0]));
    CHECK(lineage_foreign_mask(task) == 1 && foreign_bytes_of(1, &name) == MIB / 2);
    foreign_note_mapping(codes[0] + 5, MIB, 0);
    CHECK(foreign_is_due() && foreign_is_watched((uintptr_t)codes[0] + 63));
    CHECK(foreign_bytes_of(lineage_foreign_mask(task), &name) == 3 * MIB / 2
          && is_named(name, "mine"));
    foreign_clear_due();
    CHECK(!foreign_is_due());
    foreign_note_mapping(codes[7], 9 * MIB, 0); /* of no object that is known here */
    CHECK(foreign_bytes_of(~UINT64_C(0), &name) == 3 * MIB / 2);
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
    CHECK(foreign_is_due() && foreign_is_watched((uintptr_t)codes[2]));
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
        (void *(*)(void *, const void *, size_t))foreign_wrapper_of("memcpy");
    char to[4] = "", from[4] = "abc";
    (void)unused;
    CHECK(wrapped(to, from, 4) == to && !strcmp(to, "abc"));
    return NULL;
}

static void calls_of_a_watched_object(void)
{
    lineage_open(NULL);
    CHECK(!foreign_wrapper_of("memcpy"));
    foreign_find_functions();
    CHECK(foreign_wrapper_of("memcpy") && foreign_wrapper_of("memset")
          && !foreign_wrapper_of("strlen"));
    CHECK(!foreign_wrapper_of("PyEval_SaveThread")); /* there is no Python here */
    CHECK(foreign_real_of(foreign_wrapper_of("memmove")) && !foreign_real_of(1));
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

int main(void)
{
    RUN(an_object_that_maps_for_itself_is_watched);
    RUN(accounted_mappings_matter_for_known_objects_only);
    RUN(calls_of_a_watched_object);
    RUN(of_no_task);
    return failures;
}
