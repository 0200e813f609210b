#define _GNU_SOURCE
#include "alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "accounts.h"
#include "elf_object.h"
#include "foreign.h"
#include "owners.h"
#include "patch.h"
#include "shared_files.h"
#include "unaccounted.h"

/* If the owner table is full, blocks below this size are summed per thread like small ones. Larger
 * ones are only counted as untracked. */
#define SMALL_IF_FULL (64 << 10)
#define PAGE          4096 /* the smallest page: mappings are multiples of it */

static struct {
    /* Read at every call and hardly ever written: one cache line, with the first of `real`. */
    word large_from;
    /* A glibc header below this value belongs to a small block. 0: the malloc is not glibc's, and
     * headers are not read. */
    word small_header_limit;
    struct real_functions real;
    word interpreter, interpreter_end; /* Python's code; 0: not known */
    int hooked;                        /* the wrappers were put in place by this process */
    /* Written sometimes: on another cache line. */
    word untracked_bytes __attribute__((aligned(64)));
    word table_was_full;
} alloc __attribute__((aligned(64)));

/* -- blocks -- */

/* Bytes of an ended task are subtracted from its running ancestors. */
static inline void subtract_bytes(task_handle owner, int64_t bytes)
{
    accounts_charge(owner, -bytes);
}

/* 0 if the table is full and the block is to be summed as a small one. */
static inline int add_large(void *block, uint64_t bytes)
{
    task_handle task = lineage_allocating_task();
    struct owned stale = { 0, NOBODY, 0 };
    enum owners_result result = owners_insert((uintptr_t)block, bytes, task, &stale);
    if (result == OWNERS_FULL) {
        store_relaxed(&alloc.table_was_full, 1);
        add_relaxed(&alloc.untracked_bytes, bytes);
        return bytes >= SMALL_IF_FULL;
    }
    /* the free of an earlier block was not seen */
    if (result == OWNERS_REPLACED) subtract_bytes(stale.owner, (int64_t)stale.bytes);
    accounts_charge(task, (int64_t)bytes);
    accounts_count_allocation();
    return 1;
}

/* glibc keeps a block's size in the word before the block, with three flags. Reading the word saves
 * two calls of malloc_usable_size for each malloc and free. */
static inline uint64_t header_of(const void *block) { return ((const uint64_t *)block)[-1]; }
/* Flag 2: the block is a mapping of its own, with a longer header. */
static inline uint64_t size_in_header(uint64_t header)
{
    return (header & ~UINT64_C(7)) - (header & 2 ? 16 : 8);
}

/* With Arm's memory tagging a header cannot be read through the block's pointer. */
static int has_tagged_memory(void)
{
#ifdef PR_GET_TAGGED_ADDR_CTRL
    int control = prctl(PR_GET_TAGGED_ADDR_CTRL, 0, 0, 0, 0);
    return control > 0 && (control & 6);
#else
    return 0;
#endif
}

static int headers_are_glibcs(void)
{
    /* No size between glibc's mmap threshold and its maximum: freeing such a block raises the
     * threshold, and the job's later blocks would be placed elsewhere. */
    const size_t sizes[] = { 1, 24, 25, 100, 1000, 5000, 70000, 40 << 20 };
    /* the header of another malloc may not even be readable */
    if (!patch_provider_is_glibc() || has_tagged_memory()) return 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *block = alloc.real.malloc(sizes[i]);
        if (!block) return 0;
        int same = size_in_header(header_of(block)) == alloc.real.malloc_usable_size(block);
        alloc.real.free(block);
        if (!same) return 0;
    }
    return 1;
}

static inline void add_small(uint64_t bytes)
{
    accounts_count_allocation();
    accounts_add_small((int32_t)bytes);
}

static uint64_t block_size(void *block)
{
    return load_relaxed(&alloc.small_header_limit) ? size_in_header(header_of(block))
                                                   : alloc.real.malloc_usable_size(block);
}

void alloc_add_block(void *block, uint64_t bytes)
{
    if (bytes >= load_relaxed(&alloc.large_from)) {
        if (!accounts_may_change()) return;
        accounts_enter();
        int done = add_large(block, bytes);
        accounts_leave();
        if (done) return;
    }
    add_small(bytes);
}

/* A large block, or one of a malloc whose headers are not read. */
static __attribute__((noinline)) void add_block_slow(void *block)
{
    alloc_add_block(block, block_size(block));
}

static inline void add_block(void *block)
{
    if (__builtin_expect(!block, 0)) return;
    uint64_t limit = load_relaxed(&alloc.small_header_limit), header;
    if (__builtin_expect(limit && (header = header_of(block)) < limit, 1))
        add_small((header & ~UINT64_C(7)) - 8);
    else
        add_block_slow(block);
}

struct owned alloc_remove_block(void *block, uint64_t bytes)
{
    struct owned o = { 0, NOBODY, bytes };
    if (bytes >= load_relaxed(&alloc.large_from)) {
        o.bytes = 0;
        if (!accounts_may_change()) return o;
        accounts_enter();
        o = owners_remove((uintptr_t)block);
        if (o.found) subtract_bytes(o.owner, (int64_t)o.bytes);
        accounts_leave();
        /* A block that is not found is older than the probe, or the table was full. */
        if (o.found || bytes >= SMALL_IF_FULL || !load_relaxed(&alloc.table_was_full)) return o;
        o.bytes = bytes;
    }
    accounts_add_small(-(int32_t)o.bytes);
    return o;
}

static __attribute__((noinline)) struct owned remove_block_slow(void *block)
{
    return alloc_remove_block(block, block_size(block));
}

/* Called before the real free: afterwards another thread may get the same address. */
static inline struct owned remove_block(void *block)
{
    struct owned o = { 0, NOBODY, 0 };
    if (__builtin_expect(!block, 0)) return o;
    uint64_t limit = load_relaxed(&alloc.small_header_limit), header;
    if (__builtin_expect(!limit || (header = header_of(block)) >= limit, 0))
        return remove_block_slow(block);
    o.bytes = (header & ~UINT64_C(7)) - 8;
    accounts_add_small(-(int32_t)o.bytes);
    return o;
}

void alloc_restore_block(void *block, struct owned o)
{
    struct owned stale;
    if (o.found && owners_insert((uintptr_t)block, o.bytes, o.owner, &stale) == OWNERS_ADDED) {
        accounts_charge(o.owner, (int64_t)o.bytes);
    } else if (o.bytes && !o.found) {
        accounts_add_small((int32_t)o.bytes);
    }
}

/* -- the wrappers: they return what the real functions return, and keep their errno -- */

static void *alloc_malloc(size_t n)
{
    void *p = alloc.real.malloc(n);
    add_block(p);
    return p;
}

static void *alloc_calloc(size_t n, size_t each)
{
    void *p = alloc.real.calloc(n, each);
    add_block(p);
    return p;
}

static void alloc_free(void *p)
{
    remove_block(p);
    alloc.real.free(p);
}

static void *alloc_realloc(void *old, size_t n)
{
    struct owned o = remove_block(old);
    void *p = alloc.real.realloc(old, n);
    if (p)
        add_block(p);
    else if (old && n)
        alloc_restore_block(old, o); /* realloc with n == 0 has freed the block */
    return p;
}

static void *alloc_reallocarray(void *old, size_t n, size_t each)
{
    /* The real function is not called: glibc's calls realloc through a slot that is patched, so the
     * block would be counted twice. */
    size_t bytes;
    if (!__builtin_mul_overflow(n, each, &bytes)) return alloc_realloc(old, bytes);
    errno = ENOMEM;
    return NULL;
}

static int alloc_posix_memalign(void **out, size_t alignment, size_t n)
{
    int e = alloc.real.posix_memalign(out, alignment, n);
    if (e == 0) add_block(*out);
    return e;
}

static void *alloc_aligned_alloc(size_t alignment, size_t n)
{
    void *p = alloc.real.aligned_alloc(alignment, n);
    add_block(p);
    return p;
}

static void *alloc_memalign(size_t alignment, size_t n)
{
    void *p = alloc.real.memalign(alignment, n);
    add_block(p);
    return p;
}

static void *alloc_valloc(size_t n)
{
    void *p = alloc.real.valloc(n);
    add_block(p);
    return p;
}

static void *alloc_pvalloc(size_t n)
{
    void *p = alloc.real.pvalloc(n);
    add_block(p);
    return p;
}

/* C++'s operators. An exception of the real one passes through: these functions have nothing to
 * undo, and setup.py asks for unwind tables. */
#define ALLOCATE(name, parameters, arguments) \
    static void *alloc_##name parameters      \
    {                                         \
        void *p = alloc.real.name arguments;  \
        add_block(p);                         \
        return p;                             \
    }
#define RELEASE(name, parameters, arguments) \
    static void alloc_##name parameters      \
    {                                        \
        remove_block(p);                     \
        alloc.real.name arguments;           \
    }
#define NEW_1(name)    ALLOCATE(name, (size_t n), (n))
#define NEW_2(name)    ALLOCATE(name, (size_t n, size_t b), (n, b))
#define NEW_3(name)    ALLOCATE(name, (size_t n, size_t b, size_t c), (n, b, c))
#define DELETE_1(name) RELEASE(name, (void *p), (p))
#define DELETE_2(name) RELEASE(name, (void *p, size_t b), (p, b))
#define DELETE_3(name) RELEASE(name, (void *p, size_t b, size_t c), (p, b, c))
NEW_1_HOOKS(NEW_1)
NEW_2_HOOKS(NEW_2)
NEW_3_HOOKS(NEW_3)
DELETE_1_HOOKS(DELETE_1)
DELETE_2_HOOKS(DELETE_2)
DELETE_3_HOOKS(DELETE_3)

static size_t whole_pages(size_t n) { return (n + PAGE - 1) & ~(size_t)(PAGE - 1); }

static void add_untracked(uint64_t bytes)
{
    if (bytes) add_relaxed(&alloc.untracked_bytes, bytes);
}

static void map_shared_file(void *p, size_t n, int fd, off_t offset)
{
    uint64_t charged;
    add_untracked(shared_files_map((uintptr_t)p, n, fd, (uint64_t)offset, &charged));
    if (charged) accounts_count_allocation();
}

/* Only accessible mappings count as memory, not reservations or guard pages: anonymous ones, and
 * shared ones of files in memory (shared_files.h). */
static void add_mapping(void *p, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (p == MAP_FAILED || !accounts_may_change()) return;
    int saved = errno, may_count = protection != PROT_NONE && !(flags & MAP_NORESERVE),
        counts = flags & MAP_ANONYMOUS && may_count,
        is_shared =
            flags & MAP_SHARED && !(flags & MAP_ANONYMOUS) && may_count && shared_files_any();
    if (!counts && !is_shared && !(flags & MAP_FIXED)) return;
    accounts_enter();
    task_handle task = counts ? lineage_allocating_task() : NOBODY;
    n = whole_pages(n);
    if (is_shared)
        map_shared_file(p, n, fd, offset);
    else if (shared_files_any_mapped())
        add_untracked(shared_files_unmap((uintptr_t)p, n));
    if (!counts)
        owners_unmap((uintptr_t)p, n, subtract_bytes); /* MAP_FIXED replaces older mappings */
    else if (owners_map((uintptr_t)p, n, task, subtract_bytes) == OWNERS_FULL)
        add_relaxed(&alloc.untracked_bytes, n);
    else
        accounts_charge(task, (int64_t)n), accounts_count_allocation();
    accounts_leave();
    errno = saved;
}

static void remove_mapping(void *p, size_t n)
{
    /* the kernel refuses such a munmap */
    if (!accounts_may_change() || n == 0 || (uintptr_t)p % PAGE) return;
    accounts_enter();
    owners_unmap((uintptr_t)p, whole_pages(n), subtract_bytes);
    if (shared_files_any_mapped()) add_untracked(shared_files_unmap((uintptr_t)p, whole_pages(n)));
    accounts_leave();
}

struct mapping {
    const void *caller;
    size_t bytes; /* whole pages */
    int protection, flags;
};

/* Private memory beside the accounts: copies of files, what a library maps for an allocator of its
 * own (as jemalloc does, without a reserve of swap space), or for one whose blocks are counted. */
static int is_beside_accounts(const struct mapping *m)
{
    return !(m->flags & MAP_SHARED) && m->protection & PROT_WRITE
           && (!(m->flags & MAP_ANONYMOUS) || m->flags & MAP_NORESERVE
               || patch_leaves_mapping(m->caller));
}

static void account_mapping(const struct mapping *m, void *p, int fd, off_t offset)
{
    if (patch_leaves_mapping(m->caller)) return;
    add_mapping(p, m->bytes, m->protection, m->flags, fd, offset);
    if (p != MAP_FAILED && m->flags & MAP_ANONYMOUS && !(m->flags & MAP_SHARED)
        && m->protection & PROT_WRITE)
        foreign_note_mapping(m->caller, m->bytes, !(m->flags & MAP_NORESERVE));
}

#define MMAP(name)                                                                                 \
    static void *alloc_##name(void *at, size_t n, int protection, int flags, int fd, off_t offset) \
    {                                                                                              \
        const struct mapping m = { __builtin_return_address(0), whole_pages(n), protection,        \
                                   flags };                                                        \
        const int beside = is_beside_accounts(&m);                                                 \
        if (beside) unaccounted_announce(m.bytes);                                                 \
        void *p = alloc.real.name(at, n, protection, flags, fd, offset);                           \
        account_mapping(&m, p, fd, offset);                                                        \
        if (beside) unaccounted_explain(m.bytes);                                                  \
        return p;                                                                                  \
    }
MMAP(mmap)
MMAP(mmap64)

/* As mimalloc does: a part of a reservation becomes memory. Code that is generated is not meant. */
static int alloc_mprotect(void *p, size_t n, int protection)
{
    task_handle owner;
    const void *caller = __builtin_return_address(0);
    const uint64_t bytes = protection & PROT_WRITE ? whole_pages(n) : 0;
    if (bytes) unaccounted_announce(bytes);
    int result = alloc.real.mprotect(p, n, protection), saved = errno;
    if (result == 0 && bytes && !(protection & PROT_EXEC) && accounts_may_change()
        && !patch_leaves_mapping(caller)) {
        accounts_enter();
        if (!owners_find_mapping((uintptr_t)p, &owner)) foreign_note_mapping(caller, bytes, 0);
        accounts_leave();
    }
    if (bytes) unaccounted_explain(bytes);
    errno = saved;
    return result;
}

static int alloc_munmap(void *p, size_t n)
{
    remove_mapping(p, n);
    return alloc.real.munmap(p, n);
}

/* After a mremap that failed. */
static void restore_mapping(void *p, size_t n, task_handle owner)
{
    int saved = errno;
    accounts_enter();
    n = whole_pages(n);
    if (owners_map((uintptr_t)p, n, owner, subtract_bytes) == OWNERS_ADDED)
        accounts_charge(owner, (int64_t)n);
    accounts_leave();
    errno = saved;
}

/* A mapping that mremap duplicates (no old bytes) or does not unmap stays where it is. */
static struct shared_part begin_move(void *old, size_t n, int flags)
{
    struct shared_part part = { 0, 0 };
    if (!shared_files_any_mapped() || !accounts_may_change() || (uintptr_t)old % PAGE) return part;
    accounts_enter();
    part =
        shared_files_begin_move((uintptr_t)old, whole_pages(n), n == 0 || flags & MREMAP_DONTUNMAP);
    accounts_leave();
    return part;
}

static void end_move(struct shared_part part, void *p, size_t n)
{
    int saved = errno;
    accounts_enter();
    add_untracked(shared_files_end_move(part, (uintptr_t)p, whole_pages(n)));
    accounts_leave();
    errno = saved;
}

static void *alloc_mremap(void *old, size_t old_n, size_t n, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    task_handle owner;
    int known = accounts_may_change() && old_n && (uintptr_t)old % PAGE == 0;
    if (known) {
        accounts_enter();
        known = owners_find_mapping((uintptr_t)old, &owner);
        accounts_leave();
    }
    if (known) remove_mapping(old, old_n);
    struct shared_part part = begin_move(old, old_n, flags);
    void *p = flags & MREMAP_FIXED ? alloc.real.mremap(old, old_n, n, flags, to)
                                   : alloc.real.mremap(old, old_n, n, flags);
    if (known && p != MAP_FAILED)
        add_mapping(p, n, PROT_READ, MAP_ANONYMOUS, -1, 0);
    else if (known)
        restore_mapping(old, old_n, owner);
    if (part.file) {
        if (p != MAP_FAILED)
            end_move(part, p, n);
        else
            end_move(part, old, flags & MREMAP_DONTUNMAP ? 0 : old_n);
    }
    return p;
}

/* -- files in memory: who creates them, and when they are gone -- */

#define MAY_CREATE (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))
#define SHM_FOLDER "/dev/shm/" /* where glibc keeps what shm_open creates */

static void note_created(int fd, int is_new)
{
    if (fd < 0 || !accounts_may_change()) return;
    int saved = errno;
    accounts_enter();
    shared_files_created(fd, is_new, lineage_allocating_task());
    accounts_leave();
    errno = saved;
}

/* The mode is there only if the call may create a file. */
#define OPEN(name, parameters, ...)                         \
    static int alloc_##name parameters                      \
    {                                                       \
        mode_t mode = 0;                                    \
        if (__builtin_expect(!(flags & MAY_CREATE), 1))     \
            return alloc.real.name(__VA_ARGS__, flags);     \
        va_list arguments;                                  \
        va_start(arguments, flags);                         \
        mode = va_arg(arguments, mode_t);                   \
        va_end(arguments);                                  \
        int fd = alloc.real.name(__VA_ARGS__, flags, mode); \
        note_created(fd, flags & O_EXCL);                   \
        return fd;                                          \
    }
OPEN(open, (const char *path, int flags, ...), path)
OPEN(open64, (const char *path, int flags, ...), path)
OPEN(openat, (int directory, const char *path, int flags, ...), directory, path)
OPEN(openat64, (int directory, const char *path, int flags, ...), directory, path)

#define CREATE(name, parameters, arguments, is_new) \
    static int alloc_##name parameters              \
    {                                               \
        int fd = alloc.real.name arguments;         \
        note_created(fd, is_new);                   \
        return fd;                                  \
    }
CREATE(creat, (const char *path, mode_t mode), (path, mode), 0)
CREATE(creat64, (const char *path, mode_t mode), (path, mode), 0)
CREATE(memfd_create, (const char *name, unsigned flags), (name, flags), 1)

static int alloc_shm_open(const char *name, int flags, mode_t mode)
{
    int fd = alloc.real.shm_open(name, flags, mode);
    if (flags & O_CREAT) note_created(fd, flags & O_EXCL);
    return fd;
}

#define RESIZE(name)                                                 \
    static int alloc_##name(int fd, off_t size)                      \
    {                                                                \
        int e = alloc.real.name(fd, size);                           \
        if (e == 0 && shared_files_any() && accounts_may_change()) { \
            int saved = errno;                                       \
            accounts_enter();                                        \
            add_untracked(shared_files_resized(fd));                 \
            accounts_leave();                                        \
            errno = saved;                                           \
        }                                                            \
        return e;                                                    \
    }
RESIZE(ftruncate)
RESIZE(ftruncate64)

/* Before a name is removed: whether it is the last name of a file that may be known. */
static int is_last_name(int directory, const char *path, struct shared_file_id *id)
{
    if (!shared_files_any() || !accounts_may_change()) return 0;
    int saved = errno, is_last = shared_files_find_last_name(directory, path, id);
    errno = saved;
    return is_last;
}

static int note_unlinked(int e, struct shared_file_id id)
{
    if (e != 0) return e;
    int saved = errno;
    accounts_enter();
    shared_files_unlinked(id);
    accounts_leave();
    errno = saved;
    return e;
}

#define UNLINK(name, parameters, arguments, directory)          \
    static int alloc_##name parameters                          \
    {                                                           \
        struct shared_file_id id;                               \
        const int is_last = is_last_name(directory, path, &id); \
        const int e = alloc.real.name arguments;                \
        return is_last ? note_unlinked(e, id) : e;              \
    }
UNLINK(unlink, (const char *path), (path), AT_FDCWD)
UNLINK(remove, (const char *path), (path), AT_FDCWD)
UNLINK(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder)

static int alloc_shm_unlink(const char *name)
{
    char path[sizeof SHM_FOLDER + NAME_MAX] = SHM_FOLDER;
    struct shared_file_id id;
    const char *file = name + strspn(name, "/");
    strncat(path, file, NAME_MAX);
    const int is_last = is_last_name(AT_FDCWD, path, &id);
    const int e = alloc.real.shm_unlink(name);
    return is_last ? note_unlinked(e, id) : e;
}

static int is_outside_interpreter(uintptr_t code)
{
    const uintptr_t end = load_relaxed(&alloc.interpreter_end);
    return end && (code < load_relaxed(&alloc.interpreter) || code >= end);
}

struct thread_start {
    void *(*function)(void *);
    void *argument;
    task_handle task;
    int native;
};

static void flush_at_thread_end(void *unused)
{
    (void)unused;
    accounts_flush_at_thread_end();
}

static void *run_thread(void *p)
{
    void *result;
    struct thread_start b = *(struct thread_start *)p;
    alloc.real.free(p);
    lineage_inherit(b.task);
    if (b.native) lineage_note_native();
    pthread_cleanup_push(flush_at_thread_end, NULL); /* runs also after pthread_exit */
    result = b.function(b.argument);
    pthread_cleanup_pop(1);
    return result;
}

static int alloc_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                void *(*function)(void *), void *argument)
{
    pthread_attr_t defaults;
    size_t stack = 0;
    if (attributes)
        pthread_attr_getstacksize(attributes, &stack);
    else if (pthread_getattr_default_np(&defaults) == 0)
        pthread_attr_getstacksize(&defaults, &stack), pthread_attr_destroy(&defaults);
    unaccounted_announce(stack);
    task_handle task = accounts_may_change() ? lineage_task_to_inherit() : NOBODY;
    const int native = is_outside_interpreter((uintptr_t)function);
    struct thread_start *b = is_somebody(task) || native ? alloc.real.malloc(sizeof *b) : NULL;
    if (b) *b = (struct thread_start){ function, argument, task, native };
    int e = alloc.real.pthread_create(thread, attributes, b ? run_thread : function,
                                      b ? (void *)b : argument);
    if (e && b) alloc.real.free(b);
    unaccounted_explain(stack);
    return e;
}

static const struct patch_wrappers wrappers = {
#define FIELD(name) .name = alloc_##name,
    HOOKS(FIELD)
#undef FIELD
};

/* -- start, stop, fork -- */

static int find_interpreter(struct dl_phdr_info *info, size_t size, void *code)
{
    struct elf_object o;
    (void)size;
    if (!elf_object_contains(info, (uintptr_t)code)) return 0;
    if (elf_object_read(info, &o) && (uintptr_t)code >= o.text && (uintptr_t)code < o.text_end) {
        store_relaxed(&alloc.interpreter, o.text);
        store_relaxed(&alloc.interpreter_end, o.text_end);
    }
    return 1;
}

void alloc_find_interpreter(void *code)
{
    /* once: in a forked child the loader's lock may stay locked for ever */
    if (code && !load_relaxed(&alloc.interpreter_end)) dl_iterate_phdr(find_interpreter, code);
}

int alloc_start(uint64_t large_from)
{
    int e = patch_find(&alloc.real);
    if (e < 0) return e;
    store_relaxed(&alloc.large_from, large_from < ALLOC_LARGE_LEAST  ? ALLOC_LARGE_LEAST
                                     : large_from > ALLOC_LARGE_MOST ? ALLOC_LARGE_MOST
                                                                     : large_from);
    store_relaxed(&alloc.small_header_limit, headers_are_glibcs() ? alloc.large_from + 8 : 0);
    alloc.hooked = 1;
    patch_install(&wrappers);
    if (patch_check_intact()) return 0;
    alloc_stop(0); /* no slot was patched: another tool has replaced them */
    return -EBUSY;
}

int alloc_start_accounting(void)
{
    int e = owners_open();
    if (e < 0) return e;
    patch_ask_loader();
    store_relaxed(&alloc.untracked_bytes, 0);
    store_relaxed(&alloc.table_was_full, 0);
    shared_files_open();
    accounts_open();
    return 0;
}

void alloc_stop(int at_exit)
{
    if (!alloc.hooked) return;
    if (!at_exit) patch_remove();
    alloc.hooked = 0;
    accounts_close();
}

/* Between the two, other handlers of pthread_atfork run in this thread. They may call a wrapper,
 * which must not wait for these locks: so it does not account. */
void alloc_fork_lock(void)
{
    patch_lock(), owners_lock(), shared_files_lock();
    accounts_enter();
}

void alloc_fork_unlock(void)
{
    accounts_leave();
    shared_files_unlock(), owners_unlock(), patch_unlock();
}

void alloc_reset_in_child(void)
{
    owners_reset_in_child();
    shared_files_reset_in_child();
    patch_reset_in_child();
    alloc.hooked = 0;
    accounts_close(); /* until the child accounts for itself, the wrappers only call through */
    accounts_leave();
}

uint64_t alloc_untracked_bytes(void) { return load_relaxed(&alloc.untracked_bytes); }
int alloc_check_intact(void) { return accounts_active() && patch_check_intact(); }
