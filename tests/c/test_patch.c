/* Slots of this program and of libraries that it opens (lib_calls.c, lib_foreign.c): patched,
 * restored, replaced by another tool, forked. */
#include "check.h"
#include "atomics.h"
#include "elf_object.h"
#include "foreign.h"
#include "patch.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct real_functions real;
static word calls; /* of malloc, through the wrapper */

static void *counted_malloc(size_t n) { return add_relaxed(&calls, 1), real.malloc(n); }
static void counted_free(void *p) { real.free(p); }
static void *others_malloc(size_t n) { return real.malloc(n); }

/* NULL: that one is left alone */
static const struct patch_wrappers wrappers = { .malloc = counted_malloc, .free = counted_free };

static struct {
    void *handle;
    void *(*malloc)(size_t), *(*address)(void), *(*own)(size_t);
    void *(**variable)(size_t), *(*const volatile *constant)(size_t);
} library;

/* Not through a patched slot: such a dlsym refreshes first. */
static void *(*volatile plain_dlsym)(void *, const char *);

static void *open_beside_program(const char *file)
{
    char path[512], *end;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    CHECK(n > 0);
    path[n] = 0;
    if ((end = strrchr(path, '/'))) strcpy(end + 1, file);
    void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    return handle;
}

static void open_library(void)
{
    library.handle = open_beside_program("lib_calls.so");
    *(void **)&library.malloc = plain_dlsym(library.handle, "library_malloc");
    *(void **)&library.address = plain_dlsym(library.handle, "library_address");
    *(void **)&library.own = plain_dlsym(library.handle, "library_own");
    *(void **)&library.variable = plain_dlsym(library.handle, "library_variable");
    *(void **)&library.constant = plain_dlsym(library.handle, "library_constant");
}

static int call_is_counted(void *(*function)(size_t))
{
    word before = load_relaxed(&calls);
    void *volatile p = function(1000);
    free(p);
    return load_relaxed(&calls) != before;
}

static __attribute__((noinline)) void *malloc_here(size_t n)
{
    void *volatile p = malloc(n);
    return p;
}

/* All of the library's slots lead to the wrapper, or none does. */
static int library_is_patched(void)
{
    int found = call_is_counted(library.malloc) + (library.address() == (void *)counted_malloc)
                + (*library.variable == counted_malloc) + (*library.constant == counted_malloc);
    CHECK(found == 0 || found == 4);
    if (!found)
        CHECK(*library.variable == real.malloc && *library.constant == real.malloc
              && library.address() == (void *)real.malloc);
    return found != 0;
}

/* Whether the page may be written to. */
static int is_writable(const void *at)
{
    char line[512], right = 0;
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*c%c", &from, &to, &right) == 3 && (uintptr_t)at >= from
            && (uintptr_t)at < to)
            break;
    if (maps) fclose(maps);
    return right == 'w';
}

static void the_functions_in_use(void)
{
    void *p = real.malloc(100);
    CHECK(p && real.malloc_usable_size(p) >= 100 && patch_provider()[0] == '/');
    real.free(p);
}

static void slots_are_rewritten_and_put_back(void)
{
    open_library();
    CHECK(!library_is_patched() && !call_is_counted(malloc_here) && !patch_check_intact()
          && !is_writable((const void *)library.constant));
    for (int i = 0; i < 3; i++) {
        patch_install(&wrappers);
        CHECK(patch_check_intact() && library_is_patched() && call_is_counted(malloc_here));
        CHECK(!is_writable((const void *)library.constant)); /* sealed again */
        patch_remove();
        CHECK(!patch_check_intact() && !library_is_patched() && !call_is_counted(malloc_here)
              && !is_writable((const void *)library.constant));
    }
    dlclose(library.handle);
}

static void objects_opened_later(void)
{
    patch_install(&wrappers);
    open_library();
    CHECK(!library_is_patched()); /* not refreshed yet */
    patch_refresh();
    CHECK(library_is_patched());
    dlclose(library.handle);
    open_library(); /* at the same address, perhaps */
    /* dlsym refreshes, too */
    CHECK(!library_is_patched() && dlsym(library.handle, "library_own") == (void *)library.own);
    CHECK(library_is_patched());
    dlclose(library.handle);
    patch_refresh();
    patch_remove(); /* unloaded objects are not touched */
    open_library();
    CHECK(!library_is_patched());
    dlclose(library.handle);
}

static void a_slot_that_holds_something_else_is_left_alone(void)
{
    open_library();
    *library.variable = library.own;
    patch_install(&wrappers);
    CHECK(*library.variable == library.own && *library.constant == counted_malloc
          && call_is_counted(library.malloc));
    *library.variable = others_malloc; /* changed meanwhile: not restored */
    patch_remove();
    CHECK(*library.variable == others_malloc && *library.constant == real.malloc);
    dlclose(library.handle);
}

/* An object's slot for a function. */
static uintptr_t *find_slot(const struct link_map *object, const char *name)
{
    uintptr_t base = object->l_addr, strings = 0, symbols = 0, tables[2] = { 0, 0 };
    size_t bytes[2] = { 0, 0 };
    for (const ElfW(Dyn) *d = object->l_ld; d->d_tag != DT_NULL; d++) {
        uintptr_t at = d->d_un.d_ptr < base ? d->d_un.d_ptr + base : d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB) strings = at;
        if (d->d_tag == DT_SYMTAB) symbols = at;
        if (d->d_tag == DT_JMPREL) tables[0] = at;
        if (d->d_tag == DT_PLTRELSZ) bytes[0] = d->d_un.d_val;
        if (d->d_tag == DT_RELA) tables[1] = at;
        if (d->d_tag == DT_RELASZ) bytes[1] = d->d_un.d_val;
    }
    for (int t = 0; t < 2; t++)
        for (const ElfW(Rela) *r = (const void *)tables[t]; (uintptr_t)r < tables[t] + bytes[t];
             r++) {
            const ElfW(Sym) *s = (const ElfW(Sym) *)symbols + ELF64_R_SYM(r->r_info);
            uintptr_t *slot = (uintptr_t *)(base + r->r_offset);
            if (ELF64_R_SYM(r->r_info) && !strcmp((const char *)strings + s->st_name, name))
                return slot;
        }
    return NULL;
}

static void another_tool_takes_the_slots(void)
{
    patch_install(&wrappers);
    uintptr_t *slot = find_slot(_r_debug.r_map, "malloc");
    CHECK(slot && *slot == (uintptr_t)counted_malloc && patch_check_intact());
    if (!slot || !is_writable(slot)) { /* linked with -z now: another tool would unseal it */
        patch_remove();
        SKIP("this program's slots are sealed");
    }
    *slot = (uintptr_t)others_malloc;
    CHECK(!patch_check_intact());
    *slot = (uintptr_t)counted_malloc;
    CHECK(!patch_check_intact()); /* calls were not seen meanwhile */
    patch_remove();
    patch_install(&wrappers);
    CHECK(patch_check_intact());
    patch_remove();
}

static void *others_memset(void *to, int byte, size_t n) { return (void)byte, (void)n, to; }

static void set_slot(uintptr_t *slot, uintptr_t value)
{
    void *page = (void *)((uintptr_t)slot & ~UINT64_C(4095));
    CHECK(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
    *slot = value;
    CHECK(mprotect(page, 4096, PROT_READ) == 0);
}

static int add_foreign(struct dl_phdr_info *info, size_t size, void *object)
{
    struct elf_object o;
    (void)size;
    if (info->dlpi_addr != ((const struct link_map *)object)->l_addr) return 0;
    CHECK(elf_object_read(info, &o));
    foreign_add_object(o.text, o.text_end, info->dlpi_name, 0);
    foreign_note_mapping((void *)o.text, 2 << 20, 0);
    return 1;
}

/* Calls of an object with an allocator of its own. */
static void calls_are_led_where_they_lead_to_the_same_function(void)
{
    patch_install(&wrappers);
    for (int i = 0; i < 3; i++) { /* loaded again, and unloaded meanwhile */
        void *handle = open_beside_program("lib_foreign.so");
        struct link_map *object = handle;
        uintptr_t *copy = find_slot(object, "memcpy"), *fill = find_slot(object, "memset");
        if (!copy || !fill) SKIP("the compiler calls other functions");
        const uintptr_t function = *copy;
        set_slot(fill, (uintptr_t)others_memset); /* by another tool */
        patch_refresh();
        dl_iterate_phdr(add_foreign, object);
        CHECK(patch_is_due());
        patch_refresh();
        CHECK(!patch_is_due() && *fill == (uintptr_t)others_memset);
        CHECK(*copy != function && foreign_real_of(*copy) == function && !is_writable(copy));
        if (i == 2) {
            patch_remove();
            CHECK(*copy == function && *fill == (uintptr_t)others_memset);
        }
        dlclose(handle);
    }
}

static void a_forked_child_keeps_the_slots(void)
{
    patch_install(&wrappers);
    fflush(stdout);
    patch_lock();
    pid_t pid = fork();
    if (pid == 0) {
        failures = 0;
        patch_reset_in_child();
        patch_remove(); /* would walk: the loader's lock may be held for ever */
        CHECK(call_is_counted(malloc_here) && patch_check_intact());
        open_library();
        patch_refresh();
        CHECK(!library_is_patched() && patch_has_loaded_since(patch_loaded_objects()));
#ifdef __SANITIZE_THREAD__ /* which starts no thread in a forked child */
        _exit(failures);
#endif
        patch_ask_loader();
        CHECK(dlsym(library.handle, "library_own") == (void *)library.own && library_is_patched());
        CHECK(!patch_has_loaded_since(patch_loaded_objects()));
        patch_remove();
        CHECK(!library_is_patched() && !call_is_counted(malloc_here));
        _exit(failures);
    }
    patch_unlock();
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(call_is_counted(malloc_here) && patch_check_intact());
    patch_remove();
    CHECK(!call_is_counted(malloc_here));
}

static word inside, leave;

static int stay_inside(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)info, (void)size, (void)unused;
    store_release(&inside, 1);
    while (!load_acquire(&leave)) usleep(1000);
    return 1;
}

static void *hold_the_loader(void *unused)
{
    dl_iterate_phdr(stay_inside, NULL);
    return unused;
}

/* A thread that is not there has locked the loader. */
static void a_forked_child_in_which_the_loader_stays_locked(void)
{
    pthread_t thread;
    patch_install(&wrappers);
    fflush(stdout);
    pthread_create(&thread, NULL, hold_the_loader, NULL);
    while (!load_acquire(&inside)) usleep(1000);
    patch_lock();
    pid_t pid = fork();
    if (pid == 0) {
        failures = 0;
        patch_reset_in_child();
        patch_ask_loader(); /* in vain */
        patch_ask_loader(); /* no second time */
        patch_refresh();
        CHECK(!patch_is_due() && patch_has_loaded_since(patch_loaded_objects()));
        CHECK(call_is_counted(malloc_here) && patch_check_intact());
        CHECK(patch_leave_mappings(1) == -EBUSY);
        patch_remove();
        CHECK(call_is_counted(malloc_here));
        _exit(failures);
    }
    patch_unlock();
    store_release(&leave, 1);
    pthread_join(thread, NULL);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    patch_remove();
}

static word opening;

static void *open_and_close(void *unused)
{
    while (load_acquire(&opening)) {
        void *handle = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        CHECK(handle);
        if (handle) dlsym(handle, "cos"), dlclose(handle);
    }
    return unused;
}

static void installed_while_others_load(void)
{
    pthread_t threads[3];
    open_library();
    store_release(&opening, 1);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, open_and_close, NULL);
    for (int i = 0; i < 100; i++) {
        patch_install(&wrappers);
        CHECK(patch_check_intact() && library_is_patched());
        patch_refresh();
        patch_remove();
        CHECK(!library_is_patched());
    }
    store_release(&opening, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    dlclose(library.handle);
}

int main(void)
{
    plain_dlsym = dlsym;
    CHECK(patch_find(&real) == 0);
    RUN(the_functions_in_use);
    RUN(slots_are_rewritten_and_put_back);
    RUN(objects_opened_later);
    RUN(a_slot_that_holds_something_else_is_left_alone);
    RUN(another_tool_takes_the_slots);
    RUN(calls_are_led_where_they_lead_to_the_same_function);
    RUN(a_forked_child_keeps_the_slots);
    /* the sanitizers' own walks over the objects would wait for ever */
    if (!SANITIZED) RUN(a_forked_child_in_which_the_loader_stays_locked);
    RUN(installed_while_others_load);
    return failures;
}
