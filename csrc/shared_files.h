/* Files in memory (tmpfs, hugetlbfs, memfd) that this process has created, and their shared
 * mappings: which task they belong to. Called by alloc.c from any thread. Nothing here allocates;
 * everything takes one short mutex, except the inline tests.
 *
 * A file belongs to the task that created it. Each part of the file that is mapped is charged to
 * this task once, however often and by whom it is mapped, in whole pages. The bytes are credited
 * when the file has no name and no mapping in this process any more. Files that this process did
 * not create are not known here: a task that only attaches owns nothing.
 */
#ifndef DWSR_SHARED_FILES_H
#define DWSR_SHARED_FILES_H

#include <stdint.h>

#include "thread.h"

#define SHARED_FILES    1024
#define SHARED_MAPPINGS 4096
#define SHARED_EXTENTS  4096

/* How many files and mappings are known: while there are none, nothing is to be done. */
SHARED_DATA word shared_files_known, shared_files_mapped;
static inline int shared_files_any(void) { return load_relaxed(&shared_files_known) != 0; }
static inline int shared_files_any_mapped(void) { return load_relaxed(&shared_files_mapped) != 0; }

/* Forgets all files. */
void shared_files_open(void);

/* After a call that may have created the file behind `fd`. is_new: the call has certainly created
 * it. Otherwise a file without content counts as created. Files on disks are ignored. */
void shared_files_created(int fd, int is_new, task_handle creator);
/* A file as stat knows it. */
struct shared_file_id {
    uint64_t device, inode;
};
/* Before a name is removed: 1 if it is the last name of a regular file. */
int shared_files_find_last_name(int directory, const char *path, struct shared_file_id *id);
/* After the name was removed. */
void shared_files_unlinked(struct shared_file_id id);

/* The following functions return the number of bytes that are not followed because a table is full.
 */

/* After ftruncate: parts behind the end no longer exist, mapped parts before it do. */
uint64_t shared_files_resized(int fd);

/* -- mappings, in whole pages -- */

/* A new shared mapping. *charged: its bytes that were not mapped before. */
uint64_t shared_files_map(uintptr_t address, uint64_t bytes, int fd, uint64_t offset,
                          uint64_t *charged);
/* These addresses are no longer mappings of files, as far as they were. */
uint64_t shared_files_unmap(uintptr_t address, uint64_t bytes);

/* A part of a file that is on its way to other addresses. */
struct shared_part {
    uint32_t file; /* its number + 1; 0: none */
    uint64_t offset;
};
/* Before mremap: the part of a known file at this address. The mapping is removed, unless it will
 * stay there, too. The file stays known until shared_files_end_move. */
struct shared_part shared_files_begin_move(uintptr_t address, uint64_t bytes, int stays);
/* After mremap: the part is at this address now; if mremap failed, at the old one with the old
 * number of bytes, or with none if it stayed there. */
uint64_t shared_files_end_move(struct shared_part part, uintptr_t address, uint64_t bytes);

/* Around fork: lock before, unlock in the parent. The child forgets all files: they belong to tasks
 * of the parent. */
void shared_files_lock(void);
void shared_files_unlock(void);
void shared_files_reset_in_child(void);

#endif
