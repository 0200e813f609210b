#define _GNU_SOURCE
#include "patch.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "atomics.h"
#include "elf_object.h"
#include "foreign.h"

#if defined(__x86_64__)
#define IS_CALL_SLOT(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#define IS_POINTER(type)   ((type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_CALL_SLOT(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#define IS_POINTER(type)   ((type) == R_AARCH64_ABS64)
#else
#error "dwsr-probe knows x86_64 and aarch64"
#endif

#define OBJECTS_MOST  4096
#define INSTALL_TRIES 1000

#define ASKING_SECONDS     1
#define ASKING_STACK_BYTES (256 << 10)

enum hook {
#define NAME(name) HOOK_##name,
    HOOKS(NAME)
#undef NAME
        HOOK_dlsym,
    HOOK_COUNT
};

static const char *const hook_names[HOOK_COUNT] = {
#define NAME(name) #name,
    HOOKS(NAME)
#undef NAME
        "dlsym",
};

#define FIRST_CPP     HOOK__Znwm
#define FIRST_MAPPING HOOK_mmap /* those of malloc's family stand before it */
#define NAME_BUCKETS  64

struct address_range {
    uintptr_t first, last;
};

/* How many objects the loader has added and removed since the process began. */
struct loader_counters {
    word adds, subs;
};

static struct {
    pthread_mutex_t mutex;
    word installed;
    /* Threads inside dl_iterate_phdr for the loader's counters, and a fork that waits for them. */
    word counter_readers, forking;
    /* In a forked child: the slots are as the parent left them. The loader's locks may stay locked
     * for ever, so the list of objects is not walked before patch_ask_loader. */
    word inherited;
    int asked; /* once in a process */
    uintptr_t real[HOOK_COUNT], wrapper[HOOK_COUNT];
    /* The executable's canonical PLT entry. Pointers of other objects may hold its address. */
    uintptr_t plt[HOOK_COUNT];
    struct address_range reals, wrappers;
    /* The hooks to compare a name with: chains by the name's first letters, of index + 1. */
    uint8_t first_named[NAME_BUCKETS], next_named[HOOK_COUNT];
    uintptr_t provider, self;      /* bases of the object that provides malloc, and of this one */
    uintptr_t left;                /* base of the object whose mappings are not counted, or 0 */
    word left_text, left_text_end; /* its code */
    char provider_path[256];
    uintptr_t usable_size, mallinfo2;
    struct loader_counters walked;   /* at the last walk over all objects */
    word relocated_adds;             /* objects up to this count of adds are relocated */
    uintptr_t patched[OBJECTS_MOST]; /* bases of objects that are patched, a hash set */
    int maps_memory;                 /* the object that was patched last calls mmap */
    int any_unloaded;                /* since the last walk: this one reads all objects */
    uint64_t read;                   /* the objects of foreign.h that this walk has read */
    /* The first slot for malloc that was found. Another tool that replaces slots replaces it. */
    uintptr_t *sentinel;
    word lost; /* the sentinel has held another function since the install */
} patch = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* -- finding the real functions: the first object that defines a function provides it, as in the
 * loader's own search -- */

static int find_in_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct elf_object o;
    (void)size, (void)unused;
    if (elf_object_is_loader(info) || !elf_object_read(info, &o)) return 0;
    for (int i = 0; i < HOOK_COUNT; i++) {
        /* the object that defines malloc, the first hook, provides its whole family */
        if (patch.real[i] || (i != HOOK_malloc && i < FIRST_MAPPING && o.base != patch.provider))
            continue;
        patch.real[i] = elf_object_function(&o, hook_names[i]);
        if (patch.real[i] && i == HOOK_malloc) {
            patch.provider = o.base;
            strncpy(patch.provider_path, info->dlpi_name, sizeof patch.provider_path - 1);
        }
    }
    if (patch.real[HOOK_malloc] && o.base == patch.provider)
        patch.usable_size = elf_object_function(&o, "malloc_usable_size"),
        patch.mallinfo2 = elf_object_function(&o, "mallinfo2");
    if (elf_object_contains(info, (uintptr_t)&patch)) patch.self = o.base;
    return 0;
}

/* Names of at least three letters; others share a bucket with some hook, or with none. */
static unsigned bucket_of(const char *name)
{
    const unsigned char *n = (const unsigned char *)name;
    if (!n[0] || !n[1]) return 0;
    return (n[0] + n[1] * 3u + n[2] * 7u) % NAME_BUCKETS;
}

/* Only functions that were found: with glibc's malloc no name of C++ is ever compared. */
static void index_names(void)
{
    for (int i = 0; i < HOOK_COUNT; i++) {
        uint8_t *first = &patch.first_named[bucket_of(hook_names[i])];
        if (!patch.real[i]) continue;
        patch.next_named[i] = *first;
        *first = (uint8_t)(i + 1);
    }
}

static int hook_of(const char *name)
{
    for (unsigned n = patch.first_named[bucket_of(name)]; n; n = patch.next_named[n - 1])
        if (!strcmp(name, hook_names[n - 1])) return (int)n - 1;
    return -1;
}

/* A non-PIE executable that takes a function's address gives it a canonical PLT entry: an undefined
 * symbol with a value. */
static int find_canonical_plt(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct elf_object o;
    (void)size, (void)unused;
    if (elf_object_read(info, &o))
        for (int table = 0; table < 2; table++)
            for (size_t n = 0; n < o.relocation_counts[table]; n++) {
                const ElfW(Sym) *s = &o.symbols[ELF64_R_SYM(o.relocations[table][n].r_info)];
                if (s->st_shndx != SHN_UNDEF || s->st_value == 0) continue;
                const int i = hook_of(o.strings + s->st_name);
                if (i >= 0) patch.plt[i] = o.base + s->st_value;
            }
    return 1; /* the executable comes first: stop after it */
}

int patch_find(struct real_functions *real)
{
    pthread_mutex_lock(&patch.mutex);
    if (!patch.real[HOOK_malloc]) {
        dl_iterate_phdr(find_in_object, NULL);
        index_names();
        dl_iterate_phdr(find_canonical_plt, NULL);
    }
#define COPY(name) real->name = (name##_function)patch.real[HOOK_##name];
    HOOKS(COPY)
#undef COPY
    real->malloc_usable_size = (size_t (*)(void *))patch.usable_size;
    int ok = real->malloc && real->free && real->malloc_usable_size;
    pthread_mutex_unlock(&patch.mutex);
    return ok ? 0 : -ENOENT;
}

/* -- rewriting -- */

/* A slot of an object: an entry of its GOT, or a pointer variable, whose relocation names a hooked
 * function. Not a slot of the board. */
struct got_slot {
    int hook, is_call, is_undefined;
    uintptr_t *address, value;
};

__attribute__((no_sanitize_address)) static void write_got_slot(struct elf_object *o,
                                                                uintptr_t *slot, uintptr_t value)
{
    if ((uintptr_t)slot >= o->relro && (uintptr_t)slot < o->relro_end && elf_object_unseal(o) < 0)
        return;
    pointer_store_release(slot, value);
}

/* Slots with other values are variables that the program has changed: not to be patched. */
static int holds_real(const struct elf_object *o, const struct got_slot *slot)
{
    if (slot->value == patch.real[slot->hook]
        || (patch.plt[slot->hook] && slot->value == patch.plt[slot->hook]))
        return 1;
    /* Lazy binding: the slot leads back into the object's own PLT. */
    if (!slot->is_call || slot->value < o->text || slot->value >= o->text_end) return 0;
    /* A defined symbol may be the object's own malloc. The operators of libstdc++ are defined, and
     * the provider's stand before them in the loader's search. */
    return slot->is_undefined
           || (slot->hook >= FIRST_CPP && slot->hook < FIRST_MAPPING
               && !strncmp(o->soname, "libstdc++.so", 12));
}

typedef void got_slot_action(struct elf_object *o, const struct got_slot *slot);

/* Slots belong to the loader, and some lie where AddressSanitizer expects red zones: so no checks
 * here. Not inlined, which keeps the loop of the caller short. */
__attribute__((no_sanitize_address, noinline)) static void
act_if_hooked(struct elf_object *o, const ElfW(Rela) * r, uintptr_t value, got_slot_action *act)
{
    const ElfW(Sym) *symbol = &o->symbols[ELF64_R_SYM(r->r_info)];
    const int hook = hook_of(o->strings + symbol->st_name);
    if (hook < 0 || !patch.wrapper[hook] || !patch.real[hook]) return;
    const struct got_slot slot = {
        .hook = hook,
        .is_call = IS_CALL_SLOT(ELF64_R_TYPE(r->r_info)),
        .is_undefined = symbol->st_shndx == SHN_UNDEF,
        .address = (uintptr_t *)(o->base + r->r_offset),
        .value = value,
    };
    act(o, &slot);
}

/* Calls `act` for each slot of a hooked function. `is_candidate` checks the slot's value before its
 * name is compared: the value is at hand, the name is a cache miss or two away. */
__attribute__((no_sanitize_address)) static void
for_each_got_slot(struct elf_object *o, int (*is_candidate)(const struct elf_object *, uintptr_t),
                  got_slot_action *act)
{
    for (int table = 0; table < 2; table++) {
        const ElfW(Rela) *r = o->relocations[table], *end = r + o->relocation_counts[table];
        for (; r < end; r++) {
            const uint32_t type = ELF64_R_TYPE(r->r_info);
            if ((!IS_CALL_SLOT(type) && !IS_POINTER(type)) || !ELF64_R_SYM(r->r_info)) continue;
            const uintptr_t value = pointer_load_acquire((uintptr_t *)(o->base + r->r_offset));
            if (is_candidate(o, value)) act_if_hooked(o, r, value, act);
        }
    }
    elf_object_seal(o);
}

static int is_within(struct address_range range, uintptr_t value)
{
    return value >= range.first && value <= range.last;
}

static int may_be_real(const struct elf_object *o, uintptr_t value)
{
    return is_within(patch.reals, value) || (value >= o->text && value < o->text_end);
}

/* Calls inside the provider. glibc's own calls of malloc are the program's. A provider of C++'s
 * operators calls one of its functions through another: that would be counted twice. */
static int is_internal(const struct elf_object *o, const struct got_slot *slot)
{
    return o->base == patch.provider && (slot->hook >= FIRST_MAPPING || patch.real[FIRST_CPP]);
}

static void patch_got_slot(struct elf_object *o, const struct got_slot *slot)
{
    if (is_internal(o, slot) || !holds_real(o, slot)) return;
    write_got_slot(o, slot->address, patch.wrapper[slot->hook]);
    patch.maps_memory |= slot->hook == HOOK_mmap || slot->hook == HOOK_mmap64;
}

static int may_be_anything(const struct elf_object *o, uintptr_t value)
{
    return (void)o, (void)value, 1;
}

static void note_sentinel(struct elf_object *o, const struct got_slot *slot)
{
    (void)o;
    if (slot->hook == HOOK_malloc && slot->is_call && !patch.sentinel)
        pointer_store_release(&patch.sentinel, slot->address);
}

static void patch_object(struct elf_object *o)
{
    if (!patch.sentinel && o->base != patch.provider)
        for_each_got_slot(o, may_be_anything, note_sentinel);
    patch.maps_memory = 0;
    for_each_got_slot(o, may_be_real, patch_got_slot);
}

static int may_be_wrapper(const struct elf_object *o, uintptr_t value)
{
    return (void)o, is_within(patch.wrappers, value);
}

static void restore_got_slot(struct elf_object *o, const struct got_slot *slot)
{
    if (slot->value == patch.wrapper[slot->hook])
        write_got_slot(o, slot->address, patch.real[slot->hook]);
}

/* Leads calls of an object with an allocator of its own through the wrappers of foreign.h, if they
 * lead to the functions behind these wrappers. restore: back to the functions themselves. */
__attribute__((no_sanitize_address)) static void lead_calls(struct elf_object *o, int restore)
{
    for (int table = 0; table < 2; table++) {
        const ElfW(Rela) *r = o->relocations[table], *end = r + o->relocation_counts[table];
        for (; r < end; r++) {
            if (!IS_CALL_SLOT(ELF64_R_TYPE(r->r_info))) continue;
            uintptr_t *slot = (uintptr_t *)(o->base + r->r_offset);
            const uintptr_t value = pointer_load_acquire(slot);
            const ElfW(Sym) *symbol = &o->symbols[ELF64_R_SYM(r->r_info)];
            uintptr_t to = restore ? foreign_real_of(value) : foreign_wrapper_of(value);
            /* lazy binding, as in holds_real */
            if (!restore && value >= o->text && value < o->text_end
                && symbol->st_shndx == SHN_UNDEF)
                to = foreign_wrapper_of_name(o->strings + symbol->st_name);
            if (to) write_got_slot(o, slot, to);
        }
    }
    elf_object_seal(o);
}

/* -- walking over the loaded objects -- */

static struct address_range extend_range(struct address_range range, const uintptr_t *values)
{
    for (int i = 0; i < HOOK_COUNT; i++) {
        if (values[i] && values[i] < range.first) range.first = values[i];
        if (values[i] > range.last) range.last = values[i];
    }
    return range;
}

/* Adds an object to the set. 1 if it is new, or if the set is full: patching an object twice does
 * no harm. */
static int add_to_patched(uintptr_t base)
{
    for (size_t i = (base >> 12) * UINT64_C(0x9e3779b97f4a7c15) >> 52, tries = 0; tries < 64;
         tries++, i = (i + 1) % OBJECTS_MOST) {
        if (patch.patched[i] == base + 1) return 0;
        if (patch.patched[i] == 0) return patch.patched[i] = base + 1, 1;
    }
    return 1;
}

static int patch_if_new(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct elf_object o;
    (void)size, (void)unused;
    /* Objects added since relocated_adds was read may not be relocated yet. All objects of one walk
     * have the same counter, so the walk ends at its first object. */
    if (info->dlpi_adds != patch.relocated_adds) return 1;
    /* after an unload, a base may belong to another object */
    if (info->dlpi_subs != load_relaxed(&patch.walked.subs)) {
        memset(patch.patched, 0, sizeof patch.patched);
        patch.any_unloaded = 1;
    }
    store_relaxed(&patch.walked.adds, info->dlpi_adds);
    store_relaxed(&patch.walked.subs, info->dlpi_subs);
    if (elf_object_is_loader(info) || info->dlpi_addr == patch.self
        || !add_to_patched(info->dlpi_addr))
        return 0;
    if (!elf_object_read(info, &o)) return 0;
    patch_object(&o);
    if (patch.maps_memory && info->dlpi_addr != patch.provider)
        foreign_add_object(o.text, o.text_end, info->dlpi_name, !load_relaxed(&patch.installed));
    patch.read |= foreign_mask_of(o.text, info->dlpi_name);
    return 0;
}

/* 0 if an object was added since relocated_adds was read. */
static int patch_new_objects(void)
{
    patch.any_unloaded = 0;
    patch.read = 0;
    if (dl_iterate_phdr(patch_if_new, NULL)) return 0;
    if (patch.any_unloaded) foreign_keep_objects(patch.read);
    return 1;
}

static int restore_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct elf_object o;
    (void)size, (void)unused;
    if (!elf_object_is_loader(info) && info->dlpi_addr != patch.self && elf_object_read(info, &o))
        for_each_got_slot(&o, may_be_wrapper, restore_got_slot);
    return 0;
}

/* restore: NULL, or not */
static int lead_calls_if_watched(struct dl_phdr_info *info, size_t size, void *restore)
{
    struct elf_object o;
    (void)size;
    if (!restore && info->dlpi_adds != patch.relocated_adds) {
        foreign_set_due(); /* as in patch_if_new: the next refresh tries again */
        return 1;
    }
    if (elf_object_read(info, &o) && foreign_is_watched(o.text, info->dlpi_name))
        lead_calls(&o, restore != NULL);
    return 0;
}

static int note_code_of_left(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct elf_object o;
    (void)size, (void)unused;
    if (info->dlpi_addr != patch.left) return 0;
    if (elf_object_read(info, &o)) {
        store_relaxed(&patch.left_text, o.text);
        store_release(&patch.left_text_end, o.text_end);
    }
    return 1;
}

int patch_leaves_mapping(const void *caller)
{
    return (uintptr_t)caller < load_acquire(&patch.left_text_end)
           && (uintptr_t)caller >= load_relaxed(&patch.left_text);
}

static int copy_counters(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    *(struct loader_counters *)out = (struct loader_counters){ info->dlpi_adds, info->dlpi_subs };
    return 1;
}

/* 0 while a fork is under way: the lock that dl_iterate_phdr takes would stay locked in the child
 * for ever. */
static int read_loader_counters(struct loader_counters *now)
{
    add_seq_cst(&patch.counter_readers, 1);
    const int may = !load_seq_cst(&patch.forking);
    if (may) dl_iterate_phdr(copy_counters, now);
    add_seq_cst(&patch.counter_readers, (word)-1);
    return may;
}

/* An object stands on the loader's list before it is relocated. A slot written at that time would
 * be overwritten, or its page sealed before the loader has finished. dlopen holds a lock to its
 * end, and dladdr waits for that lock: objects that were on the list before are complete
 * afterwards. Called with no lock of ours held. */
static void wait_for_loader(void)
{
    Dl_info unused;
    dladdr((const void *)&patch, &unused);
}

static void *take_loaders_locks(void *unused)
{
    struct loader_counters now;
    dl_iterate_phdr(copy_counters, &now);
    wait_for_loader();
    store_relaxed(&patch.inherited, 0);
    return unused;
}

/* 1 if the loader's locks are free. In a forked child another thread takes them, because nobody can
 * tell how long it waits. Called with the mutex held: no fork meanwhile. */
static int ask_loader(void)
{
    pthread_attr_t small;
    pthread_t thread;
    sigset_t all, old;
    if (!load_relaxed(&patch.inherited) || patch.asked) return !load_relaxed(&patch.inherited);
    patch.asked = 1;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, ASKING_STACK_BYTES);
    sigfillset(&all); /* the job's signals belong to the job's threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int e = pthread_create(&thread, &small, take_loaders_locks, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&small);
    if (e == 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += ASKING_SECONDS;
        if (pthread_timedjoin_np(thread, NULL, &until)) pthread_detach(thread);
    }
    return !load_relaxed(&patch.inherited);
}

void patch_ask_loader(void)
{
    if (!load_relaxed(&patch.inherited)) return;
    pthread_mutex_lock(&patch.mutex);
    ask_loader();
    pthread_mutex_unlock(&patch.mutex);
}

/* -- dlsym: called first for a library that was just opened, so new objects are found here -- */

__attribute__((used, visibility("hidden"))) void patch_before_dlsym(void) { patch_refresh(); }

__attribute__((used, visibility("hidden"))) uintptr_t patch_real_dlsym;

/* A jump, not a call: dlsym finds the calling object by its return address. */
void patch_dlsym(void);
#if defined(__x86_64__)
__asm__(".text\n.local patch_dlsym\n.type patch_dlsym,@function\npatch_dlsym:\n"
        "  endbr64\n  push %rdi\n  push %rsi\n  sub $8,%rsp\n  call patch_before_dlsym\n  add "
        "$8,%rsp\n  pop %rsi\n  pop %rdi\n"
        "  mov patch_real_dlsym(%rip),%rax\n  jmp *%rax\n.size patch_dlsym,.-patch_dlsym\n");
#else
__asm__(".text\n.local patch_dlsym\n.type patch_dlsym,%function\npatch_dlsym:\n"
        "  hint #34\n  stp x29,x30,[sp,#-32]!\n  mov x29,sp\n  stp x0,x1,[sp,#16]\n  bl "
        "patch_before_dlsym\n  ldp x0,x1,[sp,#16]\n  ldp x29,x30,[sp],#32\n"
        "  adrp x16,patch_real_dlsym\n  ldr x16,[x16,#:lo12:patch_real_dlsym]\n  br x16\n.size "
        "patch_dlsym,.-patch_dlsym\n");
#endif

/* -- install, refresh, remove -- */

void patch_install(const struct patch_wrappers *wrappers)
{
    pthread_mutex_lock(&patch.mutex);
#define COPY(name) patch.wrapper[HOOK_##name] = (uintptr_t)wrappers->name;
    HOOKS(COPY)
#undef COPY
    patch.wrapper[HOOK_dlsym] = (uintptr_t)patch_dlsym;
    patch_real_dlsym = patch.real[HOOK_dlsym];
    const struct address_range none = { UINTPTR_MAX, 0 };
    patch.wrappers = extend_range(none, patch.wrapper);
    patch.reals = extend_range(extend_range(none, patch.real), patch.plt);
    store_relaxed(&patch.lost, 0);
    int done = load_relaxed(&patch.inherited) && (load_relaxed(&patch.installed) || !ask_loader());
    pthread_mutex_unlock(&patch.mutex);
    if (!done) foreign_find_functions();
    /* several tries if other threads load objects at the same time */
    for (int tries = 0; !done && tries < INSTALL_TRIES; tries++) {
        struct loader_counters now;
        if (!read_loader_counters(&now)) {
            sched_yield();
            continue;
        }
        wait_for_loader();
        pthread_mutex_lock(&patch.mutex);
        patch.relocated_adds = now.adds;
        memset(patch.patched, 0, sizeof patch.patched);
        done = patch_new_objects();
        if (done) store_release(&patch.installed, 1);
        pthread_mutex_unlock(&patch.mutex);
    }
}

uint64_t patch_loaded_objects(void) { return load_relaxed(&patch.walked.adds); }

int patch_has_loaded_since(uint64_t loaded)
{
    struct loader_counters now;
    return load_relaxed(&patch.inherited) || !read_loader_counters(&now) || now.adds != loaded;
}

/* 1 if objects were loaded or unloaded since the last walk, or one is newly watched. */
static int is_due(struct loader_counters *now)
{
    if (!load_acquire(&patch.installed) || load_relaxed(&patch.inherited)) return 0;
    return read_loader_counters(now)
           && (now->adds != load_relaxed(&patch.walked.adds)
               || now->subs != load_relaxed(&patch.walked.subs) || foreign_is_due());
}

int patch_is_due(void)
{
    struct loader_counters now;
    return is_due(&now);
}

void patch_refresh(void)
{
    struct loader_counters now;
    if (!is_due(&now)) return;
    int saved = errno;
    wait_for_loader();
    /* No waiting: the holder of the mutex does the same work, and may itself wait for a lock of the
     * loader that this thread holds. */
    if (pthread_mutex_trylock(&patch.mutex)) {
        errno = saved;
        return;
    }
    patch.relocated_adds = now.adds;
    if (load_relaxed(&patch.installed)) {
        /* Before slots that another tool has given back are patched again: calls that were made
         * meanwhile were not seen. */
        patch_check_intact();
        patch_new_objects(); /* if not, the next refresh tries again */
        if (foreign_is_due()) {
            foreign_clear_due(); /* first: what becomes due meanwhile is for the next time */
            dl_iterate_phdr(lead_calls_if_watched, NULL);
        }
    }
    pthread_mutex_unlock(&patch.mutex);
    errno = saved;
}

int patch_replace_word(struct elf_object *o, uintptr_t *at, uintptr_t from, uintptr_t to)
{
    pthread_mutex_lock(&patch.mutex); /* a walk may make the same pages read-only again */
    const int expected = pointer_load_acquire(at) == from;
    if (expected) write_got_slot(o, at, to);
    elf_object_seal(o);
    const int e = !expected ? -EBUSY : pointer_load_acquire(at) == to ? 0 : -EACCES;
    pthread_mutex_unlock(&patch.mutex);
    return e;
}

int patch_leave_mappings(uintptr_t base)
{
    pthread_mutex_lock(&patch.mutex);
    const int known = patch.left == base, e = !known && (patch.left || !ask_loader()) ? -EBUSY : 0;
    if (e == 0 && !known) {
        patch.left = base;
        dl_iterate_phdr(note_code_of_left, NULL);
    }
    pthread_mutex_unlock(&patch.mutex);
    return e;
}

void patch_remove(void)
{
    pthread_mutex_lock(&patch.mutex);
    if (load_relaxed(&patch.installed) && !load_relaxed(&patch.inherited)) {
        store_release(&patch.installed, 0);
        dl_iterate_phdr(restore_object, NULL);
        dl_iterate_phdr(lead_calls_if_watched, &patch);
        foreign_set_due(); /* a next start leads them again */
        pointer_store_release(&patch.sentinel, NULL);
    }
    pthread_mutex_unlock(&patch.mutex);
}

int patch_check_intact(void)
{
    uintptr_t *sentinel = pointer_load_acquire(&patch.sentinel);
    if (!sentinel) return 0;
    if (pointer_load_acquire(sentinel) != patch.wrapper[HOOK_malloc]) store_relaxed(&patch.lost, 1);
    return !load_relaxed(&patch.lost);
}

const char *patch_provider(void) { return patch.provider_path; }
uintptr_t patch_mallinfo2(void) { return patch_provider_is_glibc() ? patch.mallinfo2 : 0; }
int patch_provider_is_glibc(void) { return strstr(patch.provider_path, "libc.so") != NULL; }

void patch_lock(void)
{
    pthread_mutex_lock(&patch.mutex);
    store_seq_cst(&patch.forking, 1);
    while (load_seq_cst(&patch.counter_readers)) sched_yield();
}

void patch_unlock(void)
{
    store_seq_cst(&patch.forking, 0);
    pthread_mutex_unlock(&patch.mutex);
}

void patch_reset_in_child(void)
{
    pthread_mutex_init(&patch.mutex, NULL);
    patch.counter_readers = patch.forking = 0;
    patch.inherited = 1;
    patch.asked = 0;
}
