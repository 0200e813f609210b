#define _GNU_SOURCE
#include "patch.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "atomics.h"

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

#define FIRST_MAPPING HOOK_mmap /* the malloc hooks stand before it */

static struct {
    pthread_mutex_t mutex;
    word installed;
    /* threads that ask for the loader's counters, and a fork that waits for them */
    word looking, forking;
    /* in a forked child: the slots are as the parent had them, the loader's lock may be held for
     * ever */
    word inherited;
    const struct link_map *last; /* object at the fork: one behind it was loaded since */
    uintptr_t real[HOOK_COUNT], wrapper[HOOK_COUNT];
    /* the executable's canonical PLT entry, where other objects' pointers may lead */
    uintptr_t plt[HOOK_COUNT];
    uintptr_t real_from, real_to, wrapper_from, wrapper_to;
    uintptr_t provider, self;
    char provider_path[256];
    word adds, subs;              /* of the loader, when all objects were last looked at */
    word settled;                 /* its adds, up to which all objects are relocated */
    uintptr_t seen[OBJECTS_MOST]; /* bases of objects done, a hash set */
    /* the first object's slot for malloc: whoever holds the hooks holds this one */
    uintptr_t *sentinel;
    word lost; /* it led elsewhere once */
} patch = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* -- one loaded object -- */

struct object {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * tables[2];
    size_t counts[2];
    const uint32_t *gnu_hash;
    const Elf32_Word *hash;
    uintptr_t relro, relro_end, text, text_end;
    int opened; /* its sealed pages are writable just now */
};

static int read_object(const struct dl_phdr_info *info, struct object *o)
{
    const ElfW(Dyn) *dynamic = NULL;
    memset(o, 0, sizeof *o);
    o->base = info->dlpi_addr;
    o->text = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t begin = o->base + p->p_vaddr;
        if (p->p_type == PT_DYNAMIC) dynamic = (const void *)begin;
        if (p->p_type == PT_GNU_RELRO) o->relro = begin, o->relro_end = begin + p->p_memsz;
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) {
            if (begin < o->text) o->text = begin;
            if (begin + p->p_memsz > o->text_end) o->text_end = begin + p->p_memsz;
        }
    }
    if (!dynamic) return 0;
    size_t plt_bytes = 0, rela_bytes = 0, relative = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        /* glibc relocates these in place, except in read-only sections */
        uintptr_t at = dynamic->d_un.d_ptr;
        if (at < o->base) at += o->base;
        switch (dynamic->d_tag) {
            case DT_SYMTAB:
                o->symbols = (const void *)at;
                break;
            case DT_STRTAB:
                o->strings = (const void *)at;
                break;
            case DT_JMPREL:
                o->tables[0] = (const void *)at;
                break;
            case DT_PLTRELSZ:
                plt_bytes = dynamic->d_un.d_val;
                break;
            case DT_RELA:
                o->tables[1] = (const void *)at;
                break;
            case DT_RELASZ:
                rela_bytes = dynamic->d_un.d_val;
                break;
            /* these come first and have no name */
            case DT_RELACOUNT:
                relative = dynamic->d_un.d_val;
                break;
            case DT_GNU_HASH:
                o->gnu_hash = (const void *)at;
                break;
            case DT_HASH:
                o->hash = (const void *)at;
                break;
            case DT_PLTREL:
                if (dynamic->d_un.d_val != DT_RELA) return 0;
                break;
        }
    }
    o->counts[0] = o->tables[0] ? plt_bytes / sizeof(ElfW(Rela)) : 0;
    o->counts[1] = o->tables[1] ? rela_bytes / sizeof(ElfW(Rela)) : 0;
    if (relative > o->counts[1]) relative = 0;
    if (relative) o->tables[1] += relative, o->counts[1] -= relative;
    return o->symbols && o->strings;
}

static uint32_t gnu_hash_of(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++) h = h * 33 + (unsigned char)*name;
    return h;
}

/* A function that this object defines, or 0. */
static uintptr_t defined(const struct object *o, const char *name)
{
    const ElfW(Sym) *found = NULL;
    if (o->gnu_hash) {
        const uint32_t buckets = o->gnu_hash[0], first = o->gnu_hash[1], bloom = o->gnu_hash[2];
        const uint32_t *bucket = o->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4),
                       *chain = bucket + buckets, h = gnu_hash_of(name);
        uint32_t i = buckets ? bucket[h % buckets] : 0;
        for (; i >= first && i; i++) {
            if ((chain[i - first] | 1) == (h | 1)
                && !strcmp(o->strings + o->symbols[i].st_name, name)) {
                found = &o->symbols[i];
                break;
            }
            if (chain[i - first] & 1) break;
        }
    } else if (o->hash) {
        for (Elf32_Word i = 1; i < o->hash[1] && !found; i++)
            if (!strcmp(o->strings + o->symbols[i].st_name, name)) found = &o->symbols[i];
    }
    if (!found || found->st_shndx == SHN_UNDEF || found->st_value == 0
        || ELF64_ST_TYPE(found->st_info) != STT_FUNC)
        return 0;
    return o->base + found->st_value;
}

static int is_loader(const struct dl_phdr_info *info)
{
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    return !strncmp(name, "ld-", 3) || !strncmp(name, "linux-vdso", 10);
}

/* -- finding the real functions: the first object that defines one answers for it, as the loader
 * would have it -- */

static uintptr_t usable_size;

static int find_in_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct object o;
    (void)size, (void)unused;
    if (is_loader(info) || !read_object(info, &o)) return 0;
    for (int i = 0; i < HOOK_COUNT; i++) {
        /* one malloc answers for all of its family */
        if (patch.real[i] || (i < FIRST_MAPPING && patch.provider && o.base != patch.provider))
            continue;
        patch.real[i] = defined(&o, hook_names[i]);
        if (patch.real[i] && i == HOOK_malloc) {
            patch.provider = o.base;
            strncpy(patch.provider_path, info->dlpi_name, sizeof patch.provider_path - 1);
        }
    }
    /* others read other headers */
    if (patch.real[HOOK_malloc] && o.base == patch.provider)
        usable_size = defined(&o, "malloc_usable_size");
    if ((uintptr_t)&patch >= o.base && patch.self < o.base) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) *p = &info->dlpi_phdr[i];
            uintptr_t begin = o.base + p->p_vaddr;
            if (p->p_type == PT_LOAD && (uintptr_t)&patch >= begin
                && (uintptr_t)&patch < begin + p->p_memsz)
                patch.self = o.base;
        }
    }
    return 0;
}

/* A non-PIE executable that takes a function's address gives it a canonical PLT entry: an undefined
 * symbol with a value. */
static int find_canonical(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct object o;
    (void)size, (void)unused;
    if (read_object(info, &o))
        for (int table = 0; table < 2; table++)
            for (size_t n = 0; n < o.counts[table]; n++) {
                const ElfW(Sym) *s = &o.symbols[ELF64_R_SYM(o.tables[table][n].r_info)];
                if (s->st_shndx != SHN_UNDEF || s->st_value == 0) continue;
                for (int i = 0; i < HOOK_COUNT; i++)
                    if (!strcmp(o.strings + s->st_name, hook_names[i]))
                        patch.plt[i] = o.base + s->st_value;
            }
    return 1; /* the executable only: it comes first */
}

int patch_find(struct real_functions *real)
{
    pthread_mutex_lock(&patch.mutex);
    if (!patch.real[HOOK_malloc]) {
        dl_iterate_phdr(find_in_object, NULL);
        dl_iterate_phdr(find_canonical, NULL);
    }
#define COPY(name) real->name = (name##_function)patch.real[HOOK_##name];
    HOOKS(COPY)
#undef COPY
    real->malloc_usable_size = (size_t (*)(void *))usable_size;
    int ok = real->malloc && real->free && real->malloc_usable_size;
    pthread_mutex_unlock(&patch.mutex);
    return ok ? 0 : -ENOENT;
}

/* -- rewriting -- */

/* One slot that is named for a hooked function. */
struct call {
    int hook, call_slot, undefined;
    uintptr_t *slot, held;
};

static int hook_of(const char *name)
{
    for (int i = 0; i < HOOK_COUNT; i++)
        if (name[0] == hook_names[i][0] && !strcmp(name, hook_names[i])) return i;
    return -1;
}

/* The loader seals whole pages only: the last, partial one stays writable. */
static int seal(const struct object *o, int protection)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = o->relro & ~(page - 1),
                    to = o->relro_end & ~(page - 1);
    return to > from ? mprotect((void *)from, to - from, protection) : 0;
}

__attribute__((no_sanitize_address)) static void write_slot(struct object *o, uintptr_t *slot,
                                                            uintptr_t value)
{
    if ((uintptr_t)slot >= o->relro && (uintptr_t)slot < o->relro_end && !o->opened) {
        if (seal(o, PROT_READ | PROT_WRITE) < 0) return;
        o->opened = 1;
    }
    pointer_store_release(slot, value);
}

/* Slots that hold something else than the function they are named for are somebody's variable: not
 * ours to change. */
static int is_ours_to_patch(const struct object *o, const struct call *c)
{
    if (c->held == patch.real[c->hook] || (patch.plt[c->hook] && c->held == patch.plt[c->hook]))
        return 1;
    /* Not bound yet; in an object with a malloc of its own it may as well be that one. */
    return c->call_slot && c->undefined && c->held >= o->text && c->held < o->text_end;
}

/* Calls `act` for each slot whose content may concern us: the value is there already, a name is a
 * cache miss or two away. AddressSanitizer stays out: slots are the loader's, and it takes some for
 * the space around variables. */
__attribute__((no_sanitize_address)) static void
each_slot(struct object *o, int (*may_concern)(const struct object *, uintptr_t),
          void (*act)(struct object *, const struct call *))
{
    for (int table = 0; table < 2; table++)
        for (size_t n = 0; n < o->counts[table]; n++) {
            const ElfW(Rela) *r = &o->tables[table][n];
            uint32_t type = ELF64_R_TYPE(r->r_info), symbol = ELF64_R_SYM(r->r_info);
            int call_slot = IS_CALL_SLOT(type);
            if ((!call_slot && !IS_POINTER(type)) || !symbol) continue;
            uintptr_t *slot = (uintptr_t *)(o->base + r->r_offset),
                      held = pointer_load_acquire(slot);
            if (!may_concern(o, held)) continue;
            int hook = hook_of(o->strings + o->symbols[symbol].st_name);
            const struct call c = { hook, call_slot, o->symbols[symbol].st_shndx == SHN_UNDEF, slot,
                                    held };
            if (hook >= 0 && patch.wrapper[hook] && patch.real[hook]) act(o, &c);
        }
    if (o->opened) seal(o, PROT_READ);
}

static int may_be_real(const struct object *o, uintptr_t held)
{
    return (held >= patch.real_from && held <= patch.real_to)
           || (held >= o->text && held < o->text_end);
}

static void patch_slot(struct object *o, const struct call *c)
{
    if ((o->base == patch.provider && c->hook >= FIRST_MAPPING) || !is_ours_to_patch(o, c)) return;
    write_slot(o, c->slot, patch.wrapper[c->hook]);
}

static int may_be_anything(const struct object *o, uintptr_t held)
{
    return (void)o, (void)held, 1;
}

static void note_sentinel(struct object *o, const struct call *c)
{
    (void)o;
    if (c->hook == HOOK_malloc && c->call_slot && !patch.sentinel)
        pointer_store_release(&patch.sentinel, c->slot);
}

static void patch_object(struct object *o)
{
    if (!patch.sentinel && o->base != patch.provider) each_slot(o, may_be_anything, note_sentinel);
    each_slot(o, may_be_real, patch_slot);
}

static int may_be_wrapper(const struct object *o, uintptr_t held)
{
    (void)o;
    return held >= patch.wrapper_from && held <= patch.wrapper_to;
}

static void restore_slot(struct object *o, const struct call *c)
{
    if (c->held == patch.wrapper[c->hook]) write_slot(o, c->slot, patch.real[c->hook]);
}

static void restore_object(struct object *o) { each_slot(o, may_be_wrapper, restore_slot); }

/* The addresses from the least to the largest. */
static void find_range(const uintptr_t *values, uintptr_t *from, uintptr_t *to)
{
    *from = UINTPTR_MAX, *to = 0;
    for (int i = 0; i < HOOK_COUNT; i++) {
        if (values[i] && values[i] < *from) *from = values[i];
        if (values[i] > *to) *to = values[i];
    }
}

/* 1 if the base was not in the set yet. A full set forgets: objects are looked at once more, which
 * is harmless. */
static int first_sight(uintptr_t base)
{
    for (size_t i = (base >> 12) * UINT64_C(0x9e3779b97f4a7c15) >> 52, tries = 0; tries < 64;
         tries++, i = (i + 1) % OBJECTS_MOST) {
        if (patch.seen[i] == base + 1) return 0;
        if (patch.seen[i] == 0) return patch.seen[i] = base + 1, 1;
    }
    return 1;
}

static int visit_new(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct object o;
    (void)size, (void)unused;
    /* the same for all objects of one walk: nothing was done yet */
    if (info->dlpi_adds != patch.settled) return 1;
    /* a base may have a new tenant */
    if (info->dlpi_subs != load_relaxed(&patch.subs)) memset(patch.seen, 0, sizeof patch.seen);
    store_relaxed(&patch.adds, info->dlpi_adds);
    store_relaxed(&patch.subs, info->dlpi_subs);
    if (is_loader(info) || info->dlpi_addr == patch.self || !first_sight(info->dlpi_addr)) return 0;
    if (read_object(info, &o)) patch_object(&o);
    return 0;
}

static int visit_old(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct object o;
    (void)size, (void)unused;
    if (!is_loader(info) && info->dlpi_addr != patch.self && read_object(info, &o))
        restore_object(&o);
    return 0;
}

static int counters(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    ((word *)out)[0] = info->dlpi_adds;
    ((word *)out)[1] = info->dlpi_subs;
    return 1;
}

/* The loader's counters; 0 while a fork is under way: the lock that dl_iterate_phdr takes would
 * stay locked in the child for ever. */
static int look(word now[2])
{
    add_seq_cst(&patch.looking, 1);
    int may = !load_seq_cst(&patch.forking);
    if (may) dl_iterate_phdr(counters, now);
    add_seq_cst(&patch.looking, (word)-1);
    return may;
}

/* An object stands on the loader's list before it is relocated. To write then would be undone, or
 * seal a page that the loader still writes to. dlopen keeps a lock to its end, and dladdr waits for
 * that: what was on the list before is complete afterwards. No lock of ours is held. */
static void let_loader_finish(void)
{
    Dl_info unused;
    dladdr((const void *)&patch, &unused);
}

/* -- dlsym: the first thing a program does with a library that it has just opened -- */

__attribute__((used, visibility("hidden"))) void patch_before_dlsym(void)
{
    if (load_relaxed(&patch.inherited) && patch.last && pointer_load_acquire(&patch.last->l_next))
        /* an object was loaded since the fork: the loader's locks are free here */
        store_relaxed(&patch.inherited, 0);
    patch_refresh();
}

__attribute__((used, visibility("hidden"))) uintptr_t patch_real_dlsym;

/* A jump, not a call: dlsym looks at its return address to know who asks. */
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

/* -- the contract -- */

void patch_install(const struct patch_wrappers *wrappers)
{
    pthread_mutex_lock(&patch.mutex);
#define COPY(name) patch.wrapper[HOOK_##name] = (uintptr_t)wrappers->name;
    HOOKS(COPY)
#undef COPY
    patch.wrapper[HOOK_dlsym] = (uintptr_t)patch_dlsym;
    patch_real_dlsym = patch.real[HOOK_dlsym];
    find_range(patch.wrapper, &patch.wrapper_from, &patch.wrapper_to);
    find_range(patch.real, &patch.real_from, &patch.real_to);
    for (int i = 0; i < HOOK_COUNT; i++) { /* the executable's entries count as real */
        if (patch.plt[i] && patch.plt[i] < patch.real_from) patch.real_from = patch.plt[i];
        if (patch.plt[i] > patch.real_to) patch.real_to = patch.plt[i];
    }
    store_relaxed(&patch.lost, 0);
    int done = load_relaxed(&patch.installed) && load_relaxed(&patch.inherited);
    pthread_mutex_unlock(&patch.mutex);
    /* more than one if others load objects just now */
    for (int tries = 0; !done && tries < INSTALL_TRIES; tries++) {
        word now[2];
        if (!look(now)) {
            sched_yield();
            continue;
        }
        let_loader_finish();
        pthread_mutex_lock(&patch.mutex);
        patch.settled = now[0];
        memset(patch.seen, 0, sizeof patch.seen);
        done = dl_iterate_phdr(visit_new, NULL) == 0;
        if (done) store_release(&patch.installed, 1);
        pthread_mutex_unlock(&patch.mutex);
    }
}

/* now: how many objects have been loaded and unloaded. */
static int is_due(word now[2])
{
    if (!load_acquire(&patch.installed) || load_relaxed(&patch.inherited)) return 0;
    return look(now)
           && (now[0] != load_relaxed(&patch.adds) || now[1] != load_relaxed(&patch.subs));
}

int patch_is_due(void)
{
    word now[2];
    return is_due(now);
}

void patch_refresh(void)
{
    word now[2];
    if (!is_due(now)) return;
    int saved = errno;
    let_loader_finish();
    /* Not waiting: whoever holds it is at the same work, perhaps behind a lock of the loader's that
     * this thread has. */
    if (pthread_mutex_trylock(&patch.mutex)) return;
    patch.settled = now[0];
    if (load_relaxed(&patch.installed)) {
        /* before slots that another tool gave back are taken again: what went by meanwhile was not
         * seen */
        patch_holds();
        /* an object added since: the next call has another look */
        dl_iterate_phdr(visit_new, NULL);
    }
    pthread_mutex_unlock(&patch.mutex);
    errno = saved;
}

void patch_remove(void)
{
    pthread_mutex_lock(&patch.mutex);
    if (load_relaxed(&patch.installed) && !load_relaxed(&patch.inherited)) {
        store_release(&patch.installed, 0);
        dl_iterate_phdr(visit_old, NULL);
        pointer_store_release(&patch.sentinel, NULL);
    }
    pthread_mutex_unlock(&patch.mutex);
}

int patch_holds(void)
{
    uintptr_t *sentinel = pointer_load_acquire(&patch.sentinel);
    if (!sentinel) return 0;
    if (pointer_load_acquire(sentinel) != patch.wrapper[HOOK_malloc]) store_relaxed(&patch.lost, 1);
    return !load_relaxed(&patch.lost);
}

const char *patch_provider(void) { return patch.provider_path; }

void patch_lock(void)
{
    pthread_mutex_lock(&patch.mutex);
    store_seq_cst(&patch.forking, 1);
    while (load_seq_cst(&patch.looking)) sched_yield();
}

void patch_unlock(void)
{
    store_seq_cst(&patch.forking, 0);
    pthread_mutex_unlock(&patch.mutex);
}

void patch_forked(void)
{
    pthread_mutex_init(&patch.mutex, NULL);
    patch.looking = patch.forking = 0;
    patch.inherited = 1;
    for (patch.last = _r_debug.r_map; patch.last && patch.last->l_next;)
        patch.last = patch.last->l_next;
}
