/* Allocators inside libraries (jemalloc in Polars and DuckDB, mimalloc): they map memory in ways
 * that are not accounted, and hand it out without a call that could be hooked. A task that uses
 * such a library is marked (tasks.c).
 *
 * alloc.c notes mappings that are not accounted. An object that has made them is *watched* from
 * then on: patch.c leads some of its calls to common functions, such as memcpy, through wrappers,
 * which note for which task the object works. So a task is also marked if the library uses memory
 * that it has mapped before.
 *
 * Noting is done from any thread; it takes no lock and allocates nothing. Objects are added and
 * removed under the mutex of patch.c.
 *
 * An object is found by the return address of its call of mmap. If a function ends with a jump to
 * mmap, that address is in the caller of the function: another library may get the blame.
 */
#ifndef DWSR_FOREIGN_H
#define DWSR_FOREIGN_H

#include "frame.h"
#include "lineage.h"

/* One bit each in a task's mask. The last one stands for all code that is not in the table. */
#define FOREIGN_OBJECTS 64

/* An object that may map memory, by the range of its code. was_loaded: before the probe started, so
 * that what it has mapped is not known. No effect if the table is full. */
void foreign_add_object(uintptr_t text, uintptr_t text_end, const char *path, int was_loaded);

/* The object with this caller in its code has mapped so many bytes for the calling thread.
 * accounted: the mapping is in the accounts; that matters only for objects that are known to have
 * an allocator. */
void foreign_note_mapping(const void *caller, uint64_t bytes, int accounted);

/* -- for patch.c -- */

/* The bit of this object, or 0 if it is not in the table. */
uint64_t foreign_mask_of(uintptr_t text, const char *path);
/* Removes all objects but those of the mask: they were unloaded. Tasks that have used them keep
 * their bits, as long as they run. */
void foreign_keep_objects(uint64_t mask);
/* Whether an object is watched since foreign_clear_due. */
int foreign_is_due(void);
void foreign_clear_due(void);
/* The wrappers were removed from the watched objects. */
void foreign_set_due(void);
int foreign_is_watched(uintptr_t text, const char *path);
/* Finds the functions behind the wrappers. Not inside dl_iterate_phdr: dlsym takes another lock of
 * the loader, and dlopen takes both in the other order. */
void foreign_find_functions(void);
/* The wrapper for a function that watched objects call, by the function's address or by its name,
 * or 0; and the function behind a wrapper. */
uintptr_t foreign_wrapper_of(uintptr_t function);
uintptr_t foreign_wrapper_of_name(const char *name);
uintptr_t foreign_real_of(uintptr_t wrapper);

/* -- for tasks.c -- */

/* How many bytes the objects of a running task's mask have mapped, and the name of the object that
 * has mapped most, which is never freed. UINT64_MAX: not known. */
uint64_t foreign_bytes_of(uint64_t mask, struct text *largest);

#endif
