/* The one list of CuPy functions that the stand-in replaces: module, result, name, parameters, as
 * in the capsules of `__pyx_capi__`. From it come the prototypes of cuda.c (so the compiler checks
 * our functions against it), the table, and the signatures that install.py compares with what the
 * installed CuPy says. NEWER: not in every supported CuPy. Errors: an exception is set, and the
 * result is NULL, 0 (addresses) or -1 (other numbers), which CuPy's `except? 0` and `except? -1`
 * declarations ask for. All are called with the GIL.
 */
#define SKIP int __pyx_skip_dispatch
#define OPTIONAL(name) \
    struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_##name *__pyx_optional_args
#define ATTRIBUTES struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_PointerAttributes *
#define PROPS      struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_MemPoolProps *

/* clang-format off */
#define ENTRIES(X, NEWER)                                                                         \
    /* versions, devices */                                                                       \
    X(runtime, int, runtimeGetVersion, (SKIP))                                                    \
    X(runtime, int, driverGetVersion, (SKIP))                                                     \
    X(runtime, int, _getCUDAMajorVersion, (SKIP))                                                 \
    X(runtime, PyObject *, _ensure_context, (void))                                               \
    X(runtime, int, getDevice, (SKIP))                                                            \
    X(runtime, PyObject *, setDevice, (int, SKIP))                                                \
    X(runtime, int, getDeviceCount, (SKIP))                                                       \
    X(runtime, PyObject *, getDeviceProperties, (int, SKIP))                                      \
    X(runtime, int, deviceGetAttribute, (int, int, SKIP))                                         \
    X(runtime, PyObject *, deviceGetPCIBusId, (int, SKIP))                                        \
    X(runtime, int, deviceGetByPCIBusId, (PyObject *, SKIP))                                      \
    X(runtime, int, deviceCanAccessPeer, (int, int, SKIP))                                        \
    X(runtime, PyObject *, deviceEnablePeerAccess, (int, SKIP))                                   \
    X(runtime, PyObject *, _deviceEnsurePeerAccess, (int, SKIP))                                  \
    X(runtime, PyObject *, deviceSynchronize, (SKIP))                                             \
    X(runtime, size_t, deviceGetLimit, (int, SKIP))                                               \
    X(runtime, PyObject *, deviceSetLimit, (int, size_t, SKIP))                                   \
    X(runtime, PyObject *, memGetInfo, (SKIP))                                                    \
    /* memory */                                                                                  \
    X(runtime, intptr_t, malloc, (size_t, SKIP))                                                  \
    X(runtime, intptr_t, mallocManaged, (size_t, SKIP, OPTIONAL(mallocManaged)))                  \
    X(runtime, intptr_t, mallocAsync, (size_t, intptr_t, SKIP))                                   \
    X(runtime, intptr_t, mallocFromPoolAsync, (size_t, intptr_t, intptr_t, SKIP))                 \
    X(runtime, intptr_t, hostAlloc, (size_t, unsigned int, SKIP))                                 \
    X(runtime, PyObject *, free, (intptr_t, SKIP))                                                \
    X(runtime, PyObject *, freeAsync, (intptr_t, intptr_t, SKIP))                                 \
    X(runtime, PyObject *, freeHost, (intptr_t, SKIP))                                            \
    X(runtime, PyObject *, hostRegister, (intptr_t, size_t, unsigned int, SKIP))                  \
    X(runtime, PyObject *, hostUnregister, (intptr_t, SKIP))                                      \
    X(runtime, PyObject *, memPrefetchAsync, (intptr_t, size_t, int, intptr_t, SKIP))             \
    X(runtime, PyObject *, memAdvise, (intptr_t, size_t, int, int, SKIP))                         \
    X(runtime, ATTRIBUTES, pointerGetAttributes, (intptr_t, SKIP))                                \
    NEWER(runtime, int, pointerGetMemoryType, (intptr_t, SKIP))                                   \
    /* memory pools of the driver */                                                              \
    X(runtime, intptr_t, deviceGetDefaultMemPool, (int, SKIP))                                    \
    X(runtime, intptr_t, deviceGetMemPool, (int, SKIP))                                           \
    X(runtime, PyObject *, deviceSetMemPool, (int, intptr_t, SKIP))                               \
    X(runtime, intptr_t, memPoolCreate, (PROPS, SKIP))                                            \
    X(runtime, PyObject *, memPoolDestroy, (intptr_t, SKIP))                                      \
    X(runtime, PyObject *, memPoolTrimTo, (intptr_t, size_t, SKIP))                               \
    X(runtime, PyObject *, memPoolGetAttribute, (intptr_t, int, SKIP))                            \
    X(runtime, PyObject *, memPoolSetAttribute, (intptr_t, int, PyObject *, SKIP))                \
    /* copies */                                                                                  \
    X(runtime, PyObject *, memcpy, (intptr_t, intptr_t, size_t, int, SKIP))                       \
    X(runtime, PyObject *, memcpyAsync, (intptr_t, intptr_t, size_t, int, intptr_t, SKIP))        \
    X(runtime, PyObject *, memcpyPeer, (intptr_t, int, intptr_t, int, size_t, SKIP))              \
    X(runtime, PyObject *, memcpyPeerAsync, (intptr_t, int, intptr_t, int, size_t, intptr_t, SKIP))\
    X(runtime, PyObject *, memset, (intptr_t, int, size_t, SKIP))                                 \
    X(runtime, PyObject *, memsetAsync, (intptr_t, int, size_t, intptr_t, SKIP))                  \
    /* streams, events */                                                                         \
    X(runtime, intptr_t, streamCreate, (SKIP))                                                    \
    X(runtime, intptr_t, streamCreateWithFlags, (unsigned int, SKIP))                             \
    NEWER(runtime, intptr_t, streamCreateWithPriority, (unsigned int, int, SKIP))                 \
    NEWER(runtime, unsigned int, streamGetFlags, (intptr_t, SKIP))                                \
    NEWER(runtime, int, streamGetPriority, (intptr_t, SKIP))                                      \
    X(runtime, PyObject *, streamDestroy, (intptr_t, SKIP))                                       \
    X(runtime, PyObject *, streamSynchronize, (intptr_t, SKIP))                                   \
    X(runtime, PyObject *, streamQuery, (intptr_t, SKIP))                                         \
    X(runtime, PyObject *, streamWaitEvent, (intptr_t, intptr_t, SKIP, OPTIONAL(streamWaitEvent)))\
    X(runtime, int, streamIsCapturing, (intptr_t, SKIP))                                          \
    X(runtime, PyObject *, streamAddCallback, \
      (intptr_t, PyObject *, intptr_t, SKIP, OPTIONAL(streamAddCallback)))                        \
    X(runtime, PyObject *, launchHostFunc, (intptr_t, PyObject *, intptr_t, SKIP))                \
    X(runtime, intptr_t, eventCreate, (SKIP))                                                     \
    X(runtime, intptr_t, eventCreateWithFlags, (unsigned int, SKIP))                              \
    X(runtime, PyObject *, eventDestroy, (intptr_t, SKIP))                                        \
    X(runtime, float, eventElapsedTime, (intptr_t, intptr_t, SKIP))                               \
    X(runtime, PyObject *, eventQuery, (intptr_t, SKIP))                                          \
    X(runtime, PyObject *, eventRecord, (intptr_t, intptr_t, SKIP))                               \
    X(runtime, PyObject *, eventSynchronize, (intptr_t, SKIP))                                    \
    X(runtime, PyObject *, profilerStart, (SKIP))                                                 \
    X(runtime, PyObject *, profilerStop, (SKIP))                                                  \
    /* contexts, kernels */                                                                       \
    X(driver, intptr_t, ctxGetCurrent, (SKIP))                                                    \
    X(driver, PyObject *, ctxSetCurrent, (intptr_t, SKIP))                                        \
    X(driver, int, ctxGetDevice, (SKIP))                                                          \
    X(driver, intptr_t, streamGetCtx, (intptr_t, SKIP))                                           \
    X(driver, intptr_t, moduleLoad, (PyObject *, SKIP))                                           \
    X(driver, intptr_t, moduleLoadData, (PyObject *, SKIP))                                       \
    X(driver, PyObject *, moduleUnload, (intptr_t, SKIP))                                         \
    X(driver, intptr_t, moduleGetFunction, (intptr_t, PyObject *, SKIP))                          \
    X(driver, int, funcGetAttribute, (int, intptr_t, SKIP))                                       \
    X(driver, PyObject *, funcSetAttribute, (intptr_t, int, int, SKIP))                           \
    X(driver, int, occupancyMaxActiveBlocksPerMultiprocessor, (intptr_t, int, size_t, SKIP))      \
    X(driver, PyObject *, occupancyMaxPotentialBlockSize, (intptr_t, size_t, int, SKIP))          \
    X(driver, PyObject *, launchKernel,                                                           \
      (intptr_t, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,            \
       unsigned int, unsigned int, intptr_t, intptr_t, intptr_t, SKIP))                           \
    X(driver, PyObject *, launchCooperativeKernel,                                                \
      (intptr_t, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,            \
       unsigned int, unsigned int, intptr_t, intptr_t, SKIP))                                     \
    /* the compiler */                                                                            \
    X(nvrtc, PyObject *, getVersion, (SKIP))                                                      \
    X(nvrtc, PyObject *, getSupportedArchs, (SKIP))                                               \
    X(nvrtc, intptr_t, createProgram, (PyObject *, PyObject *, PyObject *, PyObject *, SKIP))     \
    X(nvrtc, PyObject *, destroyProgram, (intptr_t, SKIP))                                        \
    X(nvrtc, PyObject *, compileProgram, (intptr_t, PyObject *, SKIP))                            \
    X(nvrtc, PyObject *, addNameExpression, (intptr_t, PyObject *, SKIP))                         \
    X(nvrtc, PyObject *, getLoweredName, (intptr_t, PyObject *, SKIP))                            \
    X(nvrtc, PyObject *, getProgramLog, (intptr_t, SKIP))                                         \
    X(nvrtc, PyObject *, getPTX, (intptr_t, SKIP))                                                \
    X(nvrtc, PyObject *, getCUBIN, (intptr_t, SKIP))
/* clang-format on */
