/* libnvidia-ml.so.1 without a driver: the functions that nvidia-ml-py (pynvml) and distributed
 * call, answered from the board (board.h).
 *
 * Covers init, devices and their names, memory, processes, utilisation (always 0), and the failures
 * that a test can choose at run time. Every other function is missing, which pynvml reports as
 * FUNCTION_NOT_FOUND. CUDA_VISIBLE_DEVICES is ignored, as by the real one. Memory in use is what
 * the living processes occupy through cuda.c; a real driver adds some hundred MiB per context.
 */
#include "board.h"

#include <pthread.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int
#define ENTER(...)                        \
    do {                                  \
        int status_ = enter(__VA_ARGS__); \
        if (status_) return status_;      \
    } while (0)

enum {
    OK,
    UNINITIALIZED,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    NO_PERMISSION,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15
};

typedef uintptr_t device; /* its index and one: a handle is not NULL */
typedef struct {
    unsigned long long total, free, used;
} memory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;
typedef struct {
    unsigned gpu, memory;
} utilization;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static board *shared;
static int board_fd, users;

static int enter(device d)
{ /* d: 1 for calls without a device */
    pthread_mutex_lock(&lock);
    int ready = users > 0;
    pthread_mutex_unlock(&lock);
    if (!ready) return UNINITIALIZED;
    if (shared->nvml_mode == NVML_LOST || shared->nvml_mode == NVML_NO_DRIVER) return GPU_IS_LOST;
    return d >= 1 && d <= (device)shared->devices ? OK : INVALID_ARGUMENT;
}

static int say(char *text, unsigned length, const char *format, int number)
{
    return snprintf(text, length, format, number) < (int)length ? OK : INSUFFICIENT_SIZE;
}

/* ---- library ---- */

API nvmlInit_v2(void)
{
    pthread_mutex_lock(&lock);
    if (!shared) shared = board_open(&board_fd); /* stays: other threads may hold it */
    int works = shared && shared->nvml_mode != NVML_NO_DRIVER && shared->nvml_mode != NVML_LOST;
    users += works;
    pthread_mutex_unlock(&lock);
    return works ? OK : DRIVER_NOT_LOADED;
}
API nvmlInit(void) { return nvmlInit_v2(); }
API nvmlInitWithFlags(unsigned flags) { return flags < 4 ? nvmlInit_v2() : INVALID_ARGUMENT; }

API nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int status = users ? OK : UNINITIALIZED;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return status;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int status)
{
    switch (status) {
        case OK:
            return "Success";
        case UNINITIALIZED:
            return "Uninitialized";
        case INVALID_ARGUMENT:
            return "Invalid Argument";
        case NOT_SUPPORTED:
            return "Not Supported";
        case NO_PERMISSION:
            return "Insufficient Permissions";
        case NOT_FOUND:
            return "Not Found";
        case INSUFFICIENT_SIZE:
            return "Insufficient Size";
        case DRIVER_NOT_LOADED:
            return "Driver Not Loaded";
        case GPU_IS_LOST:
            return "GPU is lost";
        default:
            return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    ENTER(1);
    return say(text, length, "570.00.%02d", 1);
}
API nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
    ENTER(1);
    return say(text, length, "12.570.00.%02d", 1);
}
API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER(1);
    *version = 12080;
    return OK;
}
API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* ---- devices ---- */

API nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(1);
    *count = (unsigned)shared->devices;
    return OK;
}
API nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found)
{
    ENTER((device)index + 1);
    *found = (device)index + 1;
    return OK;
}
API nvmlDeviceGetUUID(device d, char *text, unsigned length)
{
    ENTER(d);
    return say(text, length, "GPU-00000000-0000-0000-0000-%012d", (int)d - 1);
}
API nvmlDeviceGetHandleByUUID(const char *uuid, device *found)
{
    char own[64];
    ENTER(1);
    for (*found = 1; *found <= (device)shared->devices; ++*found)
        if (!nvmlDeviceGetUUID(*found, own, sizeof own) && !strcmp(own, uuid)) return OK;
    return NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *text, device *found)
{
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2) return INVALID_ARGUMENT;
    ENTER(1);
    *found = bus;
    return bus >= 1 && bus <= shared->devices ? OK : NOT_FOUND;
}
API nvmlDeviceGetIndex(device d, unsigned *index)
{
    ENTER(d);
    *index = (unsigned)d - 1;
    return OK;
}
API nvmlDeviceGetName(device d, char *text, unsigned length)
{
    ENTER(d);
    return say(text, length, "Stand-in GPU", 0);
}
API nvmlDeviceGetPciInfo_v3(device d, pci *info)
{
    ENTER(d);
    *info = (pci){ .bus = (unsigned)d };
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", (unsigned)d);
    snprintf(info->text, sizeof info->text, "00000000:%02X:00.0", (unsigned)d);
    return OK;
}
API nvmlDeviceGetPciInfo_v2(device d, pci *info) { return nvmlDeviceGetPciInfo_v3(d, info); }
API nvmlDeviceGetPciInfo(device d, pci *info) { return nvmlDeviceGetPciInfo_v3(d, info); }
API nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending)
{
    ENTER(d);
    *now = *pending = 0;
    return NOT_SUPPORTED;
}
API nvmlDeviceGetUtilizationRates(device d, utilization *rates)
{
    ENTER(d);
    *rates = (utilization){ 0, 0 };
    return shared->nvml_mode == NVML_NO_UTILIZATION ? NOT_SUPPORTED : OK;
}

/* ---- memory ---- */

API nvmlDeviceGetMemoryInfo(device d, memory *info)
{
    ENTER(d);
    if (shared->nvml_mode == NVML_NO_MEMORY_INFO) return NOT_SUPPORTED;
    *info = (memory){ .total = shared->device[d - 1].capacity_bytes };
    for (int i = 0; i < BOARD_SLOTS; i++) {
        int64_t bytes = shared->slot[i].use[d - 1].occupied_bytes;
        if (bytes && board_owned(board_fd, i)) info->used += bytes;
    }
    /* managed memory beyond it is on the host */
    if (info->used > info->total) info->used = info->total;
    info->free = info->total - info->used;
    return OK;
}
API nvmlDeviceGetMemoryInfo_v2(device d, memory_v2 *info)
{
    memory plain;
    int status = nvmlDeviceGetMemoryInfo(d, &plain);
    if (!status)
        info->reserved = 0, info->total = plain.total, info->free = plain.free,
        info->used = plain.used;
    return status;
}

API nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, process *list)
{
    unsigned room = *count;
    ENTER(d);
    if (shared->nvml_mode == NVML_NO_PERMISSION) return NO_PERMISSION;
    *count = 0;
    for (int i = 0; i < BOARD_SLOTS; i++) {
        board_slot *slot = &shared->slot[i];
        /* no context here, or dead */
        if (!slot->use[d - 1].mallocs || !board_owned(board_fd, i)) continue;
        if (list && *count < room)
            list[*count] =
                (process){ .pid = (unsigned)slot->pid,
                           .gpu_instance = ~0u,
                           .compute_instance = ~0u,
                           .bytes = shared->nvml_mode == NVML_NO_PROCESS_BYTES
                                        ? ~0ull
                                        : (unsigned long long)slot->use[d - 1].occupied_bytes };
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}
API nvmlDeviceGetComputeRunningProcesses_v2(device d, unsigned *count, process *list)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(d, count, list);
}
API nvmlDeviceGetGraphicsRunningProcesses_v3(device d, unsigned *count, process *list)
{
    ENTER(d);
    (void)list;
    *count = 0;
    return shared->nvml_mode == NVML_NO_PERMISSION ? NO_PERMISSION : OK;
}
API nvmlDeviceGetGraphicsRunningProcesses_v2(device d, unsigned *count, process *list)
{
    return nvmlDeviceGetGraphicsRunningProcesses_v3(d, count, list);
}
