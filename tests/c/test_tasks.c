/* Tasks on a real board: nesting, overlap, windows with known peaks, misuse, 64 threads at once. */
#include "check.h"
#include "accounts.h"
#include "board_read.h"
#include "tasks.h"

#include <pthread.h>
#include <sys/mman.h>

#define MIB (UINT64_C(1) << 20)

static const char *root;
static struct board board;
static struct tasks tasks = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void open_all(void)
{
    uint64_t max;
    const char *step;
    root = scratch();
    struct board_settings s = { .directory = root, .pid = (uint64_t)getpid() };
    CHECK(board_create(&board, &s, &step) == 0 && board_grow(&board, &step) == 0);
    rss_open(&tasks.rss, "/proc", 0, &max);
    tasks_open(&tasks, &board, 0);
}

static void close_all(void)
{
    tasks_close(&tasks, 0);
    board_unmap(&board, 1);
    remove_tree(root);
}

static task_handle begin(const char *name)
{
    struct task_begin b = { .name = { name, strlen(name) },
                            .input_bytes = ABSENT,
                            .reason = REASON_NONE };
    return tasks_begin(&tasks, &b, NULL);
}

static void end(task_handle task)
{
    tasks_end(&tasks, task, &(struct task_end){ .state = TASK_OK, .output_bytes = ABSENT }, NULL);
}

/* The last record whose name begins with `letter`. Its texts stand until the next call. */
static struct record last_record(char letter)
{
    static char frames[1 << 16] __attribute__((aligned(8))),
        kept[FRAME_BYTES_MOST] __attribute__((aligned(8)));
    static char names[1 << 16] __attribute__((aligned(8)));
    struct record found = { .task = { 0 } };
    struct board_reader r;
    uint64_t position = 0, heap = 0;
    int64_t bytes;
    CHECK(board_reader_open(&r, board.path) == 0
          && board_read_texts(&r, &heap, names, sizeof names) >= 0);
    while ((bytes = board_read_records(&r, &position, frames, sizeof frames, UINT64_MAX)) > 0) {
        uint64_t size;
        for (int64_t at = 0; at < bytes; at += (int64_t)size) {
            struct record one;
            size = frame_valid_bytes(&r.layout, frames + at, (uint64_t)(bytes - at));
            CHECK(frame_unpack(&r.layout, frames + at, &one) == 0);
            const char *name = names;
            for (uint64_t i = 0; i < one.numbers[TEXT_name] && one.numbers[TEXT_name] != ABSENT;
                 i++)
                name += 8 + (*(const uint32_t *)name + 7) / 8 * 8;
            if (one.numbers[TEXT_name] != ABSENT)
                one.texts[TEXT_name] = (struct text){ name + 8, *(const uint32_t *)name };
            if (one.texts[TEXT_name].len == 0 || *one.texts[TEXT_name].at != letter) continue;
            memcpy(kept, frames + at, size);
            CHECK(frame_unpack(&r.layout, kept, &found) == 0);
            found.texts[TEXT_name] = one.texts[TEXT_name];
        }
    }
    board_reader_close(&r);
    CHECK(found.task.seq > 0);
    return found;
}

static struct task_fields last_task_fields(char letter) { return last_record(letter).task; }

static void spike(uint64_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t i = 0; i < bytes; i += 4096) p[i] = 1;
    munmap(p, bytes);
}

static int grew(char letter, uint64_t bytes)
{
    struct task_fields f = last_task_fields(letter);
    uint64_t growth = f.rss_peak_bytes - f.rss_before_bytes, error = 3 * tasks.rss.error_bytes;
    if (SANITIZED) return growth + error >= bytes;
    if (growth + error >= bytes && growth <= bytes + error) return 1;
    fprintf(stderr, "task %c grew by %lu, not %lu\n", letter, growth, bytes);
    return 0;
}

static void nested_tasks_have_their_own_windows(void)
{
    open_all();
    spike(200 * MIB);
    task_handle outer = begin("outer");
    spike(80 * MIB);
    task_handle inner = begin("inner");
    spike(30 * MIB);
    end(inner);
    spike(10 * MIB);
    task_handle second = begin("second");
    end(second);
    end(outer);
    CHECK(grew('o', 80 * MIB) && grew('i', 30 * MIB) && grew('s', 0));
    CHECK(last_task_fields('i').parent == last_task_fields('o').serial
          && last_task_fields('o').parent == 0);
    CHECK(last_task_fields('o').overlap == 0 && last_task_fields('i').overlap == 0);
    CHECK(last_task_fields('i').seq == 1 && last_task_fields('s').seq == 2
          && last_task_fields('o').seq == 3);
    close_all();
}

static pthread_barrier_t step;

static void *neighbour(void *unused)
{
    task_handle b = begin("b"); /* begins after a's first spike */
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step); /* a spikes 60 */
    spike(20 * MIB);
    end(b);
    pthread_barrier_wait(&step);
    return unused;
}

static void overlapping_tasks_have_their_own_windows(void)
{
    pthread_t thread;
    open_all();
    spike(200 * MIB);
    pthread_barrier_init(&step, NULL, 2);
    task_handle a = begin("a");
    spike(120 * MIB); /* only a's */
    pthread_create(&thread, NULL, neighbour, NULL);
    pthread_barrier_wait(&step);
    spike(60 * MIB); /* both */
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    task_handle c = begin("c"); /* b is over */
    spike(5 * MIB);
    end(c);
    end(a);
    pthread_join(thread, NULL);
    CHECK(grew('a', 120 * MIB) && grew('b', 60 * MIB) && grew('c', 5 * MIB));
    CHECK(last_task_fields('a').overlap == 1 && last_task_fields('b').overlap == 1
          && last_task_fields('c').overlap == 0);
    close_all();
}

static void ends_out_of_order(void)
{
    open_all();
    task_handle a = begin("a"), b = begin("b"); /* two coroutines in one thread */
    end(a);
    task_handle c = begin("c");
    end(b);
    end(c);
    CHECK(last_task_fields('c').parent == last_task_fields('b').serial);
    CHECK(tasks.busy_threads == 0 && tasks.running == 0 && tasks.vacant_count == SLOT_COUNT);
    close_all();
}

static void detach(task_handle task) { tasks_detach(&tasks, task, NULL); }

/* A task that is detached alone, in the middle of a nest, and around another one. */
static void detached_tasks(void)
{
    open_all();
    task_handle a = begin("a");
    detach(a);
    detach(a); /* no effect: it is a coroutine */
    CHECK(tasks.busy_threads == 1 && !is_somebody(this_thread.task));
    task_handle b = begin("b"); /* does not nest in it */
    CHECK(tasks.busy_threads == 2 && same_task(this_thread.task, b));
    end(a);
    CHECK(tasks.busy_threads == 1 && same_task(this_thread.task, b));
    task_handle c = begin("c"), d = begin("d"), e = begin("e");
    CHECK(tasks.busy_threads == 1);
    detach(c); /* in the middle: d and e run in b from here on */
    CHECK(tasks.busy_threads == 2 && same_task(this_thread.task, e));
    end(e);
    end(d);
    CHECK(same_task(lineage_current_task(), b));
    task_handle f = begin("f");
    CHECK(same_task(this_thread.task, f));
    detach(b); /* the outermost, which counts its thread: f counts it now */
    CHECK(tasks.busy_threads == 3);
    end(f);
    CHECK(tasks.busy_threads == 2 && !is_somebody(lineage_current_task()));
    end(c);
    end(b);
    detach(b); /* no effect: it has ended */
    detach(NOBODY);
    CHECK(tasks.busy_threads == 0 && tasks.running == 0 && tasks.vacant_count == SLOT_COUNT);
    CHECK(board.live->ends_unmatched == 0 && board.live->ends_elsewhere == 0);
    for (const char *letter = "abc"; *letter; letter++) {
        struct task_fields r = last_task_fields(*letter);
        CHECK(r.attribution == ATTRIBUTION_SHARED && r.attribution_reason == REASON_COROUTINE
              && r.state == TASK_OK && r.page_faults == ABSENT && r.alloc_peak_bytes == ABSENT);
    }
    for (const char *letter = "def"; *letter; letter++)
        CHECK(last_task_fields(*letter).attribution == ATTRIBUTION_EXACT);
    CHECK(last_task_fields('b').parent == 0 && last_task_fields('a').overlap == 1
          && last_task_fields('f').parent == last_task_fields('b').serial);
    close_all();
}

/* The memory of a detached task passes to the task around it, and so does that of tasks inside. */
static void memory_of_detached_tasks(void)
{
    open_all();
    tasks.accounting = 1;
    accounts_open();
    struct account_figures now;
    task_handle a = begin("a"), b = begin("b"), c = begin("c");
    accounts_charge(b, 100);
    accounts_charge(c, 10);
    detach(b);
    CHECK(accounts_task_now(b, &now) < 0 && accounts_task_now(c, &now) == 0
          && now.live_bytes == 10);
    accounts_charge(c, 5);
    CHECK(accounts_task_now(a, &now) == 0 && now.live_bytes == 115);
    accounts_charge(b, -100); /* freed after it was detached */
    CHECK(accounts_task_now(a, &now) == 0 && now.live_bytes == 15 && now.peak_bytes == 115);
    task_handle d = begin("d");
    accounts_charge(d, 1);
    CHECK(accounts_task_now(c, &now) == 0 && now.live_bytes == 16);
    end(d);
    end(c);
    task_handle e = begin("e");
    CHECK(same_task(lineage_parent(e), a));
    accounts_charge(e, 4);
    detach(e);
    accounts_charge(lineage_allocating_task(), 2);
    CHECK(accounts_task_now(a, &now) == 0 && now.live_bytes == 22);
    end(e);
    end(b);
    CHECK(accounts_task_now(a, &now) == 0 && now.live_bytes == 22);
    end(a);
    CHECK(tasks.busy_threads == 0 && tasks.running == 0);
    accounts_close();
    close_all();
}

static void *detach_pairs(void *unused)
{
    for (int i = 0; i < 300; i++) {
        task_handle a = begin("a"), b = begin("b");
        detach(i % 2 ? a : b);
        end(i % 3 ? a : b);
        end(i % 3 ? b : a);
    }
    return unused;
}

static void detaching_in_threads(void)
{
    pthread_t threads[8];
    open_all();
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, detach_pairs, NULL);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    CHECK(tasks.busy_threads == 0 && tasks.running == 0 && tasks.vacant_count == SLOT_COUNT);
    CHECK(board.live->records_written == 4800 && board.live->ends_unmatched == 0);
    close_all();
}

static task_handle elsewhere;
static void *end_elsewhere(void *unused)
{
    end(elsewhere);
    return unused;
}
static void *leave_open(void *unused)
{
    begin("left");
    begin("left too");
    tasks_thread_exit(&tasks);
    return unused;
}

static void misuse_is_counted(void)
{
    pthread_t thread;
    open_all();
    end(NOBODY);
    end(handle_from_serial(3, 12345, 0));
    task_handle a = begin("a");
    end(a);
    end(a);
    CHECK(board.live->ends_unmatched == 3);
    elsewhere = begin("z");
    pthread_create(&thread, NULL, end_elsewhere, NULL);
    pthread_join(thread, NULL);
    CHECK(board.live->ends_elsewhere == 1 && last_task_fields('z').state == TASK_OK);
    pthread_create(&thread, NULL, leave_open, NULL);
    pthread_join(thread, NULL);
    CHECK(board.live->ends_missing == 2 && last_task_fields('l').state == TASK_CANCELLED);
    CHECK(tasks.running == 0 && tasks.busy_threads == 0);
    close_all();
}

static void more_tasks_than_slots(void)
{
    task_handle handles[SLOT_COUNT + 3];
    open_all();
    for (int i = 0; i < SLOT_COUNT + 3; i++) handles[i] = begin("deep");
    CHECK(is_somebody(handles[SLOT_COUNT - 1]) && !is_somebody(handles[SLOT_COUNT])
          && board.live->tasks_dropped == 3);
    for (int i = 0; i < SLOT_COUNT; i++) end(handles[i]);
    CHECK(board.live->records_written == SLOT_COUNT && is_somebody(begin("again")));
    close_all();
}

static void hostile_texts(void)
{
    static char huge[100000];
    memset(huge, 'h', sizeof huge);
    open_all();
    struct task_begin b = { .name = { huge, sizeof huge },
                            .key = { huge, sizeof huge },
                            .inputs = { huge, sizeof huge },
                            .input_count = 9,
                            .reason = REASON_NONE };
    task_handle a = tasks_begin(&tasks, &b, NULL);
    tasks_end(&tasks, a, &(struct task_end){ .state = TASK_ERROR, .output = { huge, sizeof huge } },
              NULL);
    struct record f = last_record('h');
    CHECK(f.texts[TEXT_name].len == TASK_NAME_MOST && f.texts[TEXT_key_rest].len == TASK_KEY_MOST
          && f.texts[TEXT_inputs].len == 0);
    CHECK(f.task.inputs_omitted == 9 && f.texts[TEXT_output].len == 0);
    b = (struct task_begin){ .name = { "x\0\n\xff", 4 }, .reason = REASON_NONE };
    end(tasks_begin(&tasks, &b, NULL));
    CHECK(last_record('x').texts[TEXT_name].len == 4);
    b = (struct task_begin){ .name = { huge, TASK_NAME_MOST },
                             .key = { huge, TASK_KEY_MOST },
                             .inputs = { huge, TASK_INPUTS_MOST },
                             .input_count = 1 };
    a = tasks_begin(&tasks, &b, NULL);
    /* the longest texts fit, except the output */
    tasks_end(&tasks, a, &(struct task_end){ .state = TASK_OK, .output = { huge, 1000 } }, NULL);
    f = last_record('h');
    CHECK(f.texts[TEXT_inputs].len == TASK_INPUTS_MOST && f.task.inputs_omitted == 0);
    close_all();
}

static int key_is(const struct record *r, const char *prefix, const char *rest)
{
    const struct text p = r->texts[TEXT_key_prefix], k = r->texts[TEXT_key_rest];
    return p.len == strlen(prefix) && !memcmp(p.at, prefix, p.len) && k.len == strlen(rest)
           && !memcmp(k.at, rest, k.len);
}

/* The recurring part of a key, inputs and output are interned when they are met again. */
static void texts_that_recur(void)
{
    const char *keys[][3] = { { "('sum-3fa9', 0, 1)", "('sum-3fa9'", ", 0, 1)" },
                              { "inc-8b3c", "inc-", "8b3c" },
                              { "plain", "", "plain" },
                              { "('", "", "('" },
                              { "", "", "" } };
    open_all();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct task_begin b = { .name = { "k", 1 },
                                .key = { keys[i][0], strlen(keys[i][0]) },
                                .inputs = { "[1]", 3 },
                                .reason = REASON_NONE };
        const struct task_end e = { .state = TASK_OK,
                                    .output = { "{}", 2 },
                                    .output_bytes = ABSENT };
        tasks_end(&tasks, tasks_begin(&tasks, &b, NULL), &e, NULL);
        struct record first = last_record('k');
        CHECK(key_is(&first, keys[i][1], keys[i][2]));
        tasks_end(&tasks, tasks_begin(&tasks, &b, NULL), &e, NULL);
        struct record second = last_record('k');
        CHECK((second.numbers[TEXT_key_prefix] != ABSENT) == (*keys[i][1] != 0)
              && second.numbers[TEXT_key_rest] == ABSENT);
        CHECK(second.numbers[TEXT_inputs] != ABSENT && second.numbers[TEXT_output] != ABSENT
              && second.numbers[TEXT_name] == 0);
    }
    close_all();
}

static int params_are(const struct record *r, const char *names, uint64_t names_len,
                      const char *values, uint64_t values_len)
{
    const struct text n = r->texts[TEXT_params], v = r->texts[TEXT_params_values];
    return (r->numbers[TEXT_params] != ABSENT
            || (n.len == names_len && !memcmp(n.at, names, names_len)))
           && r->numbers[TEXT_params_values] == ABSENT && v.len == values_len
           && !memcmp(v.at, values, values_len);
}

/* The names of parameters are interned when they are met again, their values never. Both are left
 * out if they are longer than params.c writes, or if other texts take the room. */
static void parameters(void)
{
    static char huge[4096];
    memset(huge, 'h', sizeof huge);
    open_all();
    struct task_begin b = { .name = { "p", 1 },
                            .params = { "[\"n\"]", 5 },
                            .params_values = { "\x21\x05", 2 } };
    for (int i = 0; i < 3; i++) {
        end(tasks_begin(&tasks, &b, NULL));
        const struct record r = last_record('p');
        CHECK(params_are(&r, "[\"n\"]", 5, "\x21\x05", 2)
              && (r.numbers[TEXT_params] != ABSENT) == (i > 0));
    }
    const word texts_end = load_acquire(&board.live->texts_end);
    char value[] = "\x21\x05";
    b.params_values.at = value;
    for (int i = 0; i < 1000; i++) {
        value[1] = (char)(i % 200);
        end(tasks_begin(&tasks, &b, NULL));
        end(tasks_begin(&tasks, &b, NULL));
    }
    CHECK(load_acquire(&board.live->texts_end) == texts_end);
    struct record r;
    b = (struct task_begin){ .name = { "q", 1 }, .params = { huge, PARAMS_NAMES_MOST + 1 } };
    end(tasks_begin(&tasks, &b, NULL));
    r = last_record('q');
    CHECK(params_are(&r, "", 0, "", 0));
    /* the longest fit a record, but not together with the longest of all other texts */
    b = (struct task_begin){ .name = { "q", 1 },
                             .params = { huge, PARAMS_NAMES_MOST },
                             .params_values = { huge, PARAMS_VALUES_MOST } };
    end(tasks_begin(&tasks, &b, NULL));
    r = last_record('q');
    CHECK(params_are(&r, huge, PARAMS_NAMES_MOST, huge, PARAMS_VALUES_MOST));
    b = (struct task_begin){ .name = { huge, TASK_NAME_MOST },
                             .key = { huge, TASK_KEY_MOST },
                             .inputs = { huge, TASK_INPUTS_MOST },
                             .params = { huge, PARAMS_NAMES_MOST },
                             .params_values = { huge, PARAMS_VALUES_MOST } };
    end(tasks_begin(&tasks, &b, NULL));
    r = last_record('h');
    CHECK(params_are(&r, "", 0, "", 0) && r.texts[TEXT_inputs].len == TASK_INPUTS_MOST);
    /* inputs that are known late: the frame has no room for all of them */
    static char late[TASK_INPUTS_MOST], names[PARAMS_NAMES_MOST];
    memset(late, 'l', sizeof late);
    memset(names, 'n', sizeof names);
    b.inputs.len = 0;
    b.params.at = names;
    tasks_end(&tasks, tasks_begin(&tasks, &b, NULL),
              &(struct task_end){ .state = TASK_OK, .inputs = { late, sizeof late } }, NULL);
    r = last_record('h');
    CHECK(params_are(&r, "", 0, "", 0) && r.texts[TEXT_inputs].len == sizeof late
          && r.texts[TEXT_key_rest].len == TASK_KEY_MOST);
    close_all();
}

static void a_file_that_somebody_wrote_into(void)
{
    open_all();
    for (int i = 0; i < 120000; i++) end(begin("a")); /* the ring is full */
    memset(board.records, 0, RECORDS_BYTES);
    for (int i = 0; i < 1000; i++) end(begin("b"));
    task_handle c = begin("c");
    memset(&board.slots[handle_slot(c)].fields.name_len, 0x7f, 3 * sizeof(word));
    end(c);
    end(begin("d"));
    CHECK(last_task_fields('d').seq == 121002);
    close_all();
}

static void *fault(void *unused)
{
    spike(4 * MIB);
    return unused;
}

/* Page faults of the task's own thread: an outer task includes those of the inner one, but not
 * those of other threads. */
static void page_faults_of_the_own_thread(void)
{
    pthread_t thread;
    open_all();
    task_handle a = begin("a"), b = begin("b");
    spike(2 * MIB); /* less than a huge page, wherever it lies */
    end(b);
    pthread_create(&thread, NULL, fault, NULL);
    pthread_join(thread, NULL);
    end(a);
    const uint64_t outer = last_task_fields('a').page_faults,
                   inner = last_task_fields('b').page_faults;
    CHECK(inner >= 1 && outer >= inner && outer <= inner + 300
          && last_task_fields('a').major_page_faults <= outer);
    const struct task_begin detached = {
        .name = { "c", 1 }, .input_bytes = ABSENT, .reason = REASON_COROUTINE, .detached = 1
    };
    end(tasks_begin(&tasks, &detached, NULL));
    /* a coroutine has no thread of its own */
    CHECK(last_task_fields('c').page_faults == ABSENT
          && last_task_fields('c').major_page_faults == ABSENT);
    close_all();
}

static int release_count;
static void count_release(struct hold *h)
{
    (void)h;
    release_count++;
}

/* The caller's lock is released once before a slow step, and not otherwise. */
static void what_the_caller_holds(void)
{
    open_all();
    const struct task_begin b = { .name = { "a", 1 },
                                  .input_bytes = ABSENT,
                                  .reason = REASON_NONE };
    const struct task_end e = { .state = TASK_OK, .output_bytes = ABSENT };
    end(begin("warm"));
    for (int spikes = 0; spikes <= 1; spikes++) {
        struct hold h = { count_release, 0 };
        release_count = 0;
        task_handle a = tasks_begin(&tasks, &b, &h);
        /* memory did not move since the last boundary */
        CHECK(release_count == h.released && (SANITIZED || !h.released));
        if (spikes) spike(64 * MIB);
        tasks_end(&tasks, a, &e, &h);
        /* a reset waits for mmap_lock */
        CHECK(release_count == h.released
              && (SANITIZED || tasks.rss.source != RSS_KERNEL || h.released == spikes));
    }
    close_all();
}

#define THREADS 64
#define PAIRS   (SANITIZED ? 500 : 10000)

static void *pairs(void *unused)
{
    for (int i = 0; i < PAIRS; i++) {
        task_handle a = begin("a"), b = i % 4 == 0 ? begin("b") : NOBODY;
        if (is_somebody(b)) end(b);
        end(a);
    }
    tasks_thread_exit(&tasks);
    return unused;
}

static void sixty_four_threads(void)
{
    pthread_t threads[THREADS];
    open_all();
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, pairs, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    uint64_t expected = (uint64_t)THREADS * PAIRS + (uint64_t)THREADS * ((PAIRS + 3) / 4);
    CHECK(board.live->records_written == expected && board.live->tasks_begun == expected);
    CHECK(board.live->ends_missing == 0 && board.live->ends_unmatched == 0 && tasks.running == 0
          && tasks.busy_threads == 0);
    CHECK(board.live->boundary % 2 == 0 && board.live->boundary == 4 * expected);
    struct board_reader r;
    static struct total total;
    uint64_t counted = 0;
    CHECK(board_reader_open(&r, board.path) == 0);
    /* all of them, whatever the ring has lost */
    for (uint64_t i = 0; board_read_total(&r, i, &total) == 1; i++) counted += total.fields.ok;
    CHECK(counted == expected);
    board_reader_close(&r);
    close_all();
}

int main(void)
{
    RUN(nested_tasks_have_their_own_windows);
    RUN(overlapping_tasks_have_their_own_windows);
    RUN(ends_out_of_order);
    RUN(detached_tasks);
    RUN(memory_of_detached_tasks);
    RUN(detaching_in_threads);
    RUN(misuse_is_counted);
    RUN(more_tasks_than_slots);
    RUN(hostile_texts);
    RUN(texts_that_recur);
    RUN(parameters);
    RUN(a_file_that_somebody_wrote_into);
    RUN(page_faults_of_the_own_thread);
    RUN(what_the_caller_holds);
    RUN(sixty_four_threads);
    return failures;
}
