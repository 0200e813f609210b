#include "check.h"
#include "unowned.h"
#include <pthread.h>

static uint32_t entry_seen;

static void *look(void *unused)
{
    (void)unused;
    entry_seen = unowned_entry_of_thread();
    CHECK(entry_seen == unowned_entry_of_thread());
    return NULL;
}

static uint32_t entry_of_another_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, look, NULL);
    pthread_join(thread, NULL);
    return entry_seen;
}

static struct text named(const char *name) { return (struct text){ name, strlen(name) }; }

static void native_threads_are_one_sum(void)
{
    unowned_reset_in_child();
    unowned_add(UNOWNED_NATIVE, 500);
    unowned_add(UNOWNED_NATIVE, -200);
    struct unowned_window w = unowned_end_window();
    CHECK(w.native.live == 300 && w.native.peak == 500 && w.python.peak == 0);
    w = unowned_end_window(); /* a new window begins at what is live */
    CHECK(w.native.live == 300 && w.native.peak == 300);
    unowned_add(0, 1000); /* not counted */
    CHECK(unowned_end_window().native.peak == 300);
}

static void a_thread_counts_once_its_name_is_known(void)
{
    uint32_t thread, entry;
    unowned_reset_in_child();
    CHECK(unowned_next_unnamed(&thread) == 0);
    entry = entry_of_another_thread();
    CHECK(entry == UNOWNED_FIRST && unowned_next_unnamed(&thread) == entry && thread != 0);
    unowned_add(entry, 700);
    unowned_add(entry, -100);
    CHECK(unowned_end_window().python.peak == 0);
    unowned_name(entry, named("zarr_io"), 1);
    CHECK(unowned_next_unnamed(&thread) == 0);
    struct unowned_window w = unowned_end_window(); /* with what it took before */
    CHECK(w.python.live == 600 && w.python.peak == 700);
    unowned_add(entry, 50);
    CHECK(unowned_end_window().python.peak == 650);
    struct text name = unowned_largest_name();
    CHECK(name.len == 7 && !memcmp(name.at, "zarr_io", 7));
    unowned_name(entry, named("again"), 1);
    CHECK(unowned_end_window().python.live == 650 && unowned_largest_name().len == 7);
}

static void known_threads_do_not_count(void)
{
    unowned_reset_in_child();
    uint32_t loop = entry_of_another_thread(), other = entry_of_another_thread(), thread;
    CHECK(loop != other);
    unowned_add(loop, 900);
    unowned_name(loop, named("IO loop"), 0);
    CHECK(unowned_next_unnamed(&thread) == other);
    unowned_name(other,
                 named("a name that is longer than there is room for in the entry of a thread"), 1);
    unowned_add(loop, 100);
    unowned_add(other, 10);
    CHECK(unowned_end_window().python.peak == 10);
    CHECK(unowned_largest_name().len == UNOWNED_NAME_MOST);
}

static void more_threads_than_entries(void)
{
    unowned_reset_in_child();
    for (uint32_t i = UNOWNED_FIRST; i < UNOWNED_OTHERS; i++) CHECK(entry_of_another_thread() == i);
    CHECK(entry_of_another_thread() == UNOWNED_OTHERS);
    CHECK(entry_of_another_thread() == UNOWNED_OTHERS);
    unowned_add(UNOWNED_OTHERS, 30); /* counted, without a name */
    CHECK(unowned_end_window().python.peak == 30);
    unowned_open();
    CHECK(unowned_end_window().python.peak == 0);
}

static void *add_and_subtract(void *unused)
{
    (void)unused;
    for (int i = 0; i < 20000; i++) unowned_add(UNOWNED_NATIVE, i % 2 ? -64 : 64);
    return NULL;
}

static void many_threads_at_once(void)
{
    pthread_t threads[4];
    unowned_reset_in_child();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, add_and_subtract, NULL);
    for (int i = 0; i < 1000; i++) {
        struct unowned_window w = unowned_end_window();
        CHECK(w.native.live >= 0 && w.native.peak >= w.native.live && w.native.peak <= 4 * 64);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(unowned_end_window().native.live == 0);
}

int main(void)
{
    RUN(native_threads_are_one_sum);
    RUN(a_thread_counts_once_its_name_is_known);
    RUN(known_threads_do_not_count);
    RUN(more_threads_than_entries);
    RUN(many_threads_at_once);
    return failures;
}
