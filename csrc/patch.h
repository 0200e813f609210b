/* See allocation calls by rewriting the GOT entries of the loaded objects, in a running process,
 * without LD_PRELOAD.
 *
 * Objects loaded later are found by patch_refresh, which costs one short call while nothing was
 * loaded. Undone by walking again: nothing is restored from saved addresses, so an object that was
 * unloaded meanwhile is not touched. Calls are serialised inside; none of them allocates.
 */
#ifndef DWSR_PATCH_H
#define DWSR_PATCH_H

#include "hooks.h"

/* Finds the functions in use; 0, or -ENOENT if there is no malloc to be found (static programs). */
int patch_find(struct real_functions *real);
/* The wrappers: same order and types as real_functions, without the last. */
struct patch_wrappers {
#define FIELD(name) name##_function name;
    HOOKS(FIELD)
#undef FIELD
};

void patch_install(const struct patch_wrappers *wrappers);
/* Whether objects were loaded or unloaded since: patch_refresh then walks over all of them. */
int patch_is_due(void);
/* Patches objects loaded since, mostly none. Also called right after dlopen, through a hook on
 * dlsym. */
void patch_refresh(void);
/* Puts the slots back, except in a forked child (below). The wrappers must bear calls ever after.
 */
void patch_remove(void);
/* Whether the program's calls lead to the wrappers, and have done so since the install: 0 when
 * there was nothing to rewrite, or another tool holds the slots or has held them meanwhile. Cheap;
 * takes no lock. */
int patch_holds(void);
/* Around fork: lock before, unlock in the parent, forked in the child. The child keeps the slots as
 * they are and does not walk before it has loaded an object itself: a thread of the parent's may
 * have held the loader's lock, which is then held in the child for ever. */
void patch_lock(void);
void patch_unlock(void);
void patch_forked(void);
/* Path of the object that malloc comes from. */
const char *patch_provider(void);

#endif
