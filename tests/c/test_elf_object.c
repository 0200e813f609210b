/* Objects of this process: libc, a library that the test opens (lib_calls.c), loader and vDSO. */
#include "check.h"
#include "elf_object.h"

#include <dlfcn.h>
#include <gnu/lib-names.h>

static void *library, *libc;

static void open_libraries(void)
{
    char path[512], *end;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    path[n > 0 ? n : 0] = 0;
    if ((end = strrchr(path, '/'))) strcpy(end, "/lib_calls.so");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    libc = dlopen(LIBC_SO, RTLD_NOW | RTLD_NOLOAD);
    if (library && libc) return;
    fprintf(stderr, "%s\n", dlerror());
    abort();
}

struct search {
    const char *part; /* of the object's path */
    struct dl_phdr_info info;
    int found;
};

static int has_part(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct search *s = argument;
    (void)size;
    if (!strstr(info->dlpi_name, s->part)) return 0;
    s->info = *info;
    return s->found = 1;
}

static struct search find(const char *part)
{
    struct search s = { .part = part };
    dl_iterate_phdr(has_part, &s);
    return s;
}

static void functions_are_found_by_name(void)
{
    struct elf_object o;
    struct search s = find("/libc.so");
    CHECK(s.found && elf_object_read(&s.info, &o));
    CHECK(elf_object_function(&o, "getppid") == (uintptr_t)dlsym(libc, "getppid"));
    CHECK(!elf_object_function(&o, "no_such_function"));
    CHECK(!elf_object_function(&o, "environ")); /* a variable */
    s = find("/lib_calls.so");
    CHECK(s.found && elf_object_read(&s.info, &o));
    CHECK(elf_object_function(&o, "library_own") == (uintptr_t)dlsym(library, "library_own"));
    CHECK(!elf_object_function(&o, "malloc")); /* used there, defined elsewhere */
}

/* The vDSO may have both tables of names, and its dynamic section is read-only. */
static void the_old_table_of_names(void)
{
    struct elf_object o;
    struct search s = find("linux-vdso");
    if (!s.found || !elf_object_read(&s.info, &o) || !o.hash) SKIP("no object with DT_HASH");
    const uintptr_t either = elf_object_function(&o, "__vdso_clock_gettime");
    o.gnu_hash = NULL;
    CHECK(elf_object_function(&o, "__vdso_clock_gettime") == either);
    CHECK(!elf_object_function(&o, "no_such_function"));
}

static void addresses_belong_to_their_object(void)
{
    struct elf_object o;
    const uintptr_t function = (uintptr_t)dlsym(library, "library_own");
    struct search s = find("/lib_calls.so"), other = find("/libc.so");
    CHECK(elf_object_read(&s.info, &o) && function >= o.text && function < o.text_end);
    CHECK(elf_object_contains(&s.info, function) && !elf_object_contains(&other.info, function));
    CHECK(!elf_object_is_loader(&s.info) && !elf_object_is_loader(&other.info));
    s = find("/ld-");
    CHECK(s.found && elf_object_is_loader(&s.info));
}

static void relocations_name_what_is_called(void)
{
    struct elf_object o;
    struct search s = find("/lib_calls.so");
    int named = 0, unnamed = 0;
    CHECK(elf_object_read(&s.info, &o));
    for (int table = 0; table < 2; table++)
        for (size_t i = 0; i < o.relocation_counts[table]; i++) {
            const uint32_t symbol = ELF64_R_SYM(o.relocations[table][i].r_info);
            named += !strcmp(o.strings + o.symbols[symbol].st_name, "malloc");
            unnamed += !symbol;
        }
    CHECK(named >= 3 && !unnamed); /* a call or an address, a variable, a constant */
}

static void sealed_pages_are_opened_and_closed(void)
{
    struct elf_object o;
    struct search s = find("/lib_calls.so");
    void **constant = dlsym(library, "library_constant");
    CHECK(elf_object_read(&s.info, &o));
    CHECK((uintptr_t)constant >= o.relro && (uintptr_t)constant < o.relro_end);
    CHECK(elf_object_unseal(&o) == 0 && o.unsealed && elf_object_unseal(&o) == 0);
    void *volatile *slot = constant;
    *slot = *slot; /* SIGSEGV on a sealed page */
    elf_object_seal(&o);
    CHECK(!o.unsealed);
}

int main(void)
{
    open_libraries();
    RUN(functions_are_found_by_name);
    RUN(the_old_table_of_names);
    RUN(addresses_belong_to_their_object);
    RUN(relocations_name_what_is_called);
    RUN(sealed_pages_are_opened_and_closed);
    return failures;
}
