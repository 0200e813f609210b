#define _GNU_SOURCE
#include "alloc.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "board_layout.h"
#include "owners.h"
#include "patch.h"

#define FLUSH_BYTES   (32 << 10)
#define MID_FROM      ALLOC_LARGE_LEAST /* tracked like large ones once they are seen to cross threads */
#define MID_CROSSED   (-(256 << 10))
#define MID_KEPT      (1 << 20)
#define LINEAGE_COUNT (1 << 16)
#define SERIAL_BITS   40
#define SERIAL_MASK   ((UINT64_C(1) << SERIAL_BITS) - 1)
#define SUM_BITS      48
#define SUM_ZERO      (UINT64_C(1) << (SUM_BITS - 1))
#define SUM_MASK      ((UINT64_C(1) << SUM_BITS) - 1)

/* A task's live bytes are two sums: `own`, which only the thread that began it writes, with plain stores, and `others`, by all other
 * threads, with atomic ones. Each sum may be below zero, so it is kept above SUM_ZERO; its upper 16 bits are the task's generation, so
 * that a late change can never pass for one of the slot's next task. */
struct account {
    word serial, own, others, peak, small, count;
    const void *home; /* the thread that began it: the address of its `local` */
    uint32_t parent_slot;
} __attribute__((aligned(64)));

static struct {
    /* Read at every call, hardly ever written. */
    struct real_functions real;
    word active;
    word large_from, tracked_from; /* blocks of this size on are in the owner table: large ones, later perhaps also middle-sized ones */
    int glibc_headers;
    int (*is_python)(void);
    word starts; /* of the accounting, in this process */
    word sole;   /* handle of the one task that runs, 0: none, ABSENT: several */
    /* Written now and then. */
    word untracked_bytes __attribute__((aligned(64)));
    word ambiguous, slots_used;
    struct account accounts[SLOT_COUNT], unowned;
    struct { word serial, parent; } lineage[LINEAGE_COUNT]; /* of nested tasks: whom their memory passes to */
} alloc;

/* 32 bytes: static TLS is scarce. */
static __thread struct {
    int32_t pending; /* small bytes not yet in the account */
    int32_t mid;     /* net bytes of middle-sized blocks: far below zero, they come from other threads */
    uint64_t handle; /* of the innermost task that this thread runs, or 0 */
    uint64_t base;   /* of the task that it was started in, or adopted by */
    uint32_t pending_count;
    uint16_t busy;    /* inside a wrapper: a signal handler, or malloc calling itself */
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

static word zero_of(uint64_t serial) { return (serial & 0xffff) << SUM_BITS | SUM_ZERO; }

static uint64_t live_bytes(const struct account *a)
{
    int64_t live = (int64_t)((load_relaxed(&a->own) & SUM_MASK) + (load_relaxed(&a->others) & SUM_MASK) - 2 * SUM_ZERO);
    return live < 0 ? 0 : (uint64_t)live;
}

/* Adds to one account if it is still that generation's. */
static int add_live(struct account *a, uint64_t serial, int64_t bytes)
{
    if (a->home == &local) {
        store_relaxed(&a->own, load_relaxed(&a->own) + (word)bytes);
    } else {
        word old = load_relaxed(&a->others);
        do if ((old ^ zero_of(serial)) >> SUM_BITS) return 0;
        while (!__atomic_compare_exchange_n(&a->others, &old, old + (word)bytes, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
    if (bytes > 0 && load_relaxed(&a->serial) == serial) max_relaxed(&a->peak, live_bytes(a));
    return 1;
}

static struct account *account_of(uint64_t handle)
{
    struct account *a = &alloc.accounts[handle % SLOT_COUNT];
    return handle && load_acquire(&a->serial) == handle / SLOT_COUNT ? a : NULL;
}

/* The task itself, or the nearest one around it that still runs: an ended task's memory belongs to that. */
static struct account *heir_of(uint64_t handle)
{
    struct account *a;
    for (int depth = 0; handle && !(a = account_of(handle)); depth++) {
        uint64_t serial = handle / SLOT_COUNT;
        if (depth > SLOT_COUNT || load_acquire(&alloc.lineage[serial % LINEAGE_COUNT].serial) != serial) return NULL;
        handle = load_relaxed(&alloc.lineage[serial % LINEAGE_COUNT].parent);
    }
    return handle ? a : NULL;
}

/* A task and all around it. */
static void charge(struct account *a, int64_t bytes)
{
    while (a) {
        uint64_t serial = load_relaxed(&a->serial);
        uint32_t parent = a->parent_slot;
        if (!add_live(a, serial, bytes)) return;
        a = parent == ALLOC_NO_SLOT ? NULL : &alloc.accounts[parent];
    }
}

/* Small bytes of one account: frees of older memory cannot hide what is its own. */
static void charge_small(struct account *a, int64_t bytes)
{
    for (; a; a = a->parent_slot == ALLOC_NO_SLOT ? NULL : &alloc.accounts[a->parent_slot]) {
        word old = load_relaxed(&a->small), new_small;
        do new_small = (int64_t)old + bytes < 0 ? 0 : old + (word)bytes;
        while (!__atomic_compare_exchange_n(&a->small, &old, new_small, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        if (new_small != old) add_live(a, load_relaxed(&a->serial), (int64_t)(new_small - old));
    }
}

static uint64_t running_handle(uint64_t handle)
{
    if (!handle || account_of(handle)) return handle;
    struct account *heir = heir_of(handle);
    return heir ? handle_of((uint32_t)(heir - alloc.accounts), load_relaxed(&heir->serial)) : 0;
}

static int in_python_thread(void) { return !alloc.is_python || alloc.is_python(); }

/* Whom this thread allocates for: its own task, the one it works for, or, of native threads, the only one that runs. */
static uint64_t current_handle(void)
{
    uint64_t handle = running_handle(local.handle);
    if (handle) return handle;
    if (local.base && (handle = running_handle(local.base)) && (local.adopted || in_python_thread())) return handle;
    word sole = load_relaxed(&alloc.sole);
    if (sole == 0 || in_python_thread()) return 0;
    if (sole != ABSENT) return sole;
    store_relaxed(&alloc.ambiguous, 1);
    return 0;
}

static void flush(void)
{
    uint64_t handle = current_handle();
    struct account *a = handle ? account_of(handle) : &alloc.unowned;
    if (!a) a = &alloc.unowned;
    charge_small(a, local.pending);
    add_relaxed(&a->count, local.pending_count);
    local.pending = 0;
    local.pending_count = 0;
}

/* -- blocks ------------------------------------------------------------------------------------------------------------------------------ */

static void release(uint64_t owner, int64_t bytes)
{
    if (!owner) add_live(&alloc.unowned, 0, -bytes);
    else charge(heir_of(owner), -bytes);
}

static void own(uint64_t handle, uint64_t bytes)
{
    struct account *a = handle ? account_of(handle) : &alloc.unowned;
    charge(a ? a : &alloc.unowned, (int64_t)bytes);
}

static void large_added(void *block, uint64_t bytes)
{
    uint64_t handle = current_handle();
    struct owned stale = { 0, 0, 0 };
    enum owners_result result = owners_insert((uintptr_t)block, bytes, handle, &stale);
    if (result == OWNERS_FULL) {
        add_relaxed(&alloc.untracked_bytes, bytes);
        return;
    }
    if (result == OWNERS_REPLACED) release(stale.owner, (int64_t)stale.bytes); /* its free was not seen */
    own(handle, bytes);
    local.pending_count++;
}

/* Middle-sized blocks are netted like small ones until a thread frees many that it did not allocate; from then on they are tracked. */
static void count_middle(int32_t bytes)
{
    local.mid += bytes;
    if (local.mid > MID_KEPT) local.mid = MID_KEPT;
    if (local.mid >= MID_CROSSED) return;
    local.mid = 0;
    if (load_relaxed(&alloc.tracked_from) > MID_FROM) store_relaxed(&alloc.tracked_from, MID_FROM);
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
static inline uint64_t size_in_header(const void *block)
{
    uint64_t header = ((const uint64_t *)block)[-1];
    return (header & ~UINT64_C(7)) - (header & 2 ? 16 : 8); /* 2: a mapping of its own */
}

static inline uint64_t size_of(void *block) { return alloc.glibc_headers ? size_in_header(block) : alloc.real.malloc_usable_size(block); }

static int headers_are_glibcs(void)
{
    const size_t sizes[] = { 1, 24, 25, 100, 1000, 5000, 70000, 300000, 1 << 20, 40 << 20 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *block = alloc.real.malloc(sizes[i]);
        if (!block) return 0;
        int same = size_in_header(block) == alloc.real.malloc_usable_size(block);
        alloc.real.free(block);
        if (!same) return 0;
    }
    return strstr(patch_provider(), "libc.so") != NULL;
}

static inline int watching(const void *block) { return block && !local.busy && load_relaxed(&alloc.active); }

static __attribute__((noinline)) void added_beyond_small(void *block, uint64_t bytes)
{
    if (!watching(block)) return;
    if (bytes >= load_relaxed(&alloc.tracked_from)) {
        enter();
        large_added(block, bytes);
        leave();
    } else {
        count_middle((int32_t)bytes);
        local.pending_count++;
        small_changed((int32_t)bytes);
    }
}

static inline void added(void *block)
{
    if (__builtin_expect(!block, 0)) return;
    uint64_t bytes = size_of(block);
    if (__builtin_expect(bytes >= MID_FROM, 0)) {
        added_beyond_small(block, bytes);
    } else {
        local.pending_count++;
        small_changed((int32_t)bytes);
    }
}

static __attribute__((noinline)) struct owned removed_beyond_small(void *block, uint64_t bytes)
{
    struct owned o = { 0, 0, 0 };
    if (!watching(block)) return o;
    if (bytes >= load_relaxed(&alloc.tracked_from)) {
        enter();
        o = owners_remove((uintptr_t)block);
        if (o.found) release(o.owner, (int64_t)o.bytes);
        leave();
        if (o.found || bytes >= alloc.large_from) return o; /* a large one not found is older than the probe: nobody's */
    }
    o.bytes = bytes;
    count_middle(-(int32_t)bytes);
    small_changed(-(int32_t)bytes);
    return o;
}

/* Before the real free: afterwards the address may be another thread's. */
static inline struct owned removed(void *block)
{
    struct owned o = { 0, 0, 0 };
    if (__builtin_expect(!block, 0)) return o;
    o.bytes = size_of(block);
    if (__builtin_expect(o.bytes >= MID_FROM, 0)) return removed_beyond_small(block, o.bytes);
    small_changed(-(int32_t)o.bytes);
    return o;
}

/* A realloc that failed: the block is still there and whose it was. */
static void put_back(void *block, struct owned o)
{
    struct owned stale;
    if (o.found && owners_insert((uintptr_t)block, o.bytes, o.owner, &stale) == OWNERS_ADDED) {
        if (o.owner) charge(heir_of(o.owner), (int64_t)o.bytes);
        else add_live(&alloc.unowned, 0, (int64_t)o.bytes);
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
    struct owned o = removed(old);
    void *p = alloc.real.reallocarray(old, n, each);
    if (p) added(p);
    else if (old && n && each) put_back(old, o);
    return p;
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

/* Anonymous and accessible: memory. Files, reservations and guard pages are not. */
static void map_added(void *p, size_t n, int protection, int flags)
{
    if (p == MAP_FAILED || !watching(p) || !(flags & MAP_ANONYMOUS) || protection == PROT_NONE || (flags & MAP_NORESERVE)) return;
    int saved = errno;
    enter();
    uint64_t handle = current_handle();
    n = (n + 4095) & ~(size_t)4095;
    if (owners_map((uintptr_t)p, n, handle, release) == OWNERS_FULL) add_relaxed(&alloc.untracked_bytes, n);
    else own(handle, n);
    local.pending_count++;
    leave();
    errno = saved;
}

static void map_removed(void *p, size_t n)
{
    if (!watching(p)) return;
    enter();
    owners_unmap((uintptr_t)p, (n + 4095) & ~(size_t)4095, release);
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

static void *alloc_mremap(void *old, size_t old_n, size_t n, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    int known = watching(old) && owners_covers((uintptr_t)old);
    if (known) map_removed(old, old_n);
    void *p = flags & MREMAP_FIXED ? alloc.real.mremap(old, old_n, n, flags, to) : alloc.real.mremap(old, old_n, n, flags);
    if (known) map_added(p == MAP_FAILED ? old : p, p == MAP_FAILED ? old_n : n, PROT_READ, MAP_ANONYMOUS);
    return p;
}

struct beginning { void *(*function)(void *); void *argument; uint64_t handle; };

static void *begin_thread(void *p)
{
    struct beginning b = *(struct beginning *)p;
    alloc.real.free(p);
    local.base = b.handle;
    return b.function(b.argument);
}

static int alloc_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument)
{
    uint64_t handle = watching(thread) ? running_handle(local.handle ? local.handle : local.base) : 0;
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
    enter();
    flush();
    serial = unique(serial), parent_serial = unique(parent_serial);
    if (parent_serial) {
        store_relaxed(&alloc.lineage[serial % LINEAGE_COUNT].parent, handle_of(parent_slot, parent_serial));
        store_release(&alloc.lineage[serial % LINEAGE_COUNT].serial, serial);
    }
    a->parent_slot = parent_serial ? parent_slot : ALLOC_NO_SLOT;
    store_relaxed(&a->peak, 0);
    store_relaxed(&a->small, 0);
    store_relaxed(&a->count, 0);
    store_relaxed(&a->own, zero_of(serial));
    store_relaxed(&a->others, zero_of(serial));
    a->home = &local;
    store_release(&a->serial, serial);
    max_relaxed(&alloc.slots_used, slot + 1);
    local.handle = handle_of(slot, serial);
    leave();
}

uint32_t alloc_slots_used(void) { return (uint32_t)load_relaxed(&alloc.slots_used); }
uint64_t alloc_serial_in(uint32_t slot) { return load_acquire(&alloc.accounts[slot].serial) & SERIAL_MASK; }

static void read_figures(const struct account *a, uint64_t serial, struct alloc_figures *f)
{
    f->live_bytes = live_bytes(a);
    f->peak_bytes = load_relaxed(&a->peak);
    f->count = load_relaxed(&a->count);
    if (f->peak_bytes < f->live_bytes) f->peak_bytes = f->live_bytes;
    /* Written over by the thread of the slot's last task, which another thread had ended under it: unknown, not wrong. */
    if ((load_relaxed(&a->own) ^ zero_of(serial)) >> SUM_BITS) *f = (struct alloc_figures){ ABSENT, ABSENT, ABSENT };
}

void alloc_task_end(uint32_t slot, uint64_t serial, struct alloc_figures *figures)
{
    struct account *a = &alloc.accounts[slot];
    enter();
    serial = unique(serial);
    if (local.handle == handle_of(slot, serial)) {
        flush();
        local.handle = a->parent_slot == ALLOC_NO_SLOT ? 0 : handle_of(a->parent_slot, load_relaxed(&alloc.accounts[a->parent_slot].serial));
    }
    read_figures(a, serial, figures);
    store_release(&a->serial, 0);
    store_relaxed(&a->others, ~zero_of(serial)); /* nobody's generation */
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
    uint64_t handle = running_handle(local.handle);
    if (!handle) handle = running_handle(local.base);
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

int alloc_start(uint64_t large_from, int (*is_python)(void))
{
    int e = patch_find(&alloc.real);
    if (e == 0) e = owners_open();
    if (e < 0) return e;
    alloc.is_python = is_python;
    alloc.starts++;
    alloc.glibc_headers = headers_are_glibcs();
    alloc.unowned = (struct account){ .parent_slot = ALLOC_NO_SLOT, .own = zero_of(0), .others = zero_of(0) };
    alloc.large_from = large_from < ALLOC_LARGE_LEAST ? ALLOC_LARGE_LEAST : large_from > ALLOC_LARGE_MOST ? ALLOC_LARGE_MOST : large_from;
    store_relaxed(&alloc.tracked_from, alloc.large_from);
    store_relaxed(&alloc.untracked_bytes, 0);
    store_relaxed(&alloc.ambiguous, 0);
    for (uint32_t i = 0; i < SLOT_COUNT; i++) store_relaxed(&alloc.accounts[i].serial, 0);
    store_relaxed(&alloc.slots_used, 0);
    store_relaxed(&alloc.sole, 0);
    local.pending = local.mid = 0;
    local.handle = local.base = 0;
    store_release(&alloc.active, 1);
    patch_install(&wrappers);
    if (patch_holds()) return 0;
    alloc_stop(); /* nothing to rewrite: another tool holds the slots */
    return -EBUSY;
}

void alloc_stop(void)
{
    if (!load_relaxed(&alloc.active)) return;
    patch_remove();
    store_release(&alloc.active, 0);
}

int alloc_active(void) { return load_relaxed(&alloc.active) != 0; }

void alloc_fork_lock(void) { patch_lock(), owners_lock(); }
void alloc_fork_unlock(void) { owners_unlock(), patch_unlock(); }

void alloc_forked(void)
{
    owners_forked();
    patch_forked();
    store_relaxed(&alloc.active, 0); /* until the child starts a probe of its own, the wrappers only pass on */
    for (uint32_t i = 0; i < SLOT_COUNT; i++) alloc.accounts[i].serial = 0;
    alloc.sole = 0;
    local.handle = local.base = 0;
}

uint64_t alloc_unowned_bytes(void) { return live_bytes(&alloc.unowned); }
uint64_t alloc_untracked_bytes(void) { return load_relaxed(&alloc.untracked_bytes); }
int alloc_holds(void) { return alloc_active() && patch_holds(); }
