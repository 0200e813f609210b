#define _GNU_SOURCE
#include "foreign.h"

#include <dlfcn.h>
#include <string.h>

#include "unowned.h"

/* An object with so many unaccounted bytes has an allocator of its own. */
#define WATCHED_FROM (UINT64_C(1) << 20)
#define NAME_MOST    48

/* Libraries that are known to have one, by the beginning of their file names. They are watched
 * before they map anything that is not accounted: what was mapped before the probe's start is not
 * seen. */
static const struct {
    const char *file, *name;
} known[] = { { "_polars_runtime", "polars" },
              { "polars.", "polars" },
              { "_duckdb", "duckdb" },
              { "duckdb.", "duckdb" } };

static struct {
    word count, due;
    word watched; /* the mask of the watched objects */
    struct {
        word text, text_end, bytes;
        int known;
        char name[NAME_MOST];
        size_t name_len;
    } objects[FOREIGN_OBJECTS];
} foreign;

/* -- objects -- */

static void watch(uint64_t index)
{
    const word bit = UINT64_C(1) << index;
    word mask = load_relaxed(&foreign.watched);
    if (mask & bit) return;
    while (!compare_exchange_weak_relaxed(&foreign.watched, &mask, mask | bit)) {}
    store_release(&foreign.due, 1);
}

/* "/x/_duckdb.cpython-311-x86_64-linux-gnu.so" is named "duckdb". */
static void set_name(uint64_t index, const char *file)
{
    while (*file == '_') file++;
    const size_t len = strcspn(file, "."), most = sizeof foreign.objects[index].name;
    foreign.objects[index].name_len = len < most ? len : most;
    memcpy(foreign.objects[index].name, file, foreign.objects[index].name_len);
}

/* ctypes calls functions through libffi. Where a function ends with a jump to mmap, the caller
 * seems to be libffi. */
static int is_go_between(const char *path)
{
    return strstr(path, "/libffi") || strstr(path, "/_ctypes.");
}

void foreign_add_object(uintptr_t text, uintptr_t text_end, const char *path, int was_loaded)
{
    const word count = load_relaxed(&foreign.count);
    for (word i = 0; i < count; i++)
        if (load_relaxed(&foreign.objects[i].text) == text) return;
    if (count == FOREIGN_OBJECTS) return;
    if (is_go_between(path)) return;
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    int is_known = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(file, known[i].file, strlen(known[i].file)))
            is_known = 1, file = known[i].name;
    set_name(count, file);
    foreign.objects[count].known = is_known;
    store_relaxed(&foreign.objects[count].bytes, is_known && was_loaded ? UINT64_MAX : 0);
    store_relaxed(&foreign.objects[count].text_end, text_end);
    store_relaxed(&foreign.objects[count].text, text);
    store_release(&foreign.count, count + 1);
    if (is_known) watch(count);
}

/* The index of the object with this address in its code, or FOREIGN_OBJECTS. */
static uint64_t object_of(const void *caller)
{
    const uintptr_t address = (uintptr_t)caller;
    const word count = load_acquire(&foreign.count);
    for (word i = 0; i < count; i++)
        if (address >= load_relaxed(&foreign.objects[i].text)
            && address < load_relaxed(&foreign.objects[i].text_end))
            return i;
    return FOREIGN_OBJECTS;
}

int foreign_is_due(void) { return load_relaxed(&foreign.due) != 0; }
void foreign_clear_due(void) { store_relaxed(&foreign.due, 0); }
void foreign_set_due(void) { store_relaxed(&foreign.due, load_relaxed(&foreign.watched) != 0); }

int foreign_is_watched(uintptr_t text)
{
    const uint64_t i = object_of((const void *)text);
    return i < FOREIGN_OBJECTS && load_relaxed(&foreign.watched) >> i & 1;
}

/* -- noting -- */

void foreign_note_mapping(const void *caller, uint64_t bytes, int accounted)
{
    const uint64_t i = object_of(caller);
    if (i == FOREIGN_OBJECTS || (accounted && !foreign.objects[i].known)) return;
    word before = load_relaxed(&foreign.objects[i].bytes);
    while (before != UINT64_MAX
           && !compare_exchange_weak_relaxed(&foreign.objects[i].bytes, &before, before + bytes)) {}
    if (before == UINT64_MAX || before + bytes > WATCHED_FROM) watch(i);
    if (accounted) return;
    task_handle task = lineage_allocating_task();
    if (is_somebody(task))
        lineage_note_foreign(task, UINT64_C(1) << i);
    else
        unowned_add(handle_unowned_entry(task), (int64_t)bytes);
}

static __attribute__((noinline)) void note_call_slow(const void *caller)
{
    const uint64_t i = object_of(caller);
    task_handle task = lineage_current_task();
    if (i < FOREIGN_OBJECTS && is_somebody(task)) lineage_note_foreign(task, UINT64_C(1) << i);
}

/* A watched object works for the calling thread. */
static inline void note_call(const void *caller)
{
    task_handle task = is_somebody(this_thread.task) ? this_thread.task : this_thread.works_for;
    /* not in native threads: the thread that called the library is noted */
    if (!this_thread.native && is_somebody(task)
        && lineage_foreign_mask(task) != load_relaxed(&foreign.watched))
        note_call_slow(caller);
}

/* -- wrappers for watched objects: functions that nearly all work needs, and PyEval_SaveThread,
 * because a library that begins to work releases the GIL -- */

static struct {
    void *(*memcpy)(void *, const void *, size_t);
    void *(*memmove)(void *, const void *, size_t);
    void *(*memset)(void *, int, size_t);
    void *(*PyEval_SaveThread)(void);
} real;

static void *foreign_memcpy(void *to, const void *from, size_t n)
{
    note_call(__builtin_return_address(0));
    return real.memcpy(to, from, n);
}

static void *foreign_memmove(void *to, const void *from, size_t n)
{
    note_call(__builtin_return_address(0));
    return real.memmove(to, from, n);
}

static void *foreign_memset(void *to, int byte, size_t n)
{
    note_call(__builtin_return_address(0));
    return real.memset(to, byte, n);
}

static void *foreign_PyEval_SaveThread(void)
{
    note_call(__builtin_return_address(0));
    return real.PyEval_SaveThread();
}

static const struct {
    const char *name;
    void *wrapper, *real; /* real: where the address of the function is kept */
} calls[] = {
#define CALL(name) { #name, (void *)foreign_##name, &real.name }
    CALL(memcpy),
    CALL(memmove),
    CALL(memset),
    CALL(PyEval_SaveThread),
#undef CALL
};
#define CALL_COUNT (sizeof calls / sizeof *calls)

void foreign_find_functions(void)
{
    for (size_t i = 0; i < CALL_COUNT; i++) {
        void **function = calls[i].real;
        if (!pointer_load_acquire(function))
            pointer_store_release(function, dlsym(RTLD_DEFAULT, calls[i].name));
    }
}

uintptr_t foreign_wrapper_of(const char *name)
{
    for (size_t i = 0; i < CALL_COUNT; i++) {
        if (strcmp(name, calls[i].name)) continue;
        return *(void **)calls[i].real ? (uintptr_t)calls[i].wrapper : 0;
    }
    return 0;
}

uintptr_t foreign_real_of(uintptr_t wrapper)
{
    for (size_t i = 0; i < CALL_COUNT; i++)
        if (wrapper == (uintptr_t)calls[i].wrapper) return (uintptr_t)*(void **)calls[i].real;
    return 0;
}

/* -- figures -- */

uint64_t foreign_bytes_of(uint64_t mask, struct text *largest)
{
    uint64_t sum = 0, most = 0;
    *largest = (struct text){ NULL, 0 };
    for (; mask; mask &= mask - 1) {
        const int i = __builtin_ctzll(mask);
        const uint64_t bytes = load_relaxed(&foreign.objects[i].bytes);
        if (bytes > most) {
            most = bytes;
            *largest = (struct text){ foreign.objects[i].name, foreign.objects[i].name_len };
        }
        sum = bytes == UINT64_MAX || sum == UINT64_MAX ? UINT64_MAX : sum + bytes;
    }
    return sum;
}
