/* Interned texts: each once, from its second occurrence on, as long as there is space. */
#include "check.h"
#include "texts.h"

static char heap[TEXTS_BYTES] __attribute__((aligned(8)));
static word end_of_heap;
static struct texts texts;
static struct texts_index table;

static struct text text(const char *at) { return (struct text){ at, strlen(at) }; }

static void open_texts(void)
{
    memset(heap, 0, sizeof heap);
    end_of_heap = 0;
    texts_open(&texts, &table, heap, &end_of_heap);
}

static void from_the_second_time_on(void)
{
    open_texts();
    CHECK(texts_intern(&texts, TEXT_inputs, text("once")) == ABSENT && end_of_heap == 0);
    CHECK(texts_intern(&texts, TEXT_name, text("name")) == 0 && end_of_heap == 16);
    CHECK(texts_intern(&texts, TEXT_inputs, text("once")) == 1
          && texts_intern(&texts, TEXT_inputs, text("once")) == 1 && end_of_heap == 32);
    CHECK(*(uint32_t *)heap == 4 && !memcmp(heap + 8, "name\0\0\0", 8)
          && *(uint32_t *)(heap + 16) == 4 && !memcmp(heap + 24, "once", 4));
    CHECK(texts_intern(&texts, TEXT_inputs, text("")) == ABSENT);
    CHECK(texts_intern(&texts, TEXT_name, text("exactly 16 bytes")) == 2 && end_of_heap == 32 + 24);
    /* a name may be empty */
    CHECK(texts_intern(&texts, TEXT_name, text("")) == 3
          && texts_intern(&texts, TEXT_name, text("")) == 3);
}

static void no_more_than_there_is_room_for(void)
{
    static char name[TEXT_BYTES_MOST + 8];
    open_texts();
    for (uint32_t i = 0; i < TEXTS_MOST + 100; i++) {
        snprintf(name, sizeof name, "text %u", i);
        CHECK(texts_intern(&texts, TEXT_name, text(name)) == (i < TEXTS_MOST ? i : ABSENT));
    }
    /* those that are there are found */
    CHECK(texts_intern(&texts, TEXT_inputs, text("text 7")) == 7);
    open_texts();
    memset(name, 'x', sizeof name);
    uint64_t kept = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        memcpy(name, &i, sizeof i);
        kept += texts_intern(&texts, TEXT_name, (struct text){ name, TEXT_BYTES_MOST }) != ABSENT;
    }
    CHECK(kept == TEXTS_BYTES / (TEXT_BYTES_MOST + 8) && end_of_heap <= TEXTS_BYTES);
    CHECK(texts_intern(&texts, TEXT_name, (struct text){ name, TEXT_BYTES_MOST + 1 }) == ABSENT);
}

static void somebody_writes_into_the_file(void)
{
    open_texts();
    CHECK(texts_intern(&texts, TEXT_name, text("name")) == 0
          && texts_intern(&texts, TEXT_name, text("other")) == 1);
    memset(heap, 0xff, sizeof heap);
    /* interned again: lengths and offsets are not read from the board */
    CHECK(texts_intern(&texts, TEXT_name, text("name")) == 2);
}

int main(void)
{
    RUN(from_the_second_time_on);
    RUN(no_more_than_there_is_room_for);
    RUN(somebody_writes_into_the_file);
    return failures;
}
