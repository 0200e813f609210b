/* Layouts: lists of the file and compiled ones, and texts that are no lists. */
#include "check.h"
#include "layout.h"

#include <errno.h>

static struct layout l;

static int parse(const char *text) { return layout_parse(&l, text, strlen(text)); }

static void the_compiled_layout(void)
{
    struct task_fields from, to;
    CHECK(parse(BOARD_LAYOUT) == 0 && l.packed);
    for (int list = 0; list < LAYOUT_LISTS; list++) {
        uint32_t i = 0;
        for (; layout_names(list)[i]; i++) CHECK(l.lists[list].to[i] == (int)i);
        CHECK(l.lists[list].count == i && i > 0);
    }
    for (uint32_t i = 0; i < sizeof from / sizeof(word); i++) ((word *)&from)[i] = i * 3;
    layout_copy(&l, LAYOUT_TASK, (const word *)&from, (word *)&to, sizeof to / sizeof(word));
    CHECK(!memcmp(&from, &to, sizeof to));
}

static void fewer_more_and_in_another_order(void)
{
    const word words[] = { 1, 2, 3, 4, 5 };
    struct task_fields task;
    CHECK(parse("frames packed\ntask serial seq overlap unheard thread\nunknown a b") == 0);
    layout_copy(&l, LAYOUT_TASK, words, (word *)&task, sizeof task / sizeof(word));
    CHECK(task.serial == 1 && task.seq == 2 && task.overlap == 3 && task.thread == 5
          && task.state == ABSENT);
    CHECK(l.lists[LAYOUT_LIVE].count == 0);
    CHECK(parse("frames fixed\ntask serial seq\n") == 0 && !l.packed);
    CHECK(parse("task serial seq") == 0 && !l.packed);
}

static void what_is_no_layout(void)
{
    char long_list[4096] = "task serial seq";
    CHECK(parse("") == -EINVAL && parse("task") == -EINVAL && parse("task serial") == -EINVAL);
    CHECK(parse("task seq serial") == -EINVAL && parse("task serial seq seq") == -EINVAL);
    CHECK(parse("task serial seq  thread") == -EINVAL
          && parse("task serial seq\ntask serial seq") == -EINVAL);
    for (int i = 0; i < LAYOUT_FIELDS_MOST; i++) strcat(long_list, " more");
    CHECK(parse(long_list) == -EINVAL);
    CHECK(layout_parse(&l, "task serial seq\0and more", 24) == 0
          && l.lists[LAYOUT_TASK].count == 2);
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) { /* no crash */
        char text[sizeof BOARD_LAYOUT] = BOARD_LAYOUT;
        for (int i = 0; i < 3; i++)
            text[(unsigned)rand_r(&seed) % sizeof text] = (char)rand_r(&seed);
        layout_parse(&l, text, sizeof text);
    }
}

int main(void)
{
    RUN(the_compiled_layout);
    RUN(fewer_more_and_in_another_order);
    RUN(what_is_no_layout);
    return failures;
}
