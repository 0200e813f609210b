/* The owner table: blocks, mappings and their parts, many threads, and a second opening. */
#include "check.h"
#include "owners.h"

#include <pthread.h>

/* The table only stores the word, so any number will do. */
static task_handle owner_of(uint64_t n) { return handle_from_word(n); }

static void blocks(void)
{
    struct owned stale;
    CHECK(owners_open() == 0);
    CHECK(owners_insert(0x10000, 100, owner_of(7), &stale) == OWNERS_ADDED && owners_count() == 1);
    CHECK(owners_insert(0x10000, 200, owner_of(8), &stale) == OWNERS_REPLACED
          && handle_word(stale.owner) == 7 && stale.bytes == 100);
    struct owned o = owners_remove(0x10000);
    CHECK(o.found && handle_word(o.owner) == 8 && o.bytes == 200 && owners_count() == 0);
    CHECK(!owners_remove(0x10000).found);
}

static void a_hundred_thousand(void)
{
    struct owned stale;
    const uintptr_t strides[] = { 68 << 10, 20 << 10, (1 << 20) + 4096, 2 << 20, 1 << 16 };
    for (unsigned s = 0; s < sizeof strides / sizeof *strides; s++) {
        uint64_t full = 0, n = 100000;
        CHECK(owners_open() == 0);
        for (uint64_t i = 0; i < n; i++)
            full += owners_insert(0x7f0000000010 + i * strides[s], i, owner_of(i), &stale)
                    == OWNERS_FULL;
        CHECK(full == 0 && owners_count() == n);
        for (uint64_t i = 0; i < n; i++)
            CHECK(handle_word(owners_remove(0x7f0000000010 + i * strides[s]).owner) == i);
    }
    CHECK(owners_open() == 0);
    uint64_t full = 0;
    for (uint64_t i = 0; i < 1000; i++)
        full += owners_insert(0x100000 + i, 1, owner_of(1), &stale) == OWNERS_FULL;
    CHECK(full > 0 && owners_count() == 1000 - full); /* no block is lost without OWNERS_FULL */
}

static uint64_t freed_bytes, freed_owner;
static void freed(task_handle owner, int64_t bytes)
{
    freed_owner = handle_word(owner), freed_bytes += (uint64_t)bytes;
}

static void mappings_in_parts(void)
{
    CHECK(owners_open() == 0);
    task_handle owner = NOBODY;
    freed_bytes = 0;
    CHECK(owners_map(0x100000, 0x10000, owner_of(5), freed) == OWNERS_ADDED
          && owners_find_mapping(0x10ffff, &owner) && !owners_find_mapping(0x110000, &owner));
    owners_unmap(0x104000, 0x2000, freed); /* a hole */
    CHECK(freed_bytes == 0x2000 && freed_owner == 5 && !owners_find_mapping(0x105000, &owner)
          && owners_find_mapping(0x106000, &owner) && handle_word(owner) == 5);
    owners_unmap(0x0, 0x102000, freed); /* the front */
    CHECK(freed_bytes == 0x4000);
    /* over the rest of the first piece, and the hole */
    CHECK(owners_map(0x103000, 0x2000, owner_of(6), freed) == OWNERS_ADDED
          && freed_bytes == 0x5000);
    owners_unmap(0x0, 0x1000000, freed);
    CHECK(freed_bytes == 0x5000 + 0x1000 + 0x2000 + 0xa000);
    owners_unmap(0x0, 0x1000000, freed);
    CHECK(freed_bytes == 0x12000);
}

static void *churn(void *argument)
{
    struct owned stale;
    uintptr_t base = (uintptr_t)argument << 32;
    for (int round = 0; round < (SANITIZED ? 20 : 200); round++) {
        for (uintptr_t i = 1; i < 500; i++)
            CHECK(owners_insert(base + i * 70000, i, owner_of(base), &stale) == OWNERS_ADDED);
        for (uintptr_t i = 1; i < 500; i++) {
            struct owned o = owners_remove(base + i * 70000);
            CHECK(o.found && handle_word(o.owner) == base && o.bytes == i);
        }
    }
    return NULL;
}

static void threads(void)
{
    pthread_t t[8];
    CHECK(owners_open() == 0);
    for (uintptr_t i = 0; i < 8; i++) pthread_create(&t[i], NULL, churn, (void *)(i + 1));
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    CHECK(owners_count() == 0);
}

static word open_again;

static void *map_and_unmap(void *argument)
{
    uintptr_t base = (uintptr_t)argument << 32;
    while (load_acquire(&open_again))
        for (uintptr_t i = 1; i < 50; i++) {
            owners_map(base + i * 0x10000, 0x8000, owner_of(1), freed);
            if (i % 3) owners_unmap(base + i * 0x10000, 0x4000, freed);
        }
    return NULL;
}

/* A wrapper of the last start may use the table while it is opened again. */
static void opened_again_under_wrappers(void)
{
    pthread_t threads[3];
    store_release(&open_again, 1);
    for (uintptr_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, map_and_unmap, (void *)(i + 1));
    for (int i = 0; i < 500; i++) CHECK(owners_open() == 0);
    store_release(&open_again, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

int main(void)
{
    RUN(blocks);
    RUN(a_hundred_thousand);
    RUN(mappings_in_parts);
    RUN(threads);
    RUN(opened_again_under_wrappers);
    return failures;
}
