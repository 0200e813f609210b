#define _GNU_SOURCE
#include "foreign.h"

#include <dlfcn.h>
#include <string.h>

#include "unowned.h"

/* An object with so many unaccounted bytes has an allocator of its own. */
#define WATCHED_FROM (UINT64_C(1) << 20)
#define NAME_MOST    48
#define NAMES_MOST   256

/* The last place of the table is for all code that has no other. */
#define OTHERS (FOREIGN_OBJECTS - 1)

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
        word text, text_end, bytes; /* text_end is 0: unloaded */
        word is_known, name;        /* name: number in `names` + 1; 0: none */
        uint64_t path;              /* its hash */
    } objects[FOREIGN_OBJECTS];
    /* Records may show a name after its library was unloaded: names stay. */
    uint32_t name_count;
    struct {
        char at[NAME_MOST];
        size_t len;
    } names[NAMES_MOST];
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

static void unwatch(uint64_t index)
{
    word mask = load_relaxed(&foreign.watched);
    while (
        !compare_exchange_weak_relaxed(&foreign.watched, &mask, mask & ~(UINT64_C(1) << index))) {}
}

/* "/x/_duckdb.cpython-311-x86_64-linux-gnu.so" is named "duckdb". */
static uint32_t number_of_name(const char *file)
{
    while (*file == '_') file++;
    size_t len = strcspn(file, ".");
    if (len > NAME_MOST) len = NAME_MOST;
    uint32_t i = 0;
    while (i < foreign.name_count
           && (foreign.names[i].len != len || memcmp(foreign.names[i].at, file, len)))
        i++;
    if (i == NAMES_MOST) return 0;
    if (i == foreign.name_count) {
        memcpy(foreign.names[i].at, file, len);
        foreign.names[i].len = len;
        foreign.name_count++;
    }
    return i + 1;
}

static struct text name_of(uint64_t index)
{
    const word number = load_acquire(&foreign.objects[index].name);
    if (!number) return (struct text){ NULL, 0 };
    return (struct text){ foreign.names[number - 1].at, foreign.names[number - 1].len };
}

static uint64_t hash_of(const char *path)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *path; path++) hash = (hash ^ (unsigned char)*path) * UINT64_C(0x100000001b3);
    return hash;
}

/* ctypes calls functions through libffi. Where such a function ends with a jump to mmap, libffi
 * seems to be the one that maps: it is not in the table. */
static int is_go_between(const char *path)
{
    return strstr(path, "/libffi") || strstr(path, "/_ctypes.");
}

static uint64_t index_of(uintptr_t text, const char *path)
{
    const word count = load_relaxed(&foreign.count);
    const uint64_t hash = hash_of(path);
    for (word i = 0; i < count; i++)
        if (load_relaxed(&foreign.objects[i].text_end) && foreign.objects[i].path == hash
            && load_relaxed(&foreign.objects[i].text) == text)
            return i;
    return OTHERS;
}

/* A place that was never used. If there is none, that of an object that is unloaded and that no
 * running task has used. OTHERS: there is none either. */
static uint64_t vacant_place(void)
{
    const word count = load_relaxed(&foreign.count);
    if (count < OTHERS) return store_release(&foreign.count, count + 1), count;
    const uint64_t used = lineage_foreign_masks();
    for (uint64_t i = 0; i < OTHERS; i++)
        if (!load_relaxed(&foreign.objects[i].text_end) && !(used >> i & 1)) return i;
    return OTHERS;
}

void foreign_add_object(uintptr_t text, uintptr_t text_end, const char *path, int was_loaded)
{
    if (is_go_between(path)) return;
    uint64_t index = index_of(text, path);
    if (index != OTHERS) { /* patched again, or loaded again at the same address */
        if (load_relaxed(&foreign.watched) >> index & 1) store_release(&foreign.due, 1);
        return;
    }
    index = vacant_place();
    if (index == OTHERS) return;
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    int is_known = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(file, known[i].file, strlen(known[i].file)))
            is_known = 1, file = known[i].name;
    foreign.objects[index].path = hash_of(path);
    store_release(&foreign.objects[index].name, number_of_name(file));
    store_relaxed(&foreign.objects[index].is_known, (word)is_known);
    store_relaxed(&foreign.objects[index].bytes, is_known && was_loaded ? UINT64_MAX : 0);
    store_release(&foreign.objects[index].text, text);
    store_release(&foreign.objects[index].text_end, text_end);
    if (is_known) watch(index);
}

uint64_t foreign_mask_of(uintptr_t text, const char *path)
{
    const uint64_t index = index_of(text, path);
    return index == OTHERS ? 0 : UINT64_C(1) << index;
}

void foreign_keep_objects(uint64_t mask)
{
    const word count = load_relaxed(&foreign.count);
    for (word i = 0; i < count; i++)
        if (!(mask >> i & 1) && load_relaxed(&foreign.objects[i].text_end)) {
            unwatch(i);
            store_release(&foreign.objects[i].text_end, 0);
        }
}

/* The place may be given to another object meanwhile: then the beginning changes before the end
 * does. */
static inline int is_in_object(uintptr_t address, uint64_t index)
{
    const uintptr_t text = load_acquire(&foreign.objects[index].text);
    return address >= text && address < load_acquire(&foreign.objects[index].text_end)
           && load_relaxed(&foreign.objects[index].text) == text;
}

/* The index of the object with this address in its code, or OTHERS. */
static uint64_t object_of(const void *caller)
{
    const word count = load_acquire(&foreign.count);
    for (word i = 0; i < count; i++)
        if (is_in_object((uintptr_t)caller, i)) return i;
    return OTHERS;
}

int foreign_is_due(void) { return load_relaxed(&foreign.due) != 0; }
void foreign_clear_due(void) { store_relaxed(&foreign.due, 0); }
void foreign_set_due(void) { store_relaxed(&foreign.due, load_relaxed(&foreign.watched) != 0); }

int foreign_is_watched(uintptr_t text, const char *path)
{
    return (load_relaxed(&foreign.watched) & foreign_mask_of(text, path)) != 0;
}

/* -- noting -- */

void foreign_note_mapping(const void *caller, uint64_t bytes, int accounted)
{
    const uint64_t i = object_of(caller);
    if (accounted && !load_relaxed(&foreign.objects[i].is_known)) return;
    word before = load_relaxed(&foreign.objects[i].bytes);
    while (before != UINT64_MAX
           && !compare_exchange_weak_relaxed(&foreign.objects[i].bytes, &before, before + bytes)) {}
    if (i != OTHERS && (before == UINT64_MAX || before + bytes > WATCHED_FROM)) watch(i);
    if (accounted) return;
    task_handle task = lineage_allocating_task();
    if (is_somebody(task))
        lineage_note_foreign(task, UINT64_C(1) << i);
    else
        unowned_add(handle_unowned_entry(task), (int64_t)bytes);
}

static __attribute__((noinline)) void note_call_of(uint64_t index)
{
    lineage_note_foreign(lineage_current_task(), UINT64_C(1) << index);
}

/* A watched object works for the calling thread. */
static inline void note_call(const void *caller)
{
    task_handle task = is_somebody(this_thread.task) ? this_thread.task : this_thread.works_for;
    /* not in native threads: the thread that called the library is noted */
    if (this_thread.native || !is_somebody(task)) return;
    const word noted = lineage_runs(task) ? lineage_foreign_mask(task) : 0;
    word missing = load_relaxed(&foreign.watched) & ~noted;
    for (; missing; missing &= missing - 1) {
        const uint64_t i = (uint64_t)__builtin_ctzll(missing);
        if (is_in_object((uintptr_t)caller, i)) note_call_of(i);
    }
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

uintptr_t foreign_wrapper_of(uintptr_t function)
{
    for (size_t i = 0; i < CALL_COUNT; i++)
        if (function && function == (uintptr_t)*(void **)calls[i].real)
            return (uintptr_t)calls[i].wrapper;
    return 0;
}

uintptr_t foreign_wrapper_of_name(const char *name)
{
    for (size_t i = 0; i < CALL_COUNT; i++) {
        if (strcmp(name, calls[i].name)) continue;
        /* Old programs ask for an old version of memcpy, which is glibc's memmove. */
        if (calls[i].real == (void *)&real.memcpy && real.memcpy != real.memmove) return 0;
        return foreign_wrapper_of((uintptr_t)*(void **)calls[i].real);
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
        if (bytes > most) most = bytes, *largest = name_of((uint64_t)i);
        sum = bytes == UINT64_MAX || sum == UINT64_MAX ? UINT64_MAX : sum + bytes;
    }
    return sum;
}
