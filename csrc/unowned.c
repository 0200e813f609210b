#define _GNU_SOURCE
#include "unowned.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "board.h"

enum kind { KIND_UNKNOWN, KIND_COUNTED, KIND_NOT_COUNTED };

struct sum {
    word live, peak; /* int64_t */
};

static struct {
    struct sum native, python;
    word named, used; /* entries from UNOWNED_FIRST on: with a known kind, and in use */
    struct {
        struct sum sum;
        word kind, thread, name_len;
        char name[UNOWNED_NAME_MOST];
    } entries[UNOWNED_COUNT];
} unowned;

static void raise_to(word *peak, int64_t value)
{
    word old = load_relaxed(peak);
    while ((int64_t)old < value && !compare_exchange_weak_relaxed(peak, &old, (word)value)) {}
}

static void add(struct sum *s, int64_t bytes)
{
    const int64_t live = (int64_t)(add_relaxed(&s->live, (word)bytes)) + bytes;
    if (bytes > 0) raise_to(&s->peak, live);
}

uint32_t unowned_entry_of_thread(void)
{
    if (this_thread.unowned_entry) return this_thread.unowned_entry;
    word used = load_relaxed(&unowned.used), entry = UNOWNED_OTHERS;
    while (used < UNOWNED_OTHERS - UNOWNED_FIRST)
        if (compare_exchange_weak_relaxed(&unowned.used, &used, used + 1)) {
            entry = UNOWNED_FIRST + used;
            break;
        }
    store_release(&unowned.entries[entry].thread, (word)syscall(SYS_gettid));
    return this_thread.unowned_entry = (uint8_t)entry;
}

static enum kind kind_of(uint32_t entry)
{
    /* threads beyond the table are counted without a name */
    return entry == UNOWNED_OTHERS ? KIND_COUNTED
                                   : (enum kind)load_acquire(&unowned.entries[entry].kind);
}

void unowned_add(uint32_t entry, int64_t bytes)
{
    if (entry == UNOWNED_NATIVE) {
        add(&unowned.native, bytes);
    } else if (entry && entry < UNOWNED_COUNT) {
        const enum kind kind = kind_of(entry);
        if (kind == KIND_NOT_COUNTED) return;
        add(&unowned.entries[entry].sum, bytes);
        if (kind == KIND_COUNTED) add(&unowned.python, bytes);
    }
}

static struct unowned_sum end_window_of(struct sum *s)
{
    const int64_t live = (int64_t)load_relaxed(&s->live);
    const int64_t peak = (int64_t)exchange_relaxed(&s->peak, (word)live);
    return (struct unowned_sum){ live, peak > live ? peak : live };
}

struct unowned_window unowned_end_window(void)
{
    return (struct unowned_window){ end_window_of(&unowned.native),
                                    end_window_of(&unowned.python) };
}

/* -- names -- */

uint32_t unowned_next_unnamed(uint32_t *thread)
{
    const word used = load_relaxed(&unowned.used);
    if (load_relaxed(&unowned.named) == used) return 0;
    for (uint32_t i = UNOWNED_FIRST; i < UNOWNED_FIRST + used; i++) {
        *thread = (uint32_t)load_acquire(&unowned.entries[i].thread);
        if (*thread && load_relaxed(&unowned.entries[i].kind) == KIND_UNKNOWN) return i;
    }
    return 0;
}

void unowned_name(uint32_t entry, struct text name, int counts)
{
    if (entry < UNOWNED_FIRST || entry >= UNOWNED_OTHERS) return;
    const int64_t live = (int64_t)load_relaxed(&unowned.entries[entry].sum.live),
                  peak = (int64_t)load_relaxed(&unowned.entries[entry].sum.peak);
    word unknown = KIND_UNKNOWN;
    if (!compare_exchange_relaxed(&unowned.entries[entry].kind, &unknown,
                                  counts ? KIND_COUNTED : KIND_NOT_COUNTED))
        return;
    add_relaxed(&unowned.named, 1);
    if (!counts) return;
    const uint64_t len = text_clip(name.at, name.len, UNOWNED_NAME_MOST);
    memcpy(unowned.entries[entry].name, name.at, len);
    store_release(&unowned.entries[entry].name_len, len);
    /* what it took before its kind was known */
    const int64_t before = (int64_t)add_relaxed(&unowned.python.live, (word)live);
    raise_to(&unowned.python.peak, before + peak);
}

struct text unowned_largest_name(void)
{
    struct text largest = { NULL, 0 };
    int64_t most = 0;
    for (uint32_t i = UNOWNED_FIRST; i < UNOWNED_OTHERS; i++) {
        const int64_t peak = (int64_t)load_relaxed(&unowned.entries[i].sum.peak);
        if (load_acquire(&unowned.entries[i].kind) != KIND_COUNTED || peak <= most) continue;
        most = peak;
        largest =
            (struct text){ unowned.entries[i].name, load_acquire(&unowned.entries[i].name_len) };
    }
    return largest;
}

/* -- start, fork -- */

static void clear(struct sum *s) { store_relaxed(&s->live, 0), store_relaxed(&s->peak, 0); }

void unowned_open(void)
{
    clear(&unowned.native);
    clear(&unowned.python);
    for (uint32_t i = 0; i < UNOWNED_COUNT; i++) clear(&unowned.entries[i].sum);
}

void unowned_reset_in_child(void)
{
    memset(&unowned, 0, sizeof unowned);
    this_thread.unowned_entry = 0;
}
