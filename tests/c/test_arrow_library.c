/* Tables of functions and the objects that contain them, by the example of lib_threads.c. */
#include "check.h"
#include "arrow_library.h"

#include <dlfcn.h>

static void *library;

static void words_of_a_table(void)
{
    const uintptr_t *table = dlsym(library, "_ZTVN5arrow8internal10ThreadPoolE");
    CHECK(arrow_table_words(table) == 9);
    CHECK(arrow_table_words(table + 1) == 0); /* no symbol of its own */
    CHECK(arrow_table_words(NULL) == 0);
}

static void objects_of_addresses(void)
{
    const void *table = dlsym(library, "_ZTVN5arrow8internal10ThreadPoolE"),
               *function = dlsym(library, "_ZN5arrow8internal10ThreadPool4MakeEi");
    int local;
    CHECK(arrow_base_of(table) && arrow_base_of(table) == arrow_base_of(function));
    CHECK(arrow_base_of((const void *)words_of_a_table) != arrow_base_of(table));
    CHECK(arrow_base_of(&local) == 0);
}

int main(void)
{
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    char *last = n > 0 ? strrchr(path, '/') : NULL;
    if (last) strcpy(last, "/lib_threads.so");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    RUN(words_of_a_table);
    RUN(objects_of_addresses);
    return failures;
}
