#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"

uint64_t text_clip(const char *text, uint64_t len, uint64_t most)
{
    if (len <= most) return len;
    uint64_t at = most;
    while (at > 0 && most - at < 4 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
    return at;
}

static int open_directory(const char *path, const char **failed_step)
{
    struct stat st;
    *failed_step = "create the board directory";
    if (mkdir(path, 0700) < 0 && errno != EEXIST) return -errno;
    *failed_step = "open the board directory";
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -errno;
    *failed_step = "trust the board directory";
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 077)) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

/* The disk space is allocated first, so that a full disk does not become SIGBUS in the job. */
static void *map_part(int fd, uint64_t offset, uint64_t bytes, const char **failed_step)
{
    *failed_step = "allocate the board file";
    int e;
    do e = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    while (e == EINTR);
    if (e) return errno = e, NULL;
    *failed_step = "map the board file";
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    return map == MAP_FAILED ? NULL : map;
}

static void fill_header(struct board *b, const struct board_settings *s, uint64_t start_ns,
                        uint64_t epoch_ns)
{
    char *base = (char *)b->header;
    b->live = (struct board_live *)(base + LIVE_OFFSET);
    b->journal = (struct totals_journal *)(base + JOURNAL_OFFSET);
    b->facts = (struct facts *)(base + FACTS_OFFSET);
    b->devices = base + DEVICES_OFFSET;
    b->samples = (struct sample *)(base + SAMPLES_OFFSET);

    struct board_header *h = b->header;
    h->version = BOARD_VERSION;
    h->file_bytes = BOARD_BYTES;
    h->live_offset = LIVE_OFFSET;
    h->layout_offset = LAYOUT_OFFSET;
    h->layout_bytes = LAYOUT_BYTES;
    h->devices_offset = DEVICES_OFFSET;
    h->device_bytes = DEVICE_BYTES;
    h->device_count = DEVICE_COUNT;
    h->slots_offset = SLOTS_OFFSET;
    h->slot_bytes = SLOT_BYTES;
    h->slot_count = SLOT_COUNT;
    h->records_offset = RECORDS_OFFSET;
    h->records_bytes = RECORDS_BYTES;
    h->samples_offset = SAMPLES_OFFSET;
    h->sample_count = SAMPLE_COUNT;
    h->texts_offset = TEXTS_OFFSET;
    h->texts_bytes = TEXTS_BYTES;
    h->totals_offset = TOTALS_OFFSET;
    h->total_bytes = TOTAL_BYTES;
    h->total_count = TOTAL_COUNT;
    h->pid = s->pid;
    h->pid_namespace = s->pid_namespace;
    h->start_ticks = s->start_ticks;
    h->start_ns = start_ns;
    h->epoch_ns = epoch_ns;
    h->period_ns = s->period_ns;
    h->rss_before_bytes = s->rss_before_bytes;
    h->rss_error_bytes = s->rss_error_bytes;
    h->limit_bytes = s->limit_bytes;
#define COPY_TEXT(name, size) \
    if (s->name) memcpy(h->name, s->name, text_clip(s->name, strlen(s->name), size - 1));
    HEADER_TEXTS(COPY_TEXT)
#undef COPY_TEXT
    b->live->state = BOARD_OPEN;
    b->live->window_boundary = ABSENT;
    b->live->pinned_bytes = b->live->pinned_peak_bytes = ABSENT;
    b->live->headroom_bytes = ABSENT;
    memcpy(base + LAYOUT_OFFSET, BOARD_LAYOUT, sizeof BOARD_LAYOUT);
    h->magic = BOARD_MAGIC;
    h->check = board_header_checksum(h, (const word *)(base + LAYOUT_OFFSET));
    /* If the file has its name already, readers find no magic until the board is complete. */
    store_relaxed(&h->magic, 0);
    store_release(&h->magic, BOARD_MAGIC);
}

/* nameless: create a file without a name (O_TMPFILE), which some filesystems refuse. A process that
 * is killed before give_name then leaves no file. */
static int open_file(int directory, const char *name, int nameless)
{
#ifdef O_TMPFILE
    if (nameless) return openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
    return nameless
               ? -1
               : openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static int give_name(int fd, int directory, const char *name)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, directory, name, AT_SYMLINK_FOLLOW);
}

/* The file name has the pid and the time, because a process has several boards after exec, or after
 * stop and start. */
static int create_in(int directory, struct board *b, const struct board_settings *s, int nameless,
                     const char **failed_step)
{
    const uint64_t start_ns = now_ns(), epoch_ns = clock_ns(CLOCK_REALTIME);
    char name[128];
    snprintf(name, sizeof name, "%lu-%lu.board", s->pid, epoch_ns / 1000);
    *failed_step = "create the board file";
    int fd = open_file(directory, name, nameless), e = 0;
    if (fd < 0) return -errno;
    b->header = map_part(fd, 0, HEAD_BYTES, failed_step);
    if (b->header) {
        fill_header(b, s, start_ns, epoch_ns);
        snprintf(b->path, sizeof b->path, "%s/%s", s->directory, name);
        *failed_step = "create the board file";
        if (nameless && give_name(fd, directory, name) < 0)
            e = -errno, munmap(b->header, HEAD_BYTES);
    } else {
        e = -errno;
        if (!nameless) unlinkat(directory, name, 0);
    }
    close(fd);
    if (e < 0) b->header = NULL;
    return e;
}

int board_create(struct board *b, const struct board_settings *s, const char **failed_step)
{
    memset(b, 0, sizeof *b);
    int directory = open_directory(s->directory, failed_step);
    if (directory < 0) return directory;
    int e = create_in(directory, b, s, 1, failed_step);
    if (e < 0 && !strcmp(*failed_step, "create the board file"))
        e = create_in(directory, b, s, 0, failed_step);
    close(directory);
    return e;
}

int board_grow(struct board *b, const char **failed_step)
{
    *failed_step = "open the board file";
    int fd = open(b->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -errno;
    char *map = map_part(fd, SLOTS_OFFSET, BOARD_BYTES - SLOTS_OFFSET, failed_step);
    int e = map ? 0 : -errno;
    close(fd);
    if (e < 0) return e;
    b->records = map + (RECORDS_OFFSET - SLOTS_OFFSET);
    b->texts = map + (TEXTS_OFFSET - SLOTS_OFFSET);
    b->totals = map + (TOTALS_OFFSET - SLOTS_OFFSET);
    b->slots = (struct slot *)map;
    store_release(&b->live->room_for_tasks, 1);
    return 0;
}

void board_unmap(struct board *b, int remove)
{
    if (!b->header) return;
    if (remove) unlink(b->path);
    if (b->slots) munmap(b->slots, BOARD_BYTES - SLOTS_OFFSET);
    munmap(b->header, HEAD_BYTES);
    b->header = NULL;
    b->slots = NULL;
}

/* Moves the tail forward until `bytes` more fit behind the head. The tail is published before the
 * old frames are overwritten. */
static void drop_oldest_frames(struct board *b, uint64_t bytes)
{
    while (b->head + bytes - b->tail > RECORDS_BYTES) {
        const uint64_t at = b->tail % RECORDS_BYTES;
        const word head = *(const word *)(b->records + at);
        uint64_t frame = (uint32_t)head;
        if (head == FRAME_PAD)
            frame = RECORDS_BYTES - at;
        else if (frame == 0 || frame % 8 || frame > FRAME_BYTES_MOST)
            frame = b->head - b->tail; /* somebody wrote into the file: drop all frames */
        b->tail += frame;
    }
    store_release(&b->live->records_tail, b->tail);
}

void board_publish_frame(struct board *b, const char *frame, uint64_t bytes, uint64_t seq)
{
    uint64_t left = RECORDS_BYTES - b->head % RECORDS_BYTES;
    if (left < bytes) {
        drop_oldest_frames(b, left);
        store_release((word *)(b->records + b->head % RECORDS_BYTES), FRAME_PAD);
        b->head += left;
    }
    drop_oldest_frames(b, bytes);
    copy_release((word *)(b->records + b->head % RECORDS_BYTES), (const word *)frame,
                 bytes / sizeof(word));
    b->head += bytes;
    store_release(&b->live->records_head, b->head);
    store_release(&b->live->records_written, seq);
}

void board_publish_sample(struct board *b, const struct sample *s)
{
    word n = b->live->samples_written;
    copy_release((word *)&b->samples[n % SAMPLE_COUNT], (const word *)s, sizeof *s / sizeof(word));
    store_release(&b->live->samples_written, n + 1);
}

int board_publish_facts(struct board *b, const char *text, uint64_t len)
{
    struct facts *f = b->facts;
    word padded[sizeof f->text / sizeof(word)];
    if (len > sizeof padded) return -EMSGSIZE;
    memcpy(padded, text, len);
    memset((char *)padded + len, 0, (sizeof(word) - len % sizeof(word)) % sizeof(word));
    store_release(&f->turn, f->turn + 1);
    store_release(&f->len, len);
    copy_release((word *)f->text, padded, (len + sizeof(word) - 1) / sizeof(word));
    store_release(&f->turn, f->turn + 1);
    return 0;
}
