/* The one list of hooked functions: X(name). patch.c finds and replaces them, alloc.c has a wrapper
 * `alloc_<name>` for each.
 *
 * MALLOC_HOOKS all come from the object that provides malloc. MAPPING_HOOKS are not replaced inside
 * that object: its mappings hold blocks that are counted already.
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
#define MAPPING_HOOKS(X) X(mmap) X(mmap64) X(munmap) X(mremap) X(mprotect)
#define THREAD_HOOKS(X) X(pthread_create) /* threads that a task starts work for it */
/* clang-format on */
#define HOOKS(X) MALLOC_HOOKS(X) MAPPING_HOOKS(X) THREAD_HOOKS(X)

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
typedef void *(*mmap_function)(void *, size_t, int, int, int, off_t);
typedef void *(*mmap64_function)(void *, size_t, int, int, int, off_t);
typedef int (*munmap_function)(void *, size_t);
typedef int (*mprotect_function)(void *, size_t, int);
typedef int (*pthread_create_function)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
                                       void *);
typedef void *(*mremap_function)(void *, size_t, size_t, int, ...);

/* The functions that the program would have called without the hooks. */
struct real_functions {
#define FIELD(name) name##_function name;
    HOOKS(FIELD)
#undef FIELD
    /* from the object that provides malloc: only that one knows the blocks' headers */
    size_t (*malloc_usable_size)(void *);
};

#endif
