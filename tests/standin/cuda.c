/* CUDA for CuPy without a GPU: our functions in the place of those that CuPy's Cython layer exports
 * (list: entries.h; memory: device.c).
 *
 * Covers devices, memory, copies, streams, events, and kernels that load and launch and do nothing:
 * arrays hold what copies wrote; results of kernels are zeros or arbitrary bytes. Not covered:
 * graphs, textures, IPC, cuBLAS and the other libraries; functions that are not on the list are
 * CuPy's own and fail without a driver. Called by CuPy through the pointers that install.py puts
 * into
 * `__pyx_capi__`.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "device.h"
#include "entries.h"

#include <time.h>

typedef struct {
    int flags, priority;
    int64_t recorded_ns;
} handle; /* of a stream or an event */
struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_mallocManaged;
struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_streamWaitEvent;
struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_streamAddCallback;
struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_PointerAttributes;
struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_MemPoolProps { /* install.py checks its size */
    PyObject_HEAD int allocation, handle, location, device;
};

#define PROTOTYPE(module, result, name, parameters) static result module##_##name parameters;
ENTRIES(PROTOTYPE, PROTOTYPE)

#pragma GCC diagnostic ignored \
    "-Wunused-parameter" /* the parameters are CuPy's; hardly a function needs them all */

static PyObject *runtime_error, *pointer_attributes;
static _Thread_local int current;
static memory_pool *current_pool[16]; /* per device; NULL: its default */

static int raise(int status)
{
    PyObject *number = PyLong_FromLong(status);
    if (number) PyErr_SetObject(runtime_error, number);
    Py_XDECREF(number);
    return -1;
}
static PyObject *done(int status) { return status ? raise(status), NULL : Py_NewRef(Py_None); }
static int ready(void)
{
    int status = device_ready();
    return status ? raise(status) : 0;
}
static int exists(int device)
{
    return ready() ? -1 : device < 0 || device >= device_count() ? raise(CUDA_INVALID_DEVICE) : 0;
}
static PyObject *nothing(void) { return ready() ? NULL : Py_NewRef(Py_None); }
static PyObject *synchronized(void)
{
    if (ready()) return NULL;
    device_synchronize();
    Py_RETURN_NONE;
}

/* ---- versions, devices ---- */

static int runtime_runtimeGetVersion(SKIP) { return 12080; }
static int runtime_driverGetVersion(SKIP) { return 12080; }
static int runtime__getCUDAMajorVersion(SKIP) { return 12; }
static PyObject *runtime__ensure_context(void) { return nothing(); }
static int runtime_getDevice(SKIP) { return ready() ? -1 : current; }
static int runtime_getDeviceCount(SKIP) { return ready() ? -1 : device_count(); }

static PyObject *runtime_setDevice(int device, SKIP)
{
    if (exists(device)) return NULL;
    current = device;
    Py_RETURN_NONE;
}

static PyObject *runtime_getDeviceProperties(int device, SKIP)
{
    int64_t free_bytes, total_bytes;
    if (exists(device)) return NULL;
    device_memory(device, &free_bytes, &total_bytes);
    int physical = device_physical(device);
    char uuid[16] = { 0 }; /* the digits of its NVML name, as bytes */
    uuid[15] = (char)(physical / 10 * 16 + physical % 10);
    return Py_BuildValue(
        "{sy sL sy# si si si si si si si s(iii) s(iii) si si si si si si}", "name", "Stand-in GPU",
        "totalGlobalMem", (long long)total_bytes, "uuid", uuid, (Py_ssize_t)16, "major", 8, "minor",
        0, "warpSize", 32, "maxThreadsPerBlock", 1024, "multiProcessorCount", 8,
        "sharedMemPerBlock", 49152, "regsPerBlock", 65536, "maxThreadsDim", 1024, 1024, 64,
        "maxGridSize", 2147483647, 65535, 65535, "pciDomainID", 0, "pciBusID", physical + 1,
        "pciDeviceID", 0, "managedMemory", 1, "unifiedAddressing", 1, "integrated", 0);
}

static int runtime_deviceGetAttribute(int attribute, int device, SKIP)
{
    if (exists(device)) return -1;
    /* cudaDeviceAttr and its value; any other is 0 */
    static const int known[][2] = {
        { 1, 1024 },    { 2, 1024 },  { 3, 1024 },  { 4, 64 },  { 5, 2147483647 }, { 6, 65535 },
        { 7, 65535 },   { 8, 49152 }, { 9, 65536 }, { 10, 32 }, { 12, 65536 },     { 13, 1410000 },
        { 16, 8 },      { 31, 1 },    { 39, 2048 }, { 41, 1 },  { 75, 8 },         { 76, 0 },
        { 81, 167936 }, { 83, 1 },    { 89, 1 },    { 95, 1 },  { 97, 166912 },    { 115, 1 }
    };
    if (attribute == 33) return device_physical(device) + 1; /* PCI bus */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == attribute) return known[i][1];
    return 0;
}

static PyObject *runtime_deviceGetPCIBusId(int device, SKIP)
{
    return exists(device) ? NULL
                          : PyUnicode_FromFormat("0000:%02x:00.0", device_physical(device) + 1);
}

static int runtime_deviceGetByPCIBusId(PyObject *text, SKIP)
{
    unsigned int domain, bus;
    const char *utf8 = PyUnicode_AsUTF8(text);
    if (!utf8 || ready()) return -1;
    if (sscanf(utf8, "%x:%x", &domain, &bus) == 2)
        for (int i = 0; i < device_count(); i++)
            if (device_physical(i) + 1 == (int)bus) return i;
    return raise(CUDA_INVALID_DEVICE);
}

static int runtime_deviceCanAccessPeer(int device, int peer, SKIP)
{
    return exists(device) || exists(peer) ? -1 : device != peer;
}
static PyObject *runtime_deviceEnablePeerAccess(int peer, SKIP)
{
    return exists(peer) ? NULL : nothing();
}
static PyObject *runtime__deviceEnsurePeerAccess(int peer, SKIP)
{
    return exists(peer) ? NULL : nothing();
}
static PyObject *runtime_deviceSynchronize(SKIP) { return synchronized(); }
static size_t runtime_deviceGetLimit(int limit, SKIP) { return ready() ? (size_t)-1 : 8388608; }
static PyObject *runtime_deviceSetLimit(int limit, size_t value, SKIP) { return nothing(); }

static PyObject *runtime_memGetInfo(SKIP)
{
    int64_t free_bytes, total_bytes;
    if (ready()) return NULL;
    device_memory(current, &free_bytes, &total_bytes);
    return Py_BuildValue("LL", (long long)free_bytes, (long long)total_bytes);
}

/* ---- memory ---- */

static intptr_t allocate(memory_kind kind, memory_pool *pool, size_t bytes)
{
    intptr_t address = 0;
    int status = device_ready();
    if (!status) status = device_malloc(pool ? pool->device : current, kind, pool, bytes, &address);
    return status ? raise(status), 0 : address;
}
static PyObject *release(intptr_t address)
{
    int status = device_ready();
    return done(status || !address ? status : device_free(address));
}
static memory_pool *pool_of(int device)
{
    return current_pool[device] ? current_pool[device] : pool_default(device);
}

static intptr_t runtime_malloc(size_t bytes, SKIP) { return allocate(MEMORY_DEVICE, NULL, bytes); }
static intptr_t runtime_mallocManaged(size_t bytes, SKIP, OPTIONAL(mallocManaged))
{
    return allocate(MEMORY_MANAGED, NULL, bytes);
}
static intptr_t runtime_hostAlloc(size_t bytes, unsigned int flags, SKIP)
{
    return allocate(MEMORY_HOST, NULL, bytes);
}
static intptr_t runtime_mallocAsync(size_t bytes, intptr_t stream, SKIP)
{
    return ready() ? 0 : allocate(MEMORY_DEVICE, pool_of(current), bytes);
}
static intptr_t runtime_mallocFromPoolAsync(size_t bytes, intptr_t pool, intptr_t stream, SKIP)
{
    return allocate(MEMORY_DEVICE, (memory_pool *)pool, bytes);
}
static PyObject *runtime_free(intptr_t address, SKIP) { return release(address); }
static PyObject *runtime_freeAsync(intptr_t address, intptr_t stream, SKIP)
{
    return release(address);
}
static PyObject *runtime_freeHost(intptr_t address, SKIP) { return release(address); }
static PyObject *runtime_hostRegister(intptr_t address, size_t bytes, unsigned int flags, SKIP)
{
    return nothing();
}
static PyObject *runtime_hostUnregister(intptr_t address, SKIP) { return nothing(); }
static PyObject *runtime_memPrefetchAsync(intptr_t address, size_t bytes, int device,
                                          intptr_t stream, SKIP)
{
    return nothing();
}
static PyObject *runtime_memAdvise(intptr_t address, size_t bytes, int advice, int device, SKIP)
{
    return nothing();
}

static ATTRIBUTES runtime_pointerGetAttributes(intptr_t address, SKIP)
{
    int device, kind;
    if (ready()) return NULL;
    kind = device_find(address, &device);
    return (void *)PyObject_CallFunction(pointer_attributes, "inni", device,
                                         (Py_ssize_t)(kind == MEMORY_UNREGISTERED ? 0 : address),
                                         (Py_ssize_t)(kind == MEMORY_DEVICE ? 0 : address), kind);
}
static int runtime_pointerGetMemoryType(intptr_t address, SKIP)
{
    int device;
    return ready() ? -1 : (int)device_find(address, &device);
}

/* ---- memory pools of the driver ---- */

static intptr_t runtime_deviceGetDefaultMemPool(int device, SKIP)
{
    return exists(device) ? 0 : (intptr_t)pool_default(device);
}
static intptr_t runtime_deviceGetMemPool(int device, SKIP)
{
    return exists(device) ? 0 : (intptr_t)pool_of(device);
}
static PyObject *runtime_deviceSetMemPool(int device, intptr_t pool, SKIP)
{
    if (exists(device)) return NULL;
    current_pool[device] = (memory_pool *)pool;
    Py_RETURN_NONE;
}
static intptr_t runtime_memPoolCreate(PROPS props, SKIP)
{
    if (exists(props->device)) return 0;
    memory_pool *pool = pool_create(props->device);
    return pool ? (intptr_t)pool : (raise(CUDA_OUT_OF_MEMORY), 0);
}
static PyObject *runtime_memPoolDestroy(intptr_t address, SKIP)
{
    memory_pool *pool = (memory_pool *)address;
    pool_trim(pool, 0);
    pool->in_use = pool->used != 0; /* blocks that point to it keep it, for ever */
    if (current_pool[pool->device] == pool) current_pool[pool->device] = NULL;
    Py_RETURN_NONE;
}
static PyObject *runtime_memPoolTrimTo(intptr_t pool, size_t keep_bytes, SKIP)
{
    pool_trim((memory_pool *)pool, keep_bytes);
    Py_RETURN_NONE;
}
static PyObject *runtime_memPoolGetAttribute(intptr_t address, int attribute, SKIP)
{
    memory_pool *pool = (memory_pool *)address;
    int64_t values[] = { 0,
                         1,
                         1,
                         1,
                         pool->release_threshold,
                         pool->used + pool->cached,
                         pool->reserved_high,
                         pool->used,
                         pool->used_high };
    if (attribute < 1 || attribute > 8) return done(CUDA_INVALID_VALUE);
    return PyLong_FromUnsignedLongLong(values[attribute]);
}
static PyObject *runtime_memPoolSetAttribute(intptr_t address, int attribute, PyObject *object,
                                             SKIP)
{
    memory_pool *pool = (memory_pool *)address;
    uint64_t value = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred()) return NULL;
    /* "keep all" is UINT64_MAX */
    if (attribute == 4)
        pool->release_threshold = value > INT64_MAX ? INT64_MAX : (int64_t)value;
    else if (attribute == 6 && !value)
        pool->reserved_high = pool->used + pool->cached;
    else if (attribute == 8 && !value)
        pool->used_high = pool->used;
    else if (attribute < 1 || attribute > 3)
        return done(CUDA_INVALID_VALUE);
    Py_RETURN_NONE;
}

/* ---- copies ---- */

static PyObject *copy(intptr_t to, intptr_t from, size_t bytes)
{
    if (ready()) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS /* as CuPy's own does */
        status = device_copy(to, from, bytes);
    Py_END_ALLOW_THREADS return done(status);
}
static PyObject *fill(intptr_t to, int value, size_t bytes)
{
    if (ready()) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS status = device_fill(to, value, bytes);
    Py_END_ALLOW_THREADS return done(status);
}

static PyObject *runtime_memcpy(intptr_t to, intptr_t from, size_t bytes, int kind, SKIP)
{
    return copy(to, from, bytes);
}
static PyObject *runtime_memcpyAsync(intptr_t to, intptr_t from, size_t bytes, int kind,
                                     intptr_t stream, SKIP)
{
    return copy(to, from, bytes);
}
static PyObject *runtime_memcpyPeer(intptr_t to, int to_device, intptr_t from, int from_device,
                                    size_t bytes, SKIP)
{
    return copy(to, from, bytes);
}
static PyObject *runtime_memcpyPeerAsync(intptr_t to, int to_device, intptr_t from, int from_device,
                                         size_t bytes, intptr_t stream, SKIP)
{
    return copy(to, from, bytes);
}
static PyObject *runtime_memset(intptr_t to, int value, size_t bytes, SKIP)
{
    return fill(to, value, bytes);
}
static PyObject *runtime_memsetAsync(intptr_t to, int value, size_t bytes, intptr_t stream, SKIP)
{
    return fill(to, value, bytes);
}

/* ---- streams, events ---- */

static intptr_t create(int flags, int priority)
{
    handle *new = ready() ? NULL : calloc(1, sizeof *new);
    if (new) *new = (handle){ .flags = flags, .priority = priority };
    return (intptr_t)new;
}
static PyObject *destroy(intptr_t address)
{
    free((handle *)address);
    Py_RETURN_NONE;
}
/* null, legacy, per thread: not pointers */
static int is_default(intptr_t stream) { return stream >= 0 && stream <= 2; }

static intptr_t runtime_streamCreate(SKIP) { return create(0, 0); }
static intptr_t runtime_streamCreateWithFlags(unsigned int flags, SKIP) { return create(flags, 0); }
static intptr_t runtime_streamCreateWithPriority(unsigned int flags, int priority, SKIP)
{
    return create(flags, priority);
}
static unsigned int runtime_streamGetFlags(intptr_t stream, SKIP)
{
    return is_default(stream) ? 0 : ((handle *)stream)->flags;
}
static int runtime_streamGetPriority(intptr_t stream, SKIP)
{
    return is_default(stream) ? 0 : ((handle *)stream)->priority;
}
static PyObject *runtime_streamDestroy(intptr_t stream, SKIP) { return destroy(stream); }
static PyObject *runtime_streamSynchronize(intptr_t stream, SKIP) { return synchronized(); }
static PyObject *runtime_streamQuery(intptr_t stream, SKIP)
{
    return ready() ? NULL : PyLong_FromLong(0);
}
static PyObject *runtime_streamWaitEvent(intptr_t stream, intptr_t event, SKIP,
                                         OPTIONAL(streamWaitEvent))
{
    return nothing();
}
static int runtime_streamIsCapturing(intptr_t stream, SKIP) { return 0; }

/* an error in a callback is printed, as in a driver's thread */
static PyObject *called(PyObject *result)
{
    if (!result) PyErr_WriteUnraisable(NULL);
    Py_XDECREF(result);
    Py_RETURN_NONE;
}
static PyObject *runtime_launchHostFunc(intptr_t stream, PyObject *callback, intptr_t argument,
                                        SKIP)
{
    return ready() ? NULL : called(PyObject_CallFunction(callback, "n", (Py_ssize_t)argument));
}
static PyObject *runtime_streamAddCallback(intptr_t stream, PyObject *callback, intptr_t argument,
                                           SKIP, OPTIONAL(streamAddCallback))
{
    return ready() ? NULL
                   : called(PyObject_CallFunction(callback, "nin", (Py_ssize_t)stream, 0,
                                                  (Py_ssize_t)argument));
}

static intptr_t runtime_eventCreate(SKIP) { return create(0, 0); }
static intptr_t runtime_eventCreateWithFlags(unsigned int flags, SKIP) { return create(flags, 0); }
static PyObject *runtime_eventDestroy(intptr_t event, SKIP) { return destroy(event); }
static PyObject *runtime_eventQuery(intptr_t event, SKIP)
{
    return ready() ? NULL : PyLong_FromLong(0);
}
static PyObject *runtime_eventSynchronize(intptr_t event, SKIP) { return synchronized(); }
static PyObject *runtime_eventRecord(intptr_t event, intptr_t stream, SKIP)
{
    struct timespec now;
    if (ready()) return NULL;
    clock_gettime(CLOCK_MONOTONIC, &now);
    ((handle *)event)->recorded_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    Py_RETURN_NONE;
}
static float runtime_eventElapsedTime(intptr_t from, intptr_t to, SKIP)
{
    return (float)(((handle *)to)->recorded_ns - ((handle *)from)->recorded_ns) / 1e6f;
}
static PyObject *runtime_profilerStart(SKIP) { return nothing(); }
static PyObject *runtime_profilerStop(SKIP) { return nothing(); }

/* ---- contexts, kernels ---- */

static intptr_t driver_ctxGetCurrent(SKIP) { return 1; }
static PyObject *driver_ctxSetCurrent(intptr_t context, SKIP) { return nothing(); }
static int driver_ctxGetDevice(SKIP) { return ready() ? -1 : current; }
static intptr_t driver_streamGetCtx(intptr_t stream, SKIP) { return 1; }
static intptr_t driver_moduleLoad(PyObject *path, SKIP) { return 1; }
static intptr_t driver_moduleLoadData(PyObject *image, SKIP) { return 1; }
static PyObject *driver_moduleUnload(intptr_t module, SKIP) { Py_RETURN_NONE; }
static intptr_t driver_moduleGetFunction(intptr_t module, PyObject *name, SKIP) { return 1; }
/* threads per block */
static int driver_funcGetAttribute(int attribute, intptr_t function, SKIP)
{
    return attribute == 0 ? 1024 : 0;
}
static PyObject *driver_funcSetAttribute(intptr_t function, int attribute, int value, SKIP)
{
    Py_RETURN_NONE;
}
static int driver_occupancyMaxActiveBlocksPerMultiprocessor(intptr_t function, int threads,
                                                            size_t shared_bytes, SKIP)
{
    return 2;
}
static PyObject *driver_occupancyMaxPotentialBlockSize(intptr_t function, size_t shared_bytes,
                                                       int limit, SKIP)
{
    return Py_BuildValue("ii", 16, 256);
}

static PyObject *launched(void)
{
    if (ready()) return NULL;
    device_launched();
    Py_RETURN_NONE;
}
static PyObject *driver_launchKernel(intptr_t function, unsigned int grid_x, unsigned int grid_y,
                                     unsigned int grid_z, unsigned int block_x,
                                     unsigned int block_y, unsigned int block_z,
                                     unsigned int shared_bytes, intptr_t stream, intptr_t arguments,
                                     intptr_t extra, SKIP)
{
    return launched();
}
static PyObject *driver_launchCooperativeKernel(intptr_t function, unsigned int grid_x,
                                                unsigned int grid_y, unsigned int grid_z,
                                                unsigned int block_x, unsigned int block_y,
                                                unsigned int block_z, unsigned int shared_bytes,
                                                intptr_t stream, intptr_t arguments, SKIP)
{
    return launched();
}

/* ---- the compiler: every source compiles, to nothing ---- */

static PyObject *nvrtc_getVersion(SKIP) { return Py_BuildValue("ii", 12, 8); }

static PyObject *nvrtc_getSupportedArchs(SKIP) { return Py_BuildValue("[iiii]", 70, 75, 80, 90); }
static intptr_t nvrtc_createProgram(PyObject *source, PyObject *name, PyObject *headers,
                                    PyObject *include_names, SKIP)
{
    return 1;
}
static PyObject *nvrtc_destroyProgram(intptr_t program, SKIP) { Py_RETURN_NONE; }
static PyObject *nvrtc_compileProgram(intptr_t program, PyObject *options, SKIP) { Py_RETURN_NONE; }
static PyObject *nvrtc_addNameExpression(intptr_t program, PyObject *name, SKIP) { Py_RETURN_NONE; }
static PyObject *nvrtc_getLoweredName(intptr_t program, PyObject *name, SKIP)
{
    return Py_NewRef(name);
}
static PyObject *nvrtc_getProgramLog(intptr_t program, SKIP) { return PyUnicode_FromString(""); }
static PyObject *nvrtc_getPTX(intptr_t program, SKIP) { return PyBytes_FromString("standin"); }
static PyObject *nvrtc_getCUBIN(intptr_t program, SKIP) { return PyBytes_FromString("standin"); }

/* ---- the module ---- */

#define TEXT(x)  TEXT_(x)
#define TEXT_(x) #x
#define ROW(module, result, name, parameters) \
    { #module, #name, TEXT(result) TEXT(parameters), (void *)module##_##name, 1 },
#define NEWER_ROW(module, result, name, parameters) \
    { #module, #name, TEXT(result) TEXT(parameters), (void *)module##_##name, 0 },
static const struct {
    const char *module, *name, *signature;
    void *function;
    int required;
} table[] = { ENTRIES(ROW, NEWER_ROW) };

/* entries(CUDARuntimeError, PointerAttributes) -> [(module, name, signature, address, required)] */
static PyObject *entries(PyObject *self, PyObject *classes)
{
    PyObject *list = PyList_New(0);
    if (!list || !PyArg_ParseTuple(classes, "OO", &runtime_error, &pointer_attributes)) return NULL;
    Py_INCREF(runtime_error); /* for ever, like CuPy's modules */
    Py_INCREF(pointer_attributes);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        PyObject *row =
            Py_BuildValue("sssnO", table[i].module, table[i].name, table[i].signature,
                          (Py_ssize_t)table[i].function, table[i].required ? Py_True : Py_False);
        if (!row || PyList_Append(list, row)) return NULL;
        Py_DECREF(row);
    }
    return list;
}

/* capsule(address, name) -> PyCapsule. A capsule does not copy its name: the name is kept. */
static PyObject *capsule(PyObject *self, PyObject *arguments)
{
    Py_ssize_t address;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "ny", &address, &name)) return NULL;
    return PyCapsule_New((void *)address, strdup(name), NULL);
}

static PyMethodDef methods[] = { { "entries", entries, METH_VARARGS, NULL },
                                 { "capsule", capsule, METH_VARARGS, NULL },
                                 { NULL, NULL, 0, NULL } };
static PyModuleDef definition = { PyModuleDef_HEAD_INIT, .m_name = "_cuda", .m_size = -1,
                                  .m_methods = methods };
PyMODINIT_FUNC PyInit__cuda(void) { return PyModule_Create(&definition); }
