/* The one list of hooked functions: X(name). patch.c finds and replaces them, alloc.c has a wrapper
 * `alloc_<name>` for each.
 *
 * MALLOC_HOOKS and CPP_HOOKS all come from the object that provides malloc. C++'s operators are
 * replaced only where that object defines them itself, as jemalloc, mimalloc and tcmalloc do: those
 * of libstdc++ call malloc, which is counted already. The other hooks are not replaced inside that
 * object: its mappings hold blocks that are counted already.
 */
#ifndef DWSR_HOOKS_H
#define DWSR_HOOKS_H

#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>

/* clang-format off */
#define MALLOC_HOOKS(X)                                                                     \
    X(malloc) X(free) X(calloc) X(realloc) X(reallocarray) X(posix_memalign) X(aligned_alloc) \
    X(memalign) X(valloc) X(pvalloc)
/* C++'s operators by their mangled names: new and new[] (nw, na), delete and delete[] (dl, da). All
 * arguments are words: a size (m), a pointer (Pv), an alignment, a reference to std::nothrow. */
#define NEW_1_HOOKS(X) X(_Znwm) X(_Znam)
#define NEW_2_HOOKS(X)                                                                      \
    X(_ZnwmRKSt9nothrow_t) X(_ZnamRKSt9nothrow_t) X(_ZnwmSt11align_val_t) X(_ZnamSt11align_val_t)
#define NEW_3_HOOKS(X) X(_ZnwmSt11align_val_tRKSt9nothrow_t) X(_ZnamSt11align_val_tRKSt9nothrow_t)
#define DELETE_1_HOOKS(X) X(_ZdlPv) X(_ZdaPv)
#define DELETE_2_HOOKS(X)                                                                   \
    X(_ZdlPvm) X(_ZdaPvm) X(_ZdlPvRKSt9nothrow_t) X(_ZdaPvRKSt9nothrow_t)                     \
    X(_ZdlPvSt11align_val_t) X(_ZdaPvSt11align_val_t)
#define DELETE_3_HOOKS(X)                                                                   \
    X(_ZdlPvmSt11align_val_t) X(_ZdaPvmSt11align_val_t)                                       \
    X(_ZdlPvSt11align_val_tRKSt9nothrow_t) X(_ZdaPvSt11align_val_tRKSt9nothrow_t)
#define CPP_HOOKS(X)                                                                        \
    NEW_1_HOOKS(X) NEW_2_HOOKS(X) NEW_3_HOOKS(X)                                              \
    DELETE_1_HOOKS(X) DELETE_2_HOOKS(X) DELETE_3_HOOKS(X)
#define MAPPING_HOOKS(X) X(mmap) X(mmap64) X(munmap) X(mremap) X(mprotect)
#define FILE_HOOKS(X) /* who creates files in memory, and when they are gone */              \
    X(open) X(open64) X(openat) X(openat64) X(creat) X(creat64) X(shm_open) X(memfd_create)   \
    X(ftruncate) X(ftruncate64) X(unlink) X(unlinkat) X(remove) X(shm_unlink)
#define THREAD_HOOKS(X) X(pthread_create) /* threads that a task starts work for it */
/* clang-format on */
#define HOOKS(X) MALLOC_HOOKS(X) CPP_HOOKS(X) MAPPING_HOOKS(X) FILE_HOOKS(X) THREAD_HOOKS(X)

typedef void *(*malloc_function)(size_t);
typedef void *(*calloc_function)(size_t, size_t);
typedef void *(*realloc_function)(void *, size_t);
typedef void *(*reallocarray_function)(void *, size_t, size_t);
typedef void (*free_function)(void *);
typedef int (*posix_memalign_function)(void **, size_t, size_t);
typedef void *(*aligned_alloc_function)(size_t, size_t);
typedef void *(*memalign_function)(size_t, size_t);
typedef void *(*valloc_function)(size_t);
typedef void *(*pvalloc_function)(size_t);
#define TYPE(name) typedef void *(*name##_function)(size_t);
NEW_1_HOOKS(TYPE)
#undef TYPE
#define TYPE(name) typedef void *(*name##_function)(size_t, size_t);
NEW_2_HOOKS(TYPE)
#undef TYPE
#define TYPE(name) typedef void *(*name##_function)(size_t, size_t, size_t);
NEW_3_HOOKS(TYPE)
#undef TYPE
#define TYPE(name) typedef void (*name##_function)(void *);
DELETE_1_HOOKS(TYPE)
#undef TYPE
#define TYPE(name) typedef void (*name##_function)(void *, size_t);
DELETE_2_HOOKS(TYPE)
#undef TYPE
#define TYPE(name) typedef void (*name##_function)(void *, size_t, size_t);
DELETE_3_HOOKS(TYPE)
#undef TYPE
typedef void *(*mmap_function)(void *, size_t, int, int, int, off_t);
typedef void *(*mmap64_function)(void *, size_t, int, int, int, off_t);
typedef int (*munmap_function)(void *, size_t);
typedef int (*mprotect_function)(void *, size_t, int);
typedef int (*pthread_create_function)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
                                       void *);
typedef void *(*mremap_function)(void *, size_t, size_t, int, ...);
typedef int (*open_function)(const char *, int, ...);
typedef int (*open64_function)(const char *, int, ...);
typedef int (*openat_function)(int, const char *, int, ...);
typedef int (*openat64_function)(int, const char *, int, ...);
typedef int (*creat_function)(const char *, mode_t);
typedef int (*creat64_function)(const char *, mode_t);
typedef int (*shm_open_function)(const char *, int, mode_t);
typedef int (*memfd_create_function)(const char *, unsigned);
typedef int (*ftruncate_function)(int, off_t);
typedef int (*ftruncate64_function)(int, off_t);
typedef int (*unlink_function)(const char *);
typedef int (*unlinkat_function)(int, const char *, int);
typedef int (*remove_function)(const char *);
typedef int (*shm_unlink_function)(const char *);

/* The functions that the program would have called without the hooks. */
struct real_functions {
#define FIELD(name) name##_function name;
    HOOKS(FIELD)
#undef FIELD
    /* from the object that provides malloc: only that one knows the blocks' headers */
    size_t (*malloc_usable_size)(void *);
};

#endif
