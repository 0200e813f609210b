/* Totals: sums and cells compared with arithmetic; a change that is cut off at any store is undone.
 */
#include "check.h"
#include "boards.h"
#include "totals.h"

#include <pthread.h>

static struct totals totals;
static char page[TOTAL_BYTES * TOTAL_COUNT] __attribute__((aligned(8)));
static struct totals_journal journal;
static struct totals_index table;
static word used;

static struct total *entry(uint32_t index) { return (struct total *)(page + index * TOTAL_BYTES); }

static void open_totals(void)
{
    memset(page, 0, sizeof page);
    totals_open(&totals, &table, page, &journal, &used);
}

static struct record task(uint64_t seq, uint64_t alloc, uint64_t growth)
{
    return (struct record){ .task = { .seq = seq,
                                      .state = TASK_OK,
                                      .rss_before_bytes = growth == ABSENT ? ABSENT : 1000,
                                      .rss_peak_bytes = 1000 + growth,
                                      .alloc_peak_bytes = alloc,
                                      .input_bytes = 10,
                                      .output_bytes = ABSENT,
                                      .duration_ns = seq * 1000,
                                      .overlap = seq % 3 } };
}

static void add(struct totals *t, uint64_t name, struct record *r)
{
    r->numbers[TEXT_name] = name;
    r->numbers[TEXT_operation] = ABSENT;
    totals_add(t, r);
}

static void cells(void)
{
    CHECK(totals_cell(0) == 0 && totals_cell(1024) == 0 && totals_cell(1025) == 1
          && totals_cell(1126) == 1 && totals_cell(1128) == 2);
    CHECK(totals_cell(2048) == 10 && totals_cell(2049) == 11
          && totals_cell(UINT64_C(1) << 40) == 300);
    CHECK(totals_cell((UINT64_C(1) << 40) + 1) == 301 && totals_cell(UINT64_MAX) == 301);
    uint32_t last = 0;
    for (uint64_t value = 1; value < UINT64_C(1) << 42; value += 1 + value / 97) {
        CHECK(totals_cell(value) >= last);
        last = totals_cell(value);
    }
}

static void sums(void)
{
    open_totals();
    CHECK(used == 1 && entry(0)->fields.name == ABSENT);
    uint64_t alloc = 0, most = 0;
    for (uint64_t seq = 1; seq <= 1000; seq++) {
        struct record r = task(seq, seq * 7919 % 100000, seq * 31);
        if (seq % 10 == 0) r.task.state = TASK_ERROR;
        if (seq % 25 == 0) r.task.state = TASK_CANCELLED, r.task.attribution = ATTRIBUTION_SHARED;
        add(&totals, seq % 2 ? 5 : 6, &r);
        if (seq % 2) alloc += seq * 7919 % 100000;
        if (seq % 2 && seq * 7919 % 100000 > most) most = seq * 7919 % 100000;
    }
    const struct total_fields *f = &entry(1)->fields;
    CHECK(used == 3 && f->name == 5 && entry(2)->fields.name == 6);
    CHECK(f->ok + f->error + f->cancelled == 500 && f->cancelled == 20 && f->shared == 20
          && entry(2)->fields.error == 80);
    CHECK(f->alloc_count == 500 && f->alloc_bytes == alloc && f->alloc_max_bytes == most
          && f->bare_count == 0);
    CHECK(f->growth_bytes == 31 * 250000 && f->growth_max_bytes == 31 * 999
          && f->rss_peak_max_bytes == 1000 + 31 * 999);
    CHECK(f->input_bytes == 5000 && f->output_bytes == 0 && f->duration_ns == 250000000
          && f->overlap_max == 2 && f->last_seq == 999);
    uint32_t in_cells = 0;
    for (int i = 0; i < TOTAL_CELLS; i++) in_cells += entry(1)->duration[i];
    CHECK(in_cells == 500 && f->turn % 2 == 0);
}

static void tasks_without_own_figures(void)
{
    open_totals();
    struct record r = task(1, ABSENT, 5 << 20);
    add(&totals, 0, &r);
    r = task(2, ABSENT, ABSENT);
    add(&totals, 0, &r);
    CHECK(entry(1)->fields.bare_count == 1 && entry(1)->fields.bare_bytes == 5 << 20
          && entry(1)->bare[2] == 1 && entry(1)->fields.alloc_count == 0);
    r = task(3, ABSENT, 4 << 20); /* an upper bound belongs to its cell */
    add(&totals, 0, &r);
    CHECK(entry(1)->bare[1] == 1 && entry(1)->fields.ok == 3);
}

static void names_beyond_the_most(void)
{
    open_totals();
    char name[16];
    for (uint64_t i = 0; i < 800; i++) { /* each name twice */
        struct record r = task(i + 1, 1, 1);
        r.texts[TEXT_name] =
            (struct text){ name, (uint64_t)snprintf(name, sizeof name, "%d", (int)i % 400) };
        add(&totals, i % 400, &r);
    }
    struct record r = task(801, 1, 1);
    r.texts[TEXT_name] = (struct text){ "new", 3 };
    add(&totals, ABSENT, &r); /* a name without a number */
    CHECK(entry(0)->fields.names == 400 - (TOTAL_COUNT - 1) + 1 && entry(1)->fields.names == 0);
    CHECK(used == TOTAL_COUNT && entry(0)->fields.ok == 2 * (400 - (TOTAL_COUNT - 1)) + 1
          && entry(0)->fields.name == ABSENT);
}

/* Five operations under one name are five entries; an operation without a number is counted in
 * `other`. */
static void operations(void)
{
    open_totals();
    for (uint64_t i = 0; i < 50; i++) {
        struct record r = task(i + 1, i, 1);
        r.numbers[TEXT_name] = 3;
        r.numbers[TEXT_operation] = i % 5 ? 10 + i % 5 : ABSENT;
        totals_add(&totals, &r);
    }
    CHECK(used == 6);
    for (uint32_t i = 1; i <= 5; i++)
        CHECK(entry(i)->fields.name == 3 && entry(i)->fields.ok == 10
              && entry(i)->fields.operation == (i == 1 ? ABSENT : 9 + i));
    struct record r = task(51, 1, 1);
    r.numbers[TEXT_name] = 3;
    r.numbers[TEXT_operation] = ABSENT;
    r.texts[TEXT_operation] = (struct text){ "new", 3 };
    totals_add(&totals, &r);
    CHECK(used == 6 && entry(0)->fields.ok == 1 && entry(0)->fields.names == 1);
}

static void devices(void)
{
    open_totals();
    for (uint64_t seq = 1; seq <= 10; seq++) {
        struct record r = task(seq, 1, 1);
        r.devices_known = 1;
        r.device_count = 2;
        r.devices[0] = (struct task_device){ .device = 1, .peak_bytes = seq };
        r.devices[1] = (struct task_device){ .device = 4, .peak_bytes = 100 };
        add(&totals, 0, &r);
    }
    const struct total_device *d = entry(1)->devices;
    CHECK(d[0].device == 1 && d[0].peak_bytes == 55 && d[0].peak_max_bytes == 10 && d[1].device == 4
          && d[1].peak_bytes == 1000 && d[2].device == 0);
}

/* As if the process had been killed in the middle: any part of the change may have been made. */
static void a_change_that_is_cut_off(void)
{
    unsigned seed = 1;
    for (int round = 0; round < 2000; round++) {
        open_totals();
        for (uint64_t seq = 1; seq <= 5; seq++) {
            struct record r = task(seq, round % 3 ? 5000 : ABSENT, 5000 + seq);
            if (round % 2)
                r.devices_known = 1, r.device_count = 1,
                r.devices[0] = (struct task_device){ .device = 1, .peak_bytes = seq };
            add(&totals, 0, &r);
        }
        struct total before, after, torn;
        memcpy(&before, entry(1), sizeof before);
        struct record r = task(6, round % 3 ? 5000 : ABSENT, 5006);
        if (round % 2)
            r.devices_known = 1, r.device_count = 1,
            r.devices[0] = (struct task_device){ .device = 1, .peak_bytes = 9 };
        add(&totals, 0, &r);
        memcpy(&after, entry(1), sizeof after);
        for (uint32_t i = 0; i < sizeof torn / sizeof(word); i++)
            ((word *)&torn)[i] = rand_r(&seed) % 2 ? ((word *)&before)[i] : ((word *)&after)[i];
        totals_undo(&journal, &torn);
        CHECK(!memcmp(&torn, &before, sizeof torn));
    }
}

static struct board shared;
static word writing;

static void *write_totals(void *unused)
{
    static struct totals t;
    totals_open(&t, &table, shared.totals, shared.journal, &shared.live->totals_used);
    for (uint64_t seq = 1; seq <= (SANITIZED ? 20000 : 500000); seq++) {
        struct record r = task(seq, 5000, 6000);
        add(&t, 0, &r);
    }
    store_release(&writing, 0);
    return unused;
}

static void a_reader_beside_a_writer_sees_whole_sums(void)
{
    static struct total found;
    struct board_reader r;
    pthread_t thread;
    uint64_t looks = 0;
    shared = open_board();
    CHECK(board_reader_open(&r, shared.path) == 0);
    store_release(&writing, 1);
    pthread_create(&thread, NULL, write_totals, NULL);
    for (int last = 0; !last;) {
        last = !load_acquire(&writing);
        if (board_read_total(&r, 1, &found) != 1) continue;
        const struct total_fields *f = &found.fields;
        CHECK(f->ok == f->last_seq && f->alloc_bytes == 5000 * f->ok && f->growth_count == f->ok
              && f->turn == 2 * f->ok);
        CHECK(found.alloc[totals_cell(5000)] == f->ok && found.growth[totals_cell(6000)] == f->ok
              && f->duration_max_ns == 1000 * f->ok);
        looks++;
    }
    pthread_join(thread, NULL);
    CHECK(looks > 0 && found.fields.ok == (SANITIZED ? 20000 : 500000));
    board_reader_close(&r);
    board_unmap(&shared, 1);
    remove_tree(root);
}

int main(void)
{
    RUN(cells);
    RUN(sums);
    RUN(tasks_without_own_figures);
    RUN(names_beyond_the_most);
    RUN(operations);
    RUN(devices);
    RUN(a_change_that_is_cut_off);
    RUN(a_reader_beside_a_writer_sees_whole_sums);
    return failures;
}
