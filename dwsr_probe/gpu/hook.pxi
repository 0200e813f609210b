# CuPy's allocators, wrapped: whose device memory is it. Included in _core.pyx: every allocation of a CuPy job comes through here.
#
# A token is tied to each allocation and credits it when the memory returns, in whatever thread. CuPy's pooled memory takes it as an attribute; every
# other kind is handed out as (a subclass of) UnownedMemory whose owner is the token. cupy_hook.py puts these allocators in place and follows the job's own.

cdef extern from "gpu.h" nogil:
    enum:
        GPU_HOOK_NONE, GPU_HOOK_ON, GPU_HOOK_OFF
        GPU_PINNED
        NVML_NONE, NVML_OK, NVML_NO_MODULE, NVML_NO_DRIVER, NVML_DENIED, NVML_LOST, NVML_FAILED
    struct gpu_pool:
        uint64_t used_bytes, total_bytes, limit_bytes, unseen_bytes
    void gpu_note_hook(int state, int pinned)
    void gpu_note_nvml(int state)
    int gpu_added(task_handle task, unsigned int device, uint64_t size)
    void gpu_removed(task_handle task, unsigned int device, uint64_t size)
    void gpu_note_pool(task_handle task, unsigned int device, const gpu_pool *pool, int raised)
    void gpu_note_oom(task_handle task, unsigned int device, uint64_t requested_bytes, const gpu_pool *pool)
    void gpu_note_unfollowed()
    int gpu_enter()
    void gpu_leave()
    int gpu_is_used(unsigned int device)
    void gpu_identify(unsigned int device, const char *name, const char *uuid, uint64_t total_bytes)
    struct gpu_driver:
        uint64_t used_bytes, total_bytes, process_bytes, utilisation_percent, rmm_bytes, rmm_peak_bytes
    void gpu_note_driver(unsigned int device, const gpu_driver *says)

cdef extern from "clock.h" nogil:
    uint64_t now_ns()

cdef extern from "atomics.h" nogil:
    uint64_t add_relaxed(uint64_t *p, uint64_t v)
    uint64_t load_relaxed(const uint64_t *p)

cdef enum:
    ROUNDING = 512  # of CuPy's pools
    POOL_READ_SHARE = 100  # a pool is asked for its sum no more often than costs a hundredth of the time: in CuPy 13 it walks over its blocks
    POOL_READ_EVERY = 64  # allocations, where none raises a peak

# Of CuPy, once it is imported.
cdef object pooled_memory = None, plain_memory = None, async_memory = None, memory_pointer = None, get_allocator = None, current_device = None
cdef bint pooled_takes_attributes = False
cdef object unowned_memory = None, followed_memory = None  # what we hand out: the latter answers as what it stands for, where that has more to say
cdef object device_seen = None  # called at the first allocation on a device
cdef object hook_failed = None  # called once with what went wrong inside our own part
cdef object allocator_in_place = None  # seen at the last task begin, to tell quickly that nothing has changed


cdef gpu_pool unknown_pool() noexcept:
    return gpu_pool(C_ABSENT, C_ABSENT, C_ABSENT, C_ABSENT)


@cython.final
cdef class PoolSums:
    """What of one pool on one device is ours, to tell what of it was never seen."""
    cdef object reference  # CuPy's own weak reference to its pool of one device, the same object in all of its memory; or None ...
    cdef object pool       # ... and the pool, if its memory does not say
    cdef uint64_t live
    cdef uint64_t unseen, limit, next_read_ns


cdef object pools_known = None  # WeakKeyDictionary: CuPy's pool of one device → PoolSums


cdef gpu_pool read_pool(PoolSums sums) except *:
    cdef gpu_pool p = unknown_pool()
    cdef uint64_t before, after, used, live
    if sums is None:
        return p
    pool = sums.pool if sums.reference is None else sums.reference()
    if pool is None:
        return p
    p.total_bytes = pool.total_bytes()
    before = now_ns()
    if before >= sums.next_read_ns:
        live = load_relaxed(&sums.live)
        used = pool.used_bytes()
        sums.unseen = used - live if used > live else 0
        sums.limit = pool.get_limit() or C_ABSENT
        after = now_ns()
        sums.next_read_ns = after + POOL_READ_SHARE * (after - before)
    p.used_bytes = load_relaxed(&sums.live) + sums.unseen
    p.unseen_bytes = sums.unseen
    p.limit_bytes = sums.limit
    return p


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Token:
    """Ends with the memory it is tied to."""
    cdef PoolSums sums
    cdef readonly object memory  # kept alive, where the token is the owner
    cdef task_handle handle
    cdef uint64_t size
    cdef unsigned int device

    def __dealloc__(self):
        if self.size:
            if self.sums is not None:
                add_relaxed(&self.sums.live, <uint64_t>0 - self.size)
            gpu_removed(self.handle, self.device, self.size)


cdef bint is_out_of_memory(object error):
    """CuPy's OutOfMemoryError, RMM's, or the CUDA runtime's own."""
    return isinstance(error, MemoryError) or getattr(error, "status", None) == 2


@cython.final
cdef class Allocator:
    """Stands before one allocator of the job's: CuPy is given its `malloc`."""
    cdef object __weakref__
    cdef readonly object inner
    cdef readonly bint pinned
    cdef object pool  # whose method `inner` is, if it can tell its sums
    cdef PoolSums sums  # of the last allocation: mostly the next one's, too
    cdef dict by_device
    cdef unsigned int count

    def __init__(self, inner, bint pinned=False):
        self.inner = inner
        self.pinned = pinned
        pool = getattr(inner, "__self__", None)
        if not pinned and all(hasattr(pool, name) for name in ("used_bytes", "total_bytes", "get_limit")):
            self.pool = pool
        self.by_device = {}

    def malloc(self, size):
        if hook_failed is None or not probe_active():
            return self.inner(size)
        if gpu_enter():  # of allocators that call allocators the outermost counts
            try:
                return self.inner(size)
            finally:
                gpu_leave()
        try:
            pointer = self.inner(size)
        except BaseException as error:
            gpu_leave()
            self.note_failure(size, error)
            raise
        gpu_leave()
        try:
            return self.followed_pinned(pointer) if self.pinned else self.followed(pointer, size)
        except Exception as error:  # not the job's Ctrl-C, which may come here as anywhere else
            if self.pinned or isinstance(pointer, memory_pointer):  # else it is nothing that CuPy will take: the allocator's failure, not ours
                fail(error)
            return pointer

    cdef object followed(self, object pointer, object size):
        cdef Token token
        cdef uint64_t wanted = size
        cdef bint raised, pooled
        memory = pointer.mem
        if wanted == 0:
            return pointer
        token = Token.__new__(Token)
        token.handle = probe_current()
        token.device = pointer.device_id
        result = pointer
        pooled = type(memory) is pooled_memory and <uint64_t>memory.size - wanted < ROUNDING
        if pooled:
            token.sums = self.sums_of(memory)
            wanted = memory.size
        if pooled and pooled_takes_attributes:
            memory.dwsr_probe = token
        elif type(pointer) is not memory_pointer:  # the job's own subclass: ours would not be one
            gpu_note_unfollowed()
            return pointer
        else:  # a kind without attributes, or a piece of something larger
            token.memory = pointer
            if not pooled and self.pool is not None:
                token.sums = self.sums_on(token.device)
            kind = unowned_memory if type(memory) is plain_memory or type(memory) is async_memory else followed_memory
            if memory.size == size:
                result = memory_pointer(kind(pointer.ptr, size, token, token.device), 0)
            else:
                result = memory_pointer(kind(memory.ptr, memory.size, token, token.device), <intptr_t>pointer.ptr - <intptr_t>memory.ptr)
        token.size = wanted
        if token.sums is not None:
            add_relaxed(&token.sums.live, wanted)
        if not gpu_is_used(token.device):
            raised = gpu_added(token.handle, token.device, wanted)
            device_seen()
        else:
            raised = gpu_added(token.handle, token.device, wanted)
        self.count += 1
        if raised or self.count % POOL_READ_EVERY == 0:
            note_pool(token.sums, token.handle, token.device, raised)
        return result

    cdef object followed_pinned(self, object pointer):
        cdef Token token
        cdef uint64_t given = pointer.mem.size
        if given:
            token = Token.__new__(Token)
            token.handle = probe_current()
            token.device = GPU_PINNED
            pointer.mem.dwsr_probe = token
            token.size = given
            gpu_added(token.handle, GPU_PINNED, given)
        return pointer

    cdef PoolSums sums_of(self, object memory):
        """Of CuPy's pool that the memory is from, by the weak reference that it carries."""
        reference = memory.pool
        if self.sums is not None and self.sums.reference is reference:
            return self.sums
        pool = reference()
        if pool is None:
            return None
        sums = pools_known.get(pool)
        if sums is None:
            sums = PoolSums()
            (<PoolSums>sums).reference = reference
            (<PoolSums>sums).limit = C_ABSENT
            pools_known[pool] = sums
        self.sums = sums
        return sums

    cdef PoolSums sums_on(self, unsigned int device):
        sums = self.by_device.get(device)
        if sums is None:
            sums = self.by_device[device] = PoolSums()
            (<PoolSums>sums).pool = self.pool
            (<PoolSums>sums).limit = C_ABSENT
        return sums

    cdef int note_failure(self, object size, object error) except -1:
        cdef gpu_pool pool = unknown_pool()
        try:
            if not is_out_of_memory(error):
                return 0
            device = GPU_PINNED if self.pinned else current_device()
            if self.pool is not None:
                pool.used_bytes, pool.total_bytes, pool.limit_bytes = self.pool.used_bytes(), self.pool.total_bytes(), self.pool.get_limit() or C_ABSENT
            gpu_note_oom(probe_current(), device, size, &pool)
        except Exception as ours:
            fail(ours)
        return 0


cdef int note_pool(PoolSums sums, task_handle handle, unsigned int device, bint raised) except -1:
    cdef gpu_pool pool = read_pool(sums)
    gpu_note_pool(handle, device, &pool, raised)
    return 0


cdef int fail(object error) except -1:
    """Something of ours went wrong: not the job's affair. Off, and said once."""
    global hook_failed
    told, hook_failed = hook_failed, None
    if told is not None:
        told(error)
    return 0


cdef int stay_in_place() except -1:
    """At task begin: somebody who imported set_allocator before us may have put another allocator in our place."""
    global allocator_in_place
    try:
        current = get_allocator()
        if current is not allocator_in_place:
            if is_ours(current):
                allocator_in_place = current
            else:
                put_in_place(current)
    except Exception as error:
        fail(error)
    return 0


cdef object put_in_place = None


cdef object bound_method = type(Allocator(None).malloc)


def is_ours(allocator):
    """Without a look at attributes of the job's objects, which may do anything."""
    return type(allocator) is bound_method and type(allocator.__self__) is Allocator


def forget_allocator():
    """The job has chosen another one: nothing of ours keeps the last one alive until the next task begins."""
    global allocator_in_place
    allocator_in_place = None


def use_cupy(memory, followed, device_of_thread, put, seen, failed):
    """The hook is in place from here on. followed: the class of memory whose owner is a token; put(allocator): wraps the current one; seen(): a device is used for the first time; failed(error): takes the
    hook out and says so."""
    global device_seen, pooled_memory, pooled_takes_attributes, plain_memory, async_memory, unowned_memory, followed_memory, memory_pointer, get_allocator, current_device, put_in_place, hook_failed, allocator_in_place, pools_known
    from weakref import WeakKeyDictionary
    pooled_memory, plain_memory, async_memory = (getattr(memory, name, None) for name in ("PooledMemory", "Memory", "MemoryAsync"))
    unowned_memory, followed_memory, memory_pointer = memory.UnownedMemory, followed, memory.MemoryPointer
    pooled_takes_attributes = getattr(pooled_memory, "__dictoffset__", 0) != 0  # since 13.6
    if pools_known is None:
        pools_known = WeakKeyDictionary()
    current_device, put_in_place, device_seen, hook_failed, allocator_in_place = device_of_thread, put, seen, failed, None
    get_allocator = memory.get_allocator


def note_gpu_hook(str state, bint pinned=False):
    global get_allocator, hook_failed, allocator_in_place
    if state != "on":
        get_allocator = hook_failed = allocator_in_place = None
    gpu_note_hook({"none": GPU_HOOK_NONE, "on": GPU_HOOK_ON, "off": GPU_HOOK_OFF}[state], pinned)


NVML_STATES = {"none": NVML_NONE, "ok": NVML_OK, "no module": NVML_NO_MODULE, "no driver": NVML_NO_DRIVER, "permission denied": NVML_DENIED,
               "lost": NVML_LOST, "failed": NVML_FAILED}


def note_nvml(str state):
    gpu_note_nvml(NVML_STATES[state])


def gpu_devices_used():
    return [device for device in range(GPU_PINNED) if gpu_is_used(device)]


def identify_device(unsigned int device, bytes name, bytes uuid, total_bytes):
    gpu_identify(device, name, uuid, bytes_word(total_bytes))


def note_device(unsigned int device, used_bytes, total_bytes, process_bytes, utilisation_percent, rmm_bytes, rmm_peak_bytes):
    cdef gpu_driver says = gpu_driver(bytes_word(used_bytes), bytes_word(total_bytes), bytes_word(process_bytes), bytes_word(utilisation_percent),
                                      bytes_word(rmm_bytes), bytes_word(rmm_peak_bytes))
    gpu_note_driver(device, &says)
