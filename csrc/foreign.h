/* Allocators inside libraries (jemalloc in Polars and DuckDB, mimalloc): they map memory in ways
 * that are not accounted, and hand it out without a call that could be hooked. A task that uses
 * such a library is marked (tasks.c).
 *
 * alloc.c notes mappings that are not accounted. An object that has made them is *watched* from
 * then on: patch.c leads some of its calls to common functions, such as memcpy, through wrappers,
 * which note for which task the object works. So a task is also marked if the library uses memory
 * that it has mapped before.
 *
 * Noting is done from any thread; it takes no lock and allocates nothing. Objects are added under
 * the mutex of patch.c. An object that is unloaded stays in the table.
 */
#ifndef DWSR_FOREIGN_H
#define DWSR_FOREIGN_H

#include "frame.h"
#include "lineage.h"

#define FOREIGN_OBJECTS 64

/* An object that may map memory, by the range of its code. was_loaded: before the probe started, so
 * that what it has mapped is not known. */
void foreign_add_object(uintptr_t text, uintptr_t text_end, const char *path, int was_loaded);

/* The object with this caller in its code has mapped so many bytes for the calling thread.
 * accounted: the mapping is in the accounts; that matters only for objects that are known to have
 * an allocator. */
void foreign_note_mapping(const void *caller, uint64_t bytes, int accounted);

/* -- for patch.c -- */

/* Whether an object is watched since foreign_clear_due. */
int foreign_is_due(void);
void foreign_clear_due(void);
/* The wrappers were removed from the watched objects. */
void foreign_set_due(void);
/* Whether the object with this code is watched. */
int foreign_is_watched(uintptr_t text);
/* Finds the functions behind the wrappers. Not inside dl_iterate_phdr: dlsym takes another lock of
 * the loader, and dlopen takes both in the other order. */
void foreign_find_functions(void);
/* The wrapper for a function that watched objects may call, or 0; and the function behind it. */
uintptr_t foreign_wrapper_of(const char *name);
uintptr_t foreign_real_of(uintptr_t wrapper);

/* -- for tasks.c -- */

/* How many bytes the objects of a task's mask have mapped, and the name of the object that has
 * mapped most, which is never freed. UINT64_MAX: not known. */
uint64_t foreign_bytes_of(uint64_t mask, struct text *largest);

#endif
