/* Replaces the hooked functions (hooks.h) in a running process, without LD_PRELOAD: the slots of
 * the loaded objects' global offset tables (GOT) are overwritten with the addresses of wrappers.
 * Called by alloc.c, and by probe.c at each task's begin.
 *
 * patch_refresh finds objects that were loaded later; while none was loaded, it takes one short
 * call. Patches are removed by walking over the objects again, not from saved addresses, so an
 * object that was unloaded meanwhile is not touched. Any thread may call; nothing here allocates.
 */
#ifndef DWSR_PATCH_H
#define DWSR_PATCH_H

#include <stdint.h>

#include "elf_object.h"
#include "hooks.h"

/* Finds the functions in use: 0, or -ENOENT if no object defines malloc (static programs). */
int patch_find(struct real_functions *real);
/* A wrapper for each hooked function; NULL: that function is not replaced. */
struct patch_wrappers {
#define FIELD(name) name##_function name;
    HOOKS(FIELD)
#undef FIELD
};

/* After patch_find. patch_check_intact reports whether it worked. */
void patch_install(const struct patch_wrappers *wrappers);
/* Whether objects were loaded or unloaded since the last walk, or one is newly watched (foreign.h).
 */
int patch_is_due(void);
/* Patches objects that were loaded since the last walk, mostly none. A hook on dlsym calls it, too,
 * because programs call dlsym right after dlopen. */
void patch_refresh(void);
/* Mappings that the object with this base makes are not counted from here on, because its blocks
 * are counted one by one. Its munmap stays hooked, for mappings that were counted before. Holds
 * until the process ends, for one object. 0, or -EBUSY: another object has the place, or this is a
 * forked child in which the loader stays locked. */
int patch_leave_mappings(uintptr_t base);
/* Whether the caller is code of that object. */
int patch_leaves_mapping(const void *caller);
/* Replaces a word of a loaded object that the loader may have made read-only (RELRO). 0, or -errno;
 * -EBUSY: the word at `at` does not hold `from`. */
int patch_replace_word(struct elf_object *o, uintptr_t *at, uintptr_t from, uintptr_t to);
/* Restores the slots, except in a forked child that did not ask the loader (below). The program may
 * have kept a wrapper's address, so wrappers must work ever after. */
void patch_remove(void);
/* 1 if the program's calls have reached the wrappers ever since patch_install. 0 if no slot was
 * patched, or if another tool replaced the slots; that result is remembered until the next
 * patch_install. A few loads, no lock. */
int patch_check_intact(void);
/* Around fork: lock before, unlock in the parent, reset in the child. The child keeps the slots as
 * they are, and does not walk over the objects: another thread of the parent may have held a lock
 * of the loader, which then stays locked in the child for ever. */
void patch_lock(void);
void patch_unlock(void);
void patch_reset_in_child(void);
/* Called before the first task. In a forked child: finds out whether the loader's locks are free,
 * and waits for the answer for a second at most. If they are free, the child walks over the objects
 * like any other process. */
void patch_ask_loader(void);
/* Path of the object that provides malloc, and whether it is glibc. */
const char *patch_provider(void);
int patch_provider_is_glibc(void);
/* glibc's mallinfo2, since release 2.33; 0: there is none. */
uintptr_t patch_mallinfo2(void);
/* How many objects had been loaded at the last walk, and whether more have been loaded since: also
 * 1 if that cannot be found out: while the loader may be locked, or a fork is under way. */
uint64_t patch_loaded_objects(void);
int patch_has_loaded_since(uint64_t loaded);

#endif
