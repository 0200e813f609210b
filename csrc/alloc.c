#define _GNU_SOURCE
#include "alloc.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "board_layout.h"
#include "owners.h"
#include "patch.h"
#include "sums.h"

#define FLUSH_BYTES   (32 << 10)
#define NETTED_MOST   (64 << 10) /* smaller blocks that find the table full are netted, larger ones are only counted as untracked */
#define PAGE          4096 /* what the kernel rounds mappings to, at least */
#define LINEAGE_COUNT (1 << 16)
#define SERIAL_BITS   40
#define SERIAL_MASK   ((UINT64_C(1) << SERIAL_BITS) - 1)

/* A task's live bytes are two sums: `own`, which only the thread that began it writes, with plain stores, and `others`, by all other
 * threads, with atomic ones. */
struct account {
    word serial, own, others, peak, small, count;
    word parent;      /* handle of the task around it, or 0 */
    word inexact;
    const void *home; /* the thread that began it: the address of its `local` */
} __attribute__((aligned(64)));

static struct {
    /* Read at every call, hardly ever written: one cache line, with the first two of `real`. */
    word active, large_from; /* active: allocations are accounted, not only passed on */
    word small_headers; /* glibc's size words below this are of small blocks; 0: another malloc, whose headers we do not know */
    struct real_functions real;
    int (*is_python)(void);
    int hooked;  /* the wrappers were put in place by this process */
    word starts; /* of the accounting, in this process */
    word sole;   /* handle of the one task that runs, 0: none, ABSENT: several */
    /* Written now and then. */
    word untracked_bytes __attribute__((aligned(64)));
    word overflowed, ambiguous, slots_used;
    struct account accounts[SLOT_COUNT], unowned;
    struct { word serial, parent; } lineage[LINEAGE_COUNT]; /* of nested tasks: whom their memory passes to */
} alloc __attribute__((aligned(64)));

/* 32 bytes: static TLS is scarce. */
static __thread struct {
    int32_t pending; /* small bytes not yet in the account */
    uint32_t pending_count;
    uint64_t handle; /* of the innermost task that this thread runs, or 0 */
    uint64_t base;   /* of the task that it was started in, or adopted by */
    uint16_t busy;    /* inside a wrapper: a signal handler's own calls are not followed */
    uint16_t adopted; /* base counts for native threads, too */
} local;

static void enter(void)
{
    local.busy = 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static void leave(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    local.busy = 0;
}

static uint64_t handle_of(uint32_t slot, uint64_t serial) { return serial ? serial * SLOT_COUNT + slot : 0; }

/* Serials begin anew with each board; a thread may still hold a handle of the last start's. */
static uint64_t unique(uint64_t serial) { return serial && serial <= SERIAL_MASK ? serial | alloc.starts << SERIAL_BITS : serial; }

/* -- accounts ---------------------------------------------------------------------------------------------------------------------------- */

static uint64_t live_bytes(const struct account *a)
{
    int64_t live = sum_value(load_relaxed(&a->own)) + sum_value(load_relaxed(&a->others));
    return live < 0 ? 0 : (uint64_t)live;
}

static inline void raise_peak(struct account *a, uint64_t serial) { peak_raise(&a->peak, serial, live_bytes(a)); }

static inline void add_own(struct account *a, uint64_t serial, int64_t bytes)
{
    store_relaxed(&a->own, load_relaxed(&a->own) + (word)bytes);
    if (bytes > 0) raise_peak(a, serial);
}

/* Adds to one account if it is still that generation's. */
static void add_live(struct account *a, uint64_t serial, int64_t bytes)
{
    if (a->home == &local) {
        add_own(a, serial, bytes);
        return;
    }
    if (sum_add(&a->others, serial, bytes) && bytes > 0) raise_peak(a, serial);
}

static struct account *account_of(uint64_t handle)
{
    struct account *a = &alloc.accounts[handle % SLOT_COUNT];
    return handle && load_acquire(&a->serial) == handle / SLOT_COUNT ? a : NULL;
}

/* Of a task that has ended, too. */
static uint64_t parent_of(uint64_t handle)
{
    uint64_t serial = handle / SLOT_COUNT;
    const struct account *a = &alloc.accounts[handle % SLOT_COUNT];
    uint64_t parent = load_relaxed(&a->parent);
    if (load_acquire(&a->serial) != serial)
        parent = load_acquire(&alloc.lineage[serial % LINEAGE_COUNT].serial) != serial ? 0 : load_relaxed(&alloc.lineage[serial % LINEAGE_COUNT].parent);
    return parent < handle ? parent : 0;
}

/* The task itself, or the nearest one around it that still runs: an ended task's memory belongs to that. 0: none. */
static uint64_t heir_of(uint64_t handle)
{
    while (handle && !account_of(handle)) handle = parent_of(handle); /* ends: a parent's serial is smaller */
    return handle;
}

static __attribute__((noinline)) void charge_all(uint64_t handle, int64_t bytes)
{
    if (!handle) add_live(&alloc.unowned, 0, bytes);
    while (handle) {
        struct account *a = account_of(handle);
        if (a) add_live(a, handle / SLOT_COUNT, bytes);
        handle = parent_of(handle);
    }
}

/* A task and all around it that run; of an ended one, those around it. 0: nobody's. */
static inline void charge(uint64_t handle, int64_t bytes)
{
    struct account *a = &alloc.accounts[handle % SLOT_COUNT];
    if (__builtin_expect(handle && a->home == &local && load_relaxed(&a->serial) == handle / SLOT_COUNT && !load_relaxed(&a->parent), 1))
        add_own(a, handle / SLOT_COUNT, bytes);
    else
        charge_all(handle, bytes);
}

/* Small bytes: frees of older memory cannot hide what is the account's own. */
static void add_small(struct account *a, uint64_t serial, int64_t bytes)
{
    word old = load_relaxed(&a->small), new_small;
    do new_small = (int64_t)old + bytes < 0 ? 0 : old + (word)bytes;
    while (!__atomic_compare_exchange_n(&a->small, &old, new_small, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (new_small != old) add_live(a, serial, (int64_t)(new_small - old));
}

static int in_python_thread(void) { return !alloc.is_python || alloc.is_python(); }

/* Whom this thread allocates for: its own task, the one it works for, or, of native threads, the only one that runs. */
static uint64_t current_handle(void)
{
    uint64_t handle = local.handle;
    if (__builtin_expect(account_of(handle) != NULL, 1) || (handle = heir_of(handle))) return handle;
    if (local.base && (handle = heir_of(local.base)) && (local.adopted || in_python_thread())) return handle;
    word sole = load_relaxed(&alloc.sole);
    if (sole == 0 || in_python_thread()) return 0;
    if (sole != ABSENT) return sole;
    store_relaxed(&alloc.ambiguous, 1);
    return 0;
}

static void flush_to(uint64_t handle)
{
    struct account *a;
    if (!handle) add_small(&alloc.unowned, 0, local.pending);
    for (; handle; handle = parent_of(handle)) {
        if (!(a = account_of(handle))) continue;
        add_relaxed(&a->count, local.pending_count);
        add_small(a, handle / SLOT_COUNT, local.pending);
    }
    local.pending = 0;
    local.pending_count = 0;
}

static void flush(void) { flush_to(current_handle()); }

/* -- blocks ------------------------------------------------------------------------------------------------------------------------------ */

/* What belonged to a task that has ended goes to those around it, and to nobody else. */
static inline void release(uint64_t owner, int64_t bytes) { charge(owner, -bytes); }

/* 0 if the table is full and the block is to be netted. */
static inline int large_added(void *block, uint64_t bytes)
{
    uint64_t handle = current_handle();
    struct owned stale = { 0, 0, 0 };
    enum owners_result result = owners_insert((uintptr_t)block, bytes, handle, &stale);
    if (result == OWNERS_FULL) {
        store_relaxed(&alloc.overflowed, 1);
        add_relaxed(&alloc.untracked_bytes, bytes);
        return bytes >= NETTED_MOST;
    }
    if (result == OWNERS_REPLACED) release(stale.owner, (int64_t)stale.bytes); /* its free was not seen */
    charge(handle, (int64_t)bytes);
    local.pending_count++;
    return 1;
}

static __attribute__((noinline)) void flush_full(void)
{
    if (local.busy) return; /* a signal handler's: with the next one */
    enter();
    if (load_relaxed(&alloc.active)) flush();
    else local.pending = 0;
    leave();
}

static inline void small_changed(int32_t bytes)
{
    local.pending += bytes;
    if (__builtin_expect((uint32_t)(local.pending + FLUSH_BYTES) > 2 * FLUSH_BYTES, 0)) flush_full();
}

/* glibc keeps a block's size in the word before it, with three flags: read here, it saves two calls a pair. */
static inline uint64_t header_of(const void *block) { return ((const uint64_t *)block)[-1]; }
static inline uint64_t size_in_header(uint64_t header) { return (header & ~UINT64_C(7)) - (header & 2 ? 16 : 8); } /* 2: a mapping of its own */

/* Arm's memory tagging: a header is not readable through the block's pointer. */
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
    /* No size that glibc would map and, freed, learn from: it would raise its threshold, and the job's memory would move. */
    const size_t sizes[] = { 1, 24, 25, 100, 1000, 5000, 70000, 40 << 20 };
    if (!strstr(patch_provider(), "libc.so") || has_tagged_memory()) return 0; /* another's header may not even be readable */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *block = alloc.real.malloc(sizes[i]);
        if (!block) return 0;
        int same = size_in_header(header_of(block)) == alloc.real.malloc_usable_size(block);
        alloc.real.free(block);
        if (!same) return 0;
    }
    return 1;
}

static inline int watching(void) { return !local.busy && load_relaxed(&alloc.active); }

static inline void small_added(uint64_t bytes)
{
    local.pending_count++;
    small_changed((int32_t)bytes);
}

static uint64_t size_of(void *block)
{
    return load_relaxed(&alloc.small_headers) ? size_in_header(header_of(block)) : alloc.real.malloc_usable_size(block);
}

/* Large, or of a malloc whose headers we do not know. */
static __attribute__((noinline)) void added_otherwise(void *block)
{
    uint64_t bytes = size_of(block);
    if (bytes >= load_relaxed(&alloc.large_from)) {
        if (!watching()) return;
        enter();
        int done = large_added(block, bytes);
        leave();
        if (done) return;
    }
    small_added(bytes);
}

static inline void added(void *block)
{
    if (__builtin_expect(!block, 0)) return;
    uint64_t limit = load_relaxed(&alloc.small_headers), header;
    if (__builtin_expect(limit && (header = header_of(block)) < limit, 1)) small_added((header & ~UINT64_C(7)) - 8);
    else added_otherwise(block);
}

static __attribute__((noinline)) struct owned removed_otherwise(void *block)
{
    struct owned o = { 0, 0, size_of(block) };
    if (o.bytes >= load_relaxed(&alloc.large_from)) {
        uint64_t bytes = o.bytes;
        o.bytes = 0;
        if (!watching()) return o;
        enter();
        o = owners_remove((uintptr_t)block);
        if (o.found) release(o.owner, (int64_t)o.bytes);
        leave();
        /* One not found is older than the probe, nobody's; or the table was full. */
        if (o.found || bytes >= NETTED_MOST || !load_relaxed(&alloc.overflowed)) return o;
        o.bytes = bytes;
    }
    small_changed(-(int32_t)o.bytes);
    return o;
}

/* Before the real free: afterwards the address may be another thread's. */
static inline struct owned removed(void *block)
{
    struct owned o = { 0, 0, 0 };
    if (__builtin_expect(!block, 0)) return o;
    uint64_t limit = load_relaxed(&alloc.small_headers), header;
    if (__builtin_expect(!limit || (header = header_of(block)) >= limit, 0)) return removed_otherwise(block);
    o.bytes = (header & ~UINT64_C(7)) - 8;
    small_changed(-(int32_t)o.bytes);
    return o;
}

/* A realloc that failed: the block is still there and whose it was. */
static void put_back(void *block, struct owned o)
{
    struct owned stale;
    if (o.found && owners_insert((uintptr_t)block, o.bytes, o.owner, &stale) == OWNERS_ADDED) {
        charge(o.owner, (int64_t)o.bytes);
    } else if (o.bytes && !o.found) {
        small_changed((int32_t)o.bytes);
    }
}

/* -- the wrappers: return values and errno are the real function's -------------------------------------------------------------------------- */

static void *alloc_malloc(size_t n)
{
    void *p = alloc.real.malloc(n);
    added(p);
    return p;
}

static void *alloc_calloc(size_t n, size_t each)
{
    void *p = alloc.real.calloc(n, each);
    added(p);
    return p;
}

static void alloc_free(void *p)
{
    removed(p);
    alloc.real.free(p);
}

static void *alloc_realloc(void *old, size_t n)
{
    struct owned o = removed(old);
    void *p = alloc.real.realloc(old, n);
    if (p) added(p);
    else if (old && n) put_back(old, o); /* n == 0 has freed it */
    return p;
}

static void *alloc_reallocarray(void *old, size_t n, size_t each)
{
    size_t bytes; /* not the real one: glibc's calls realloc through a slot that is ours, and would be counted twice */
    if (!__builtin_mul_overflow(n, each, &bytes)) return alloc_realloc(old, bytes);
    errno = ENOMEM;
    return NULL;
}

static int alloc_posix_memalign(void **out, size_t alignment, size_t n)
{
    int e = alloc.real.posix_memalign(out, alignment, n);
    if (e == 0) added(*out);
    return e;
}

static void *alloc_aligned_alloc(size_t alignment, size_t n)
{
    void *p = alloc.real.aligned_alloc(alignment, n);
    added(p);
    return p;
}

static void *alloc_memalign(size_t alignment, size_t n)
{
    void *p = alloc.real.memalign(alignment, n);
    added(p);
    return p;
}

static void *alloc_valloc(size_t n)
{
    void *p = alloc.real.valloc(n);
    added(p);
    return p;
}

static void *alloc_pvalloc(size_t n)
{
    void *p = alloc.real.pvalloc(n);
    added(p);
    return p;
}

static size_t whole_pages(size_t n) { return (n + PAGE - 1) & ~(size_t)(PAGE - 1); }

/* Anonymous and accessible: memory. Files, reservations and guard pages are not. */
static void map_added(void *p, size_t n, int protection, int flags)
{
    if (p == MAP_FAILED || !watching()) return;
    int saved = errno, counts = flags & MAP_ANONYMOUS && protection != PROT_NONE && !(flags & MAP_NORESERVE);
    if (!counts && !(flags & MAP_FIXED)) return;
    enter();
    uint64_t handle = counts ? current_handle() : 0;
    n = whole_pages(n);
    if (!counts) owners_unmap((uintptr_t)p, n, release); /* what was there is given back */
    else if (owners_map((uintptr_t)p, n, handle, release) == OWNERS_FULL) add_relaxed(&alloc.untracked_bytes, n);
    else charge(handle, (int64_t)n), local.pending_count++;
    leave();
    errno = saved;
}

static void map_removed(void *p, size_t n)
{
    if (!watching() || n == 0 || (uintptr_t)p % PAGE) return; /* those the kernel refuses */
    enter();
    owners_unmap((uintptr_t)p, whole_pages(n), release);
    leave();
}

static void *alloc_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    void *p = alloc.real.mmap(at, n, protection, flags, fd, offset);
    map_added(p, n, protection, flags);
    return p;
}

static void *alloc_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    void *p = alloc.real.mmap64(at, n, protection, flags, fd, offset);
    map_added(p, n, protection, flags);
    return p;
}

static int alloc_munmap(void *p, size_t n)
{
    map_removed(p, n);
    return alloc.real.munmap(p, n);
}

/* A mremap that failed. */
static void map_put_back(void *p, size_t n, uint64_t owner)
{
    int saved = errno;
    enter();
    n = whole_pages(n);
    if (owners_map((uintptr_t)p, n, owner, release) == OWNERS_ADDED) charge(owner, (int64_t)n);
    leave();
    errno = saved;
}

static void *alloc_mremap(void *old, size_t old_n, size_t n, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    uint64_t owner;
    int known = watching() && old_n && (uintptr_t)old % PAGE == 0;
    if (known) {
        enter();
        known = owners_covers((uintptr_t)old, &owner);
        leave();
    }
    if (known) map_removed(old, old_n);
    void *p = flags & MREMAP_FIXED ? alloc.real.mremap(old, old_n, n, flags, to) : alloc.real.mremap(old, old_n, n, flags);
    if (known && p != MAP_FAILED) map_added(p, n, PROT_READ, MAP_ANONYMOUS);
    else if (known) map_put_back(old, old_n, owner);
    return p;
}

struct beginning { void *(*function)(void *); void *argument; uint64_t handle; };

/* What is left of a thread that a task started is the task's. Python has forgotten the thread by now: current_handle would not know. */
static void end_thread(void *unused)
{
    (void)unused;
    if (!load_relaxed(&alloc.active)) return;
    enter();
    flush_to(heir_of(local.handle ? local.handle : local.base));
    leave();
}

static void *begin_thread(void *p)
{
    void *result;
    struct beginning b = *(struct beginning *)p;
    alloc.real.free(p);
    local.base = b.handle;
    pthread_cleanup_push(end_thread, NULL); /* for pthread_exit, too */
    result = b.function(b.argument);
    pthread_cleanup_pop(1);
    return result;
}

static int alloc_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument)
{
    uint64_t handle = watching() ? heir_of(local.handle ? local.handle : local.base) : 0;
    struct beginning *b = handle ? alloc.real.malloc(sizeof *b) : NULL;
    if (!b) return alloc.real.pthread_create(thread, attributes, function, argument);
    *b = (struct beginning){ function, argument, handle };
    int e = alloc.real.pthread_create(thread, attributes, begin_thread, b);
    if (e) alloc.real.free(b);
    return e;
}

static const struct patch_wrappers wrappers = {
#define FIELD(name) .name = alloc_##name,
    HOOKS(FIELD)
#undef FIELD
};

/* -- tasks ------------------------------------------------------------------------------------------------------------------------------------ */

void alloc_task_begin(uint32_t slot, uint64_t serial, uint32_t parent_slot, uint64_t parent_serial)
{
    struct account *a = &alloc.accounts[slot];
    uint64_t parent = handle_of(parent_slot, unique(parent_serial));
    serial = unique(serial);
    enter();
    flush();
    store_relaxed(&a->parent, parent);
    store_relaxed(&a->inexact, 0);
    store_relaxed(&a->peak, sum_tag(serial));
    store_relaxed(&a->small, 0);
    store_relaxed(&a->count, 0);
    store_relaxed(&a->own, sum_zero(serial));
    store_relaxed(&a->others, sum_zero(serial));
    a->home = &local;
    store_release(&a->serial, serial);
    max_relaxed(&alloc.slots_used, slot + 1);
    local.handle = handle_of(slot, serial);
    leave();
}

uint64_t alloc_handle(uint32_t slot, uint64_t serial) { return handle_of(slot, unique(serial)); }
int alloc_runs(uint64_t handle) { return account_of(handle) != NULL; }
uint64_t alloc_parent(uint64_t handle) { return parent_of(handle); }

uint32_t alloc_slots_used(void) { return (uint32_t)load_relaxed(&alloc.slots_used); }
uint64_t alloc_serial_in(uint32_t slot) { return load_acquire(&alloc.accounts[slot].serial) & SERIAL_MASK; }

static void read_figures(const struct account *a, uint64_t serial, struct alloc_figures *f)
{
    f->live_bytes = live_bytes(a);
    f->peak_bytes = load_relaxed(&a->peak) & SUM_MASK;
    f->count = load_relaxed(&a->count);
    f->inexact = load_relaxed(&a->inexact) != 0;
    if (f->peak_bytes < f->live_bytes) f->peak_bytes = f->live_bytes;
    /* Written over by the thread of the slot's last task, which another thread had ended under it: unknown, not wrong. */
    if (!sum_is_of(load_relaxed(&a->own), serial)) *f = (struct alloc_figures){ ABSENT, ABSENT, ABSENT, 0 };
}

/* Whom the memory of an ended task passes to, if it leaves any. A place that is still needed is given up, and the loss is noted. */
static void leave_to_parent(uint64_t serial, uint64_t parent)
{
    word *from = &alloc.lineage[serial % LINEAGE_COUNT].serial, *to = &alloc.lineage[serial % LINEAGE_COUNT].parent;
    uint64_t older = load_acquire(from) ? heir_of(load_relaxed(to)) : 0;
    if (older) store_relaxed(&alloc.accounts[older % SLOT_COUNT].inexact, 1);
    store_release(from, 0);
    store_relaxed(to, parent);
    store_release(from, serial);
}

void alloc_task_end(uint32_t slot, uint64_t serial, int leaves_more, struct alloc_figures *figures)
{
    struct account *a = &alloc.accounts[slot];
    enter();
    serial = unique(serial);
    if (local.handle == handle_of(slot, serial)) {
        flush();
        local.handle = load_relaxed(&a->parent);
    }
    read_figures(a, serial, figures);
    if (load_relaxed(&a->parent) && (leaves_more || figures->live_bytes)) leave_to_parent(serial, load_relaxed(&a->parent));
    store_release(&a->serial, 0);
    store_relaxed(&a->others, ~sum_zero(serial)); /* nobody's generation */
    leave();
}

int alloc_task_now(uint32_t slot, uint64_t serial, struct alloc_figures *figures)
{
    if (load_acquire(&alloc.accounts[slot].serial) != unique(serial)) return -ENOENT;
    read_figures(&alloc.accounts[slot], serial, figures);
    return 0;
}

void alloc_running(uint32_t lanes, uint32_t slot, uint64_t serial)
{
    store_relaxed(&alloc.sole, lanes == 0 ? 0 : lanes == 1 ? handle_of(slot, unique(serial)) : ABSENT);
}

int alloc_was_ambiguous(void) { return (int)__atomic_exchange_n(&alloc.ambiguous, 0, __ATOMIC_RELAXED); }

void alloc_adopt(uint32_t slot, uint64_t serial, uint32_t *old_slot, uint64_t *old_serial)
{
    *old_slot = (uint32_t)(local.base % SLOT_COUNT);
    *old_serial = local.base / SLOT_COUNT;
    enter();
    flush();
    local.base = handle_of(slot, unique(serial));
    local.adopted = serial != 0;
    leave();
}

uint64_t alloc_current(uint32_t *slot)
{
    uint64_t handle = heir_of(local.handle);
    if (!handle) handle = heir_of(local.base);
    *slot = (uint32_t)(handle % SLOT_COUNT);
    return handle / SLOT_COUNT;
}

uint64_t alloc_live_now(uint32_t slot, uint64_t serial)
{
    struct alloc_figures f;
    enter();
    flush();
    leave();
    return alloc_task_now(slot, serial, &f) == 0 ? f.live_bytes : ABSENT;
}

/* -- start, stop, fork ------------------------------------------------------------------------------------------------------------------------ */

void alloc_open(int (*is_python)(void))
{
    alloc.is_python = is_python;
    alloc.starts++;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) store_relaxed(&alloc.accounts[i].serial, 0);
    store_relaxed(&alloc.slots_used, 0);
    store_relaxed(&alloc.sole, 0);
    local.pending = 0;
    local.handle = local.base = 0;
}

int alloc_start(uint64_t large_from, int (*is_python)(void))
{
    alloc_open(is_python);
    int e = patch_find(&alloc.real);
    if (e < 0) return e;
    store_relaxed(&alloc.large_from, large_from < ALLOC_LARGE_LEAST ? ALLOC_LARGE_LEAST : large_from > ALLOC_LARGE_MOST ? ALLOC_LARGE_MOST : large_from);
    store_relaxed(&alloc.small_headers, headers_are_glibcs() ? alloc.large_from + 8 : 0);
    alloc.hooked = 1;
    patch_install(&wrappers);
    if (patch_holds()) return 0;
    alloc_stop(0); /* nothing to rewrite: another tool holds the slots */
    return -EBUSY;
}

int alloc_account(void)
{
    int e = owners_open();
    if (e < 0) return e;
    alloc.unowned = (struct account){ .own = sum_zero(0), .others = sum_zero(0) };
    store_relaxed(&alloc.untracked_bytes, 0);
    store_relaxed(&alloc.overflowed, 0);
    store_relaxed(&alloc.ambiguous, 0);
    store_release(&alloc.active, 1);
    return 0;
}

void alloc_stop(int at_exit)
{
    if (!alloc.hooked) return;
    if (!at_exit) patch_remove();
    alloc.hooked = 0;
    store_release(&alloc.active, 0);
}

int alloc_active(void) { return load_relaxed(&alloc.active) != 0; }

void alloc_fork_lock(void) { patch_lock(), owners_lock(); }
void alloc_fork_unlock(void) { owners_unlock(), patch_unlock(); }

void alloc_forked(void)
{
    owners_forked();
    patch_forked();
    alloc.hooked = 0;
    store_relaxed(&alloc.active, 0); /* until the child runs a task of its own, the wrappers only pass on */
    for (uint32_t i = 0; i < SLOT_COUNT; i++) alloc.accounts[i].serial = 0;
    alloc.sole = 0;
    local.handle = local.base = 0;
}

uint64_t alloc_unowned_bytes(void) { return live_bytes(&alloc.unowned); }
uint64_t alloc_untracked_bytes(void) { return load_relaxed(&alloc.untracked_bytes); }
int alloc_holds(void) { return alloc_active() && patch_holds(); }
