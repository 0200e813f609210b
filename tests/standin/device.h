/* Device memory without a device: the part of the CUDA stand-in that knows nothing of Python
 * (contract of device.c; cuda.c calls it).
 *
 * Device memory is address space nobody may touch (a host access is SIGSEGV, as with real device
 * pointers); its contents are in a memfd at the offset that equals the address, so they count
 * neither as resident memory of the process nor as malloc or mmap calls of the job. Managed and
 * pinned memory is mapped. Everything is done at once: streams have no order to wait for.
 *
 * Any thread may call, with or without the GIL. Results: 0 or a cudaError_t number.
 */
#ifndef STANDIN_DEVICE_H
#define STANDIN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_INITIALIZATION = 3,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101
};
/* cudaMemoryType */
typedef enum { MEMORY_UNREGISTERED, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED } memory_kind;

typedef struct { /* cudaMemPool_t: bytes only, no fragmentation */
    int in_use, device;
    int64_t used, used_high, cached, reserved_high, release_threshold;
} memory_pool;

/* Opens the board, claims a slot and reads CUDA_VISIBLE_DEVICES, as cuInit would; once per process.
 * Forked children of a process that has used it get CUDA_INITIALIZATION, as from the real one. */
int device_ready(void);
int device_count(void);
int device_physical(int device); /* index on the board; device < device_count() */
void device_memory(int device, int64_t *free_bytes, int64_t *total_bytes);
void device_launched(void);

int device_malloc(int device, memory_kind kind, memory_pool *pool, size_t bytes, intptr_t *address);
int device_free(intptr_t address);
memory_kind device_find(intptr_t address, int *device); /* inner addresses, too */
int device_copy(intptr_t to, intptr_t from, size_t bytes);
int device_fill(intptr_t to, int value, size_t bytes);

memory_pool *pool_default(int device);
memory_pool *pool_create(int device);
void pool_trim(memory_pool *pool, int64_t keep_bytes);
/* the moment at which pools give back what is above their threshold */
void device_synchronize(void);

#endif
