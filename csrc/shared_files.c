#define _GNU_SOURCE
#include "shared_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "accounts.h"

#define PAGE 4096

word shared_files_known, shared_files_mapped;

struct file {
    struct shared_file_id id;
    task_handle owner;
    uint64_t charged; /* the sum of its extents */
    uint64_t page;    /* bytes of a page: hugetlbfs has large ones */
    uint32_t mappings;
    int unlinked;
};

/* Addresses that are mapped, and the place in the file. */
struct mapping {
    uintptr_t from, to;
    uint64_t offset;
    uint32_t file;
};

/* A part of a file that is charged. */
struct extent {
    uint64_t from, to;
    uint32_t file;
};

static struct {
    pthread_mutex_t mutex;
    struct file files[SHARED_FILES];
    uint32_t file_count; /* entries are used again, but never become free */
    uint32_t next_to_forget;
    int has_forgotten;                        /* a file was forgotten because there was no room */
    struct mapping mappings[SHARED_MAPPINGS]; /* sorted by address, disjoint */
    uint32_t mapping_count;
    struct extent extents[SHARED_EXTENTS]; /* sorted by file and offset, disjoint */
    uint32_t extent_count;
} table = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void forget_all(void)
{
    memset(table.files, 0, table.file_count * sizeof *table.files);
    table.file_count = table.next_to_forget = table.mapping_count = table.extent_count = 0;
    table.has_forgotten = 0;
    store_relaxed(&shared_files_known, 0);
    store_relaxed(&shared_files_mapped, 0);
}

void shared_files_open(void)
{
    pthread_mutex_lock(&table.mutex);
    forget_all();
    pthread_mutex_unlock(&table.mutex);
}

/* -- extents: what of a file is charged -- */

/* Index of the first extent of the file that ends at the offset or after it, or the place for it.
 */
static uint32_t first_extent(uint32_t file, uint64_t offset)
{
    uint32_t low = 0, high = table.extent_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const struct extent *e = &table.extents[middle];
        if (e->file < file || (e->file == file && e->to < offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts `count` (0 or 1) extents in the place of those from `begin` to before `end`. */
static void replace_extents(uint32_t begin, uint32_t end, const struct extent *by, uint32_t count)
{
    memmove(&table.extents[begin + count], &table.extents[end],
            (table.extent_count - end) * sizeof *by);
    if (count) table.extents[begin] = *by;
    table.extent_count = table.extent_count - (end - begin) + count;
}

static void change_charge(struct file *f, int64_t bytes)
{
    f->charged += (uint64_t)bytes;
    if (bytes) accounts_charge(f->owner, bytes);
}

/* Charges what was not yet charged of this part. Returns the bytes for which there is no room. */
static uint64_t charge_part(uint32_t file, uint64_t from, uint64_t to)
{
    struct extent whole = { from, to, file };
    const uint32_t begin = first_extent(file, from);
    uint32_t end = begin;
    uint64_t known = 0;
    for (; end < table.extent_count; end++) {
        const struct extent *e = &table.extents[end];
        if (e->file != file || e->from > to) break;
        known += (e->to < to ? e->to : to) - (e->from > from ? e->from : from);
        if (e->from < whole.from) whole.from = e->from;
        if (e->to > whole.to) whole.to = e->to;
    }
    if (begin == end && table.extent_count == SHARED_EXTENTS) return to - from;
    replace_extents(begin, end, &whole, 1);
    change_charge(&table.files[file], (int64_t)(to - from - known));
    return 0;
}

/* Credits what lies behind the offset. */
static void credit_from(uint32_t file, uint64_t offset)
{
    uint32_t begin = first_extent(file, offset), end = begin;
    int64_t bytes = 0;
    for (; end < table.extent_count && table.extents[end].file == file; end++) {
        struct extent *e = &table.extents[end];
        const uint64_t from = e->from > offset ? e->from : offset;
        bytes += (int64_t)(e->to - from);
        if (e->from < offset) e->to = offset, begin = end + 1;
    }
    replace_extents(begin, end, NULL, 0);
    change_charge(&table.files[file], -bytes);
}

/* -- files -- */

static uint64_t round_up(uint64_t n, uint64_t page) { return (n + page - 1) / page * page; }

/* The entry's number, or SHARED_FILES. */
static uint32_t find_file(uint64_t device, uint64_t inode)
{
    for (uint32_t i = 0; i < table.file_count; i++)
        if (table.files[i].id.inode == inode && table.files[i].id.device == device) return i;
    return SHARED_FILES;
}

/* An entry that was never used, or that of a file without bytes: rather of one without a name.
 * SHARED_FILES if all files have bytes. */
static uint32_t find_room(void)
{
    if (table.file_count < SHARED_FILES) {
        store_relaxed(&shared_files_known, table.file_count + 1);
        return table.file_count++;
    }
    for (int any = 0; any < 2; any++)
        for (uint32_t tries = 0; tries < SHARED_FILES; tries++) {
            const uint32_t i = table.next_to_forget;
            const struct file *f = &table.files[i];
            table.next_to_forget = (i + 1) % SHARED_FILES;
            if (f->mappings || f->charged || (!any && !f->unlinked)) continue;
            table.has_forgotten |= any;
            return i;
        }
    table.has_forgotten = 1;
    return SHARED_FILES;
}

/* The size of a page of the file, or 0 if the file is not in memory. */
static uint64_t page_of(int fd, dev_t device)
{
    /* Devices that are known to be others. A network's file system may ask its server. */
    static word others[8], next;
    struct statfs s;
    if (major(device)) return 0; /* a disk */
    for (int i = 0; i < 8; i++)
        if (load_relaxed(&others[i]) == device) return 0;
    if (fstatfs(fd, &s) < 0) return 0;
    if (s.f_type == HUGETLBFS_MAGIC) return (uint64_t)s.f_bsize;
    if (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC) return PAGE;
    store_relaxed(&others[add_relaxed(&next, 1) % 8], device);
    return 0;
}

/* A file that nobody can reach any more through this process, as far as is known. */
static void credit_if_gone(uint32_t file)
{
    const struct file *f = &table.files[file];
    if (f->unlinked && !f->mappings && f->charged) credit_from(file, 0);
}

void shared_files_created(int fd, int is_new, task_handle creator)
{
    struct stat s;
    if (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode) || (!is_new && s.st_size)) return;
    const uint64_t page = page_of(fd, s.st_dev);
    if (!page) return;
    pthread_mutex_lock(&table.mutex);
    uint32_t i = find_file(s.st_dev, s.st_ino);
    if (i < SHARED_FILES)
        credit_from(i, 0); /* emptied, or a later file with an inode of the same number */
    else
        i = find_room();
    if (i < SHARED_FILES && !table.files[i].mappings)
        table.files[i] = (struct file){ .id = { s.st_dev, s.st_ino },
                                        .owner = creator,
                                        .page = page,
                                        .unlinked = s.st_nlink == 0 };
    pthread_mutex_unlock(&table.mutex);
}

int shared_files_find_last_name(int directory, const char *path, struct shared_file_id *id)
{
    struct stat s;
    if (fstatat(directory, path, &s, AT_SYMLINK_NOFOLLOW) < 0 || s.st_nlink != 1) return 0;
    *id = (struct shared_file_id){ s.st_dev, s.st_ino };
    return S_ISREG(s.st_mode);
}

void shared_files_unlinked(struct shared_file_id id)
{
    pthread_mutex_lock(&table.mutex);
    const uint32_t i = find_file(id.device, id.inode);
    if (i < SHARED_FILES) {
        table.files[i].unlinked = 1;
        credit_if_gone(i);
    }
    pthread_mutex_unlock(&table.mutex);
}

uint64_t shared_files_resized(int fd)
{
    struct stat s;
    uint64_t lost = 0;
    if (fstat(fd, &s) < 0) return 0;
    pthread_mutex_lock(&table.mutex);
    const uint32_t i = find_file(s.st_dev, s.st_ino);
    if (i < SHARED_FILES) {
        const uint64_t size = round_up((uint64_t)s.st_size, table.files[i].page);
        credit_from(i, size);
        for (uint32_t n = 0; table.files[i].mappings && n < table.mapping_count; n++) {
            const struct mapping *m = &table.mappings[n];
            const uint64_t end = m->offset + (m->to - m->from);
            if (m->file == i && m->offset < size)
                lost += charge_part(i, m->offset, end < size ? end : size);
        }
    }
    pthread_mutex_unlock(&table.mutex);
    return lost;
}

/* -- mappings -- */

/* Index of the first mapping that ends after the address. */
static uint32_t first_ending_after(uintptr_t address)
{
    uint32_t low = 0, high = table.mapping_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (table.mappings[middle].to <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert_mapping(uint32_t i, struct mapping m)
{
    if (table.mapping_count == SHARED_MAPPINGS) return 0;
    memmove(&table.mappings[i + 1], &table.mappings[i], (table.mapping_count - i) * sizeof m);
    table.mappings[i] = m;
    store_relaxed(&shared_files_mapped, ++table.mapping_count);
    table.files[m.file].mappings++;
    return 1;
}

static void remove_mapping(uint32_t i)
{
    const uint32_t file = table.mappings[i].file;
    memmove(&table.mappings[i], &table.mappings[i + 1],
            (table.mapping_count - i - 1) * sizeof *table.mappings);
    store_relaxed(&shared_files_mapped, --table.mapping_count);
    table.files[file].mappings--;
    credit_if_gone(file);
}

static uint64_t remove_range(uintptr_t from, uintptr_t to)
{
    uint32_t i = first_ending_after(from);
    while (i < table.mapping_count && table.mappings[i].from < to) {
        struct mapping *m = &table.mappings[i];
        const struct mapping rest = { to, m->to, m->offset + (to - m->from), m->file };
        if (m->from >= from && m->to <= to) {
            remove_mapping(i);
        } else if (m->from >= from) {
            m->offset = rest.offset, m->from = to;
            break;
        } else {
            m->to = from, i++;
            /* a hole: two pieces remain */
            if (rest.to > to) return insert_mapping(i, rest) ? 0 : rest.to - to;
        }
    }
    return 0;
}

/* An older mapping there no longer exists: MAP_FIXED, or its munmap was not seen. */
static uint64_t add_mapping(uintptr_t address, uint64_t bytes, uint32_t file, uint64_t offset)
{
    const uint64_t lost = remove_range(address, address + bytes);
    const struct mapping m = { address, address + bytes, offset, file };
    if (!insert_mapping(first_ending_after(address), m)) return lost + bytes;
    return lost + charge_part(file, offset, offset + bytes);
}

uint64_t shared_files_map(uintptr_t address, uint64_t bytes, int fd, uint64_t offset,
                          uint64_t *charged)
{
    struct stat s;
    uint64_t lost = 0;
    *charged = 0;
    if (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode)) return 0;
    pthread_mutex_lock(&table.mutex);
    const uint32_t i = find_file(s.st_dev, s.st_ino);
    if (i < SHARED_FILES) {
        struct file *f = &table.files[i];
        const uint64_t before = f->charged;
        lost = add_mapping(address, round_up(bytes, f->page), i, offset);
        *charged = f->charged - before;
    } else {
        remove_range(address, address + bytes);
        /* perhaps one of those that were forgotten */
        if (table.has_forgotten && page_of(fd, s.st_dev)) lost = bytes;
    }
    pthread_mutex_unlock(&table.mutex);
    return lost;
}

uint64_t shared_files_unmap(uintptr_t address, uint64_t bytes)
{
    pthread_mutex_lock(&table.mutex);
    const uint64_t lost = remove_range(address, address + bytes);
    pthread_mutex_unlock(&table.mutex);
    return lost;
}

struct shared_part shared_files_begin_move(uintptr_t address, uint64_t bytes, int stays)
{
    struct shared_part part = { 0, 0 };
    pthread_mutex_lock(&table.mutex);
    const uint32_t i = first_ending_after(address);
    if (i < table.mapping_count && table.mappings[i].from <= address) {
        const struct mapping *m = &table.mappings[i];
        part = (struct shared_part){ m->file + 1, m->offset + (address - m->from) };
        table.files[m->file].mappings++; /* until shared_files_end_move */
        if (!stays) remove_range(address, address + bytes);
    }
    pthread_mutex_unlock(&table.mutex);
    return part;
}

uint64_t shared_files_end_move(struct shared_part part, uintptr_t address, uint64_t bytes)
{
    uint64_t lost = 0;
    const uint32_t file = part.file - 1;
    pthread_mutex_lock(&table.mutex);
    struct file *f = &table.files[file];
    if (f->mappings) { /* else all files were forgotten meanwhile */
        if (bytes) lost = add_mapping(address, round_up(bytes, f->page), file, part.offset);
        f->mappings--;
        credit_if_gone(file);
    }
    pthread_mutex_unlock(&table.mutex);
    return lost;
}

void shared_files_lock(void) { pthread_mutex_lock(&table.mutex); }
void shared_files_unlock(void) { pthread_mutex_unlock(&table.mutex); }

void shared_files_reset_in_child(void)
{
    pthread_mutex_init(&table.mutex, NULL);
    forget_all();
}
