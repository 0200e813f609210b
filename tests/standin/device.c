/* See device.h. Not covered: fragmentation, granules of 2 MiB, the context's own memory, eviction
 * of managed memory. */
#include "board.h"
#include "device.h"

#include <pthread.h>
#include <search.h>
#include <string.h>
#include <sys/syscall.h>

enum { POOLS = 64, PIECE = 65536 };
typedef struct {
    intptr_t address;
    size_t bytes;
    int device; /* visible index */
    memory_kind kind;
    memory_pool *pool;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static board *shared;
static board_slot *mine;
static int board_fd = -1, contents_fd = -1, claimed = -1, forked;
static int visible[BOARD_DEVICES], visible_count;
static void *blocks; /* tree of search.h, by address */
static memory_pool pools[POOLS];

/* ---- start and fork ---- */

static int parse_device(const char *text, size_t length)
{
    for (int i = 0; i < shared->devices; i++) {
        char index[16], uuid[48];
        snprintf(index, sizeof index, "%d", i);
        snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012d", i);
        if ((strlen(index) == length && !strncmp(text, index, length))
            || (strlen(uuid) == length && !strncmp(text, uuid, length)))
            return i;
    }
    return -1;
}

static void read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!text)
        for (; visible_count < shared->devices; visible_count++)
            visible[visible_count] = visible_count;
    /* up to the first that does not exist, as in the driver */
    while (text && *text && visible_count < BOARD_DEVICES) {
        size_t length = strcspn(text, ",");
        int device = parse_device(text, length);
        if (device < 0) break;
        visible[visible_count++] = device;
        text += length + (text[length] == ',');
    }
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void in_child(void)
{
    forked = claimed >= 0;              /* a context does not survive a fork */
    if (board_fd >= 0) close(board_fd); /* or this child would keep the parent's slot alive */
    board_fd = -1;
    if (!forked) shared = NULL;
    pthread_mutex_unlock(&lock);
}

static int start(void)
{
    static int registered;
    if (!registered++) pthread_atfork(before_fork, after_fork, in_child);
    if (!shared && !(shared = board_open(&board_fd))) return CUDA_INITIALIZATION;
    contents_fd = memfd_create("standin", MFD_CLOEXEC);
    if (contents_fd < 0 || ftruncate(contents_fd, (off_t)1 << 47)) return CUDA_INITIALIZATION;
    read_visible();
    for (int i = 0; i < (int)shared->devices; i++) pools[i].in_use = 1;
    for (int i = 0; i < visible_count; i++) pools[i].device = i;
    for (int i = 0; i < BOARD_SLOTS; i++)
        if (!board_claim(board_fd, i)) {
            mine = &shared->slot[i];
            memset(mine, 0, sizeof *mine);
            mine->pid = getpid();
            claimed = i;
            return CUDA_OK;
        }
    return CUDA_INITIALIZATION;
}

int device_ready(void)
{
    pthread_mutex_lock(&lock);
    int status = forked ? CUDA_INITIALIZATION : claimed >= 0 ? CUDA_OK : start();
    pthread_mutex_unlock(&lock);
    return status ? status : visible_count ? CUDA_OK : CUDA_NO_DEVICE;
}

int device_count(void) { return visible_count; }
int device_physical(int device) { return visible[device]; }
void device_launched(void) { mine->launches++; }

/* ---- accounts ---- */

static board_use *use(int device) { return &mine->use[visible[device]]; }

static int64_t occupied(int device)
{
    int64_t sum = use(device)->occupied_bytes;
    for (int i = 0; i < BOARD_SLOTS; i++) {
        int64_t bytes = shared->slot[i].use[visible[device]].occupied_bytes;
        if (i != claimed && bytes && board_owned(board_fd, i)) sum += bytes;
    }
    return sum;
}

void device_memory(int device, int64_t *free_bytes, int64_t *total_bytes)
{
    *total_bytes = shared->device[visible[device]].capacity_bytes;
    *free_bytes = *total_bytes - occupied(device);
    if (*free_bytes < 0) *free_bytes = 0; /* managed memory may exceed the device */
}

static int told_to_fail(board_device *device)
{
    int64_t left = device->fail_next;
    while (left > 0)
        if (atomic_compare_exchange_weak(&device->fail_next, &left, left - 1)) return 1;
    return 0;
}

static void trim(memory_pool *pool, int64_t keep_bytes)
{
    int64_t surplus = pool->used + pool->cached - keep_bytes;
    if (surplus > pool->cached) surplus = pool->cached;
    if (surplus <= 0) return;
    pool->cached -= surplus;
    use(pool->device)->occupied_bytes -= surplus;
}

static int occupy(int device, size_t bytes, memory_kind kind)
{
    board_device *own = &shared->device[visible[device]];
    if (told_to_fail(own)) return CUDA_OUT_OF_MEMORY;
    for (int attempt = 0;
         kind == MEMORY_DEVICE && occupied(device) + (int64_t)bytes > own->capacity_bytes;
         attempt++) {
        if (attempt) return CUDA_OUT_OF_MEMORY;
        for (int i = 0; i < POOLS; i++)
            if (pools[i].in_use && pools[i].device == device) trim(&pools[i], 0);
    }
    use(device)->occupied_bytes += bytes;
    return CUDA_OK;
}

static int occupy_from(memory_pool *pool, size_t bytes)
{
    int64_t reused = pool->cached < (int64_t)bytes ? pool->cached : (int64_t)bytes;
    pool->cached -= reused; /* first, or the search for room would trim it */
    int status = occupy(pool->device, bytes - reused, MEMORY_DEVICE);
    if (status) {
        pool->cached += reused;
        return status;
    }
    pool->used += bytes;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool->used + pool->cached > pool->reserved_high)
        pool->reserved_high = pool->used + pool->cached;
    return CUDA_OK;
}

/* ---- blocks ---- */

/* equal if one holds the other's address: finds inner addresses */
static int by_address(const void *a, const void *b)
{
    const block *left = a, *right = b;
    if (left->address + (intptr_t)left->bytes <= right->address) return -1;
    if (right->address + (intptr_t)right->bytes <= left->address) return 1;
    return 0;
}

static block *find(intptr_t address, size_t bytes)
{
    block key = { .address = address, .bytes = bytes ? bytes : 1 };
    block **node = tfind(&key, &blocks, by_address);
    return node ? *node : NULL;
}

/* By system call: a driver does not use the job's mmap, which a profiler may hook. */
static intptr_t map(size_t bytes, int access)
{
    return syscall(SYS_mmap, NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
}

int device_malloc(int device, memory_kind kind, memory_pool *pool, size_t bytes, intptr_t *address)
{
    if (!bytes || bytes > (size_t)1 << 46) return bytes ? CUDA_OUT_OF_MEMORY : CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int status = kind == MEMORY_HOST ? CUDA_OK
                 : pool              ? occupy_from(pool, bytes)
                                     : occupy(device, bytes, kind);
    if (!status) {
        block *new = malloc(sizeof *new);
        *address = map(bytes, kind == MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE);
        /* the machine has no address space left: no test can go on */
        if (!new || *address == -1) abort();
        *new = (block){ *address, bytes, device, kind, pool };
        tsearch(new, &blocks, by_address);
        if (kind == MEMORY_HOST)
            mine->pinned_bytes += bytes;
        else {
            use(device)->live_bytes += bytes;
            use(device)->mallocs++;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

int device_free(intptr_t address)
{
    pthread_mutex_lock(&lock);
    block *old = find(address, 1);
    if (!old || old->address != address) {
        pthread_mutex_unlock(&lock);
        return CUDA_INVALID_VALUE;
    }
    tdelete(old, &blocks, by_address);
    size_t pages = (old->bytes + 4095) & ~(size_t)4095;
    if (old->kind == MEMORY_DEVICE)
        fallocate(contents_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, address, pages);
    syscall(SYS_munmap, address, pages);
    if (old->kind == MEMORY_HOST)
        mine->pinned_bytes -= old->bytes;
    else {
        use(old->device)->live_bytes -= old->bytes;
        use(old->device)->frees++;
        if (old->pool) {
            old->pool->used -= old->bytes;
            old->pool->cached += old->bytes;
        } else
            use(old->device)->occupied_bytes -= old->bytes;
    }
    free(old);
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

memory_kind device_find(intptr_t address, int *device)
{
    pthread_mutex_lock(&lock);
    block *found = find(address, 1);
    memory_kind kind = found ? found->kind : MEMORY_UNREGISTERED;
    *device = found ? found->device : -2; /* cudaInvalidDeviceId */
    pthread_mutex_unlock(&lock);
    return kind;
}

/* ---- contents ---- */

/* 1: all of the range is device memory, 0: none of it, -1: a part. */
static int on_device(intptr_t address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    block *found = find(address, bytes);
    int inside = !found || found->kind != MEMORY_DEVICE ? 0
                 : address >= found->address && address + bytes <= found->address + found->bytes
                     ? 1
                     : -1;
    pthread_mutex_unlock(&lock);
    return inside;
}

static int put(intptr_t to, const char *from, size_t bytes)
{
    for (ssize_t done; bytes; to += done, from += done, bytes -= done)
        if ((done = pwrite(contents_fd, from, bytes, to)) <= 0) return CUDA_INVALID_VALUE;
    return CUDA_OK;
}

static int get(char *to, intptr_t from, size_t bytes)
{
    for (ssize_t done; bytes; to += done, from += done, bytes -= done)
        if ((done = pread(contents_fd, to, bytes, from)) <= 0) return CUDA_INVALID_VALUE;
    return CUDA_OK;
}

int device_copy(intptr_t to, intptr_t from, size_t bytes)
{
    int to_device = on_device(to, bytes), from_device = on_device(from, bytes), status = CUDA_OK;
    char piece[PIECE];
    if (to_device < 0 || from_device < 0) return CUDA_INVALID_VALUE;
    if (!from_device && to_device) return put(to, (const char *)from, bytes);
    if (from_device && !to_device) return get((char *)to, from, bytes);
    if (!from_device)
        memmove((char *)to, (const char *)from, bytes);
    else
        for (size_t done = 0, size; done < bytes && !status; done += size) {
            size = bytes - done < PIECE ? bytes - done : PIECE;
            status = get(piece, from + done, size);
            if (!status) status = put(to + done, piece, size);
        }
    return status;
}

int device_fill(intptr_t to, int value, size_t bytes)
{
    int to_device = on_device(to, bytes), status = CUDA_OK;
    char piece[PIECE];
    if (to_device < 0) return CUDA_INVALID_VALUE;
    if (!to_device)
        memset((char *)to, value, bytes);
    else if (!value && bytes)
        status = fallocate(contents_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, to, bytes)
                     ? CUDA_INVALID_VALUE
                     : CUDA_OK;
    else { /* zeros took no memory */
        memset(piece, value, bytes < PIECE ? bytes : PIECE);
        for (size_t done = 0; done < bytes && !status; done += PIECE)
            status = put(to + done, piece, bytes - done < PIECE ? bytes - done : PIECE);
    }
    return status;
}

/* ---- pools ---- */

memory_pool *pool_default(int device) { return &pools[device]; }

memory_pool *pool_create(int device)
{
    memory_pool *new = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < POOLS && !new; i++)
        if (!pools[i].in_use) new = &pools[i];
    if (new) *new = (memory_pool){ .in_use = 1, .device = device };
    pthread_mutex_unlock(&lock);
    return new;
}

void pool_trim(memory_pool *pool, int64_t keep_bytes)
{
    pthread_mutex_lock(&lock);
    trim(pool, keep_bytes);
    pthread_mutex_unlock(&lock);
}

void device_synchronize(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < POOLS; i++)
        if (pools[i].in_use && pools[i].cached) trim(&pools[i], pools[i].release_threshold);
    pthread_mutex_unlock(&lock);
}
