#define _GNU_SOURCE
#include "layout.h"

#include <errno.h>
#include <string.h>

#define NAME(name) #name,
static const char *const live[] = { LIVE_FIELDS(NAME) NULL };
static const char *const slot[] = { SLOT_FIELDS(NAME) NULL };
static const char *const task[] = { TASK_FIELDS(NAME) NULL };
static const char *const text_list[] = { TASK_TEXTS(NAME) NULL };
static const char *const task_device[] = { TASK_DEVICE_FIELDS(NAME) NULL };
static const char *const oom[] = { OOM_FIELDS(NAME) NULL };
static const char *const device[] = { DEVICE_FIELDS(NAME) NULL };
static const char *const total[] = { TOTAL_FIELDS(NAME) NULL };
static const char *const total_device[] = { TOTAL_DEVICE_FIELDS(NAME) NULL };

static const struct {
    const char *name;
    const char *const *fields;
} known[LAYOUT_LISTS] = {
    [LAYOUT_LIVE] = { "live", live },
    [LAYOUT_SLOT] = { "slot", slot },
    [LAYOUT_TASK] = { "task", task },
    [LAYOUT_TEXT] = { "text", text_list },
    [LAYOUT_TASK_DEVICE] = { "task_device", task_device },
    [LAYOUT_OOM] = { "oom", oom },
    [LAYOUT_DEVICE] = { "device", device },
    [LAYOUT_TOTAL] = { "total", total },
    [LAYOUT_TOTAL_DEVICE] = { "total_device", total_device },
};

struct span {
    const char *at;
    uint64_t len;
};

static int equals(struct span s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.at, text, s.len);
}

/* The text from *at up to the separator or to `end`; *at moves behind it. */
static struct span split_off(const char **at, const char *end, char separator)
{
    struct span found = { *at, 0 };
    const char *stop = memchr(*at, separator, (size_t)(end - *at));
    found.len = (uint64_t)((stop ? stop : end) - *at);
    *at = stop ? stop + 1 : end;
    return found;
}

static int index_of(const char *const *fields, struct span name)
{
    for (int i = 0; fields[i]; i++)
        if (equals(name, fields[i])) return i;
    return -1;
}

static int parse_fields(struct layout_map *map, const char *const *fields, const char *at,
                        const char *end)
{
    while (at < end) {
        struct span field = split_off(&at, end, ' ');
        if (field.len == 0 || map->count == LAYOUT_FIELDS_MOST) return -EINVAL;
        int found = index_of(fields, field);
        for (uint32_t i = 0; i < map->count; i++)
            if (found >= 0 && map->to[i] == found) return -EINVAL; /* named twice */
        map->to[map->count++] = (int16_t)found;
    }
    return 0;
}

int layout_parse(struct layout *l, const char *text, uint64_t len)
{
    const char *at = text, *end = text + strnlen(text, len);
    memset(l, 0, sizeof *l);
    while (at < end) {
        struct span line = split_off(&at, end, '\n');
        const char *fields = line.at, *line_end = line.at + line.len;
        struct span name = split_off(&fields, line_end, ' ');
        if (equals(name, "frames"))
            l->packed = line_end - fields == 6 && !memcmp(fields, "packed", 6);
        for (int i = 0; i < LAYOUT_LISTS; i++) {
            struct layout_map *map = &l->lists[i];
            if (!equals(name, known[i].name)) continue;
            if (map->count || parse_fields(map, known[i].fields, fields, line_end) < 0)
                return -EINVAL;
        }
    }
    const struct layout_map *tasks = &l->lists[LAYOUT_TASK];
    return tasks->count >= 2 && tasks->to[0] == 0 && tasks->to[1] == 1 ? 0 : -EINVAL;
}

void layout_copy(const struct layout *l, enum layout_list list, const word *from, word *to,
                 uint32_t words)
{
    const struct layout_map *map = &l->lists[list];
    for (uint32_t i = 0; i < words; i++) to[i] = ABSENT;
    for (uint32_t i = 0; i < map->count; i++)
        if (map->to[i] >= 0 && (uint32_t)map->to[i] < words) to[map->to[i]] = from[i];
}

const char *const *layout_names(enum layout_list list) { return known[list].fields; }
