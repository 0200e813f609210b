# cython: language_level=3, freethreading_compatible=True
"""Allocators for CuPy that record which task owns device memory.

Every allocation of a CuPy job calls these. A *token* is tied to each allocation. When the memory is
freed, in whatever thread, the token subtracts it from its task's account. CuPy's pooled memory
keeps the token as an attribute. Any other kind of memory is handed out as (a subclass of)
UnownedMemory whose owner is the token.
cupy_hook.py installs these allocators and notices when the job installs its own; monitor.py
reports what the driver says.
"""
cimport cython
from libc.stdint cimport intptr_t, uint64_t

from csrc.atomics cimport add_relaxed, load_relaxed
from csrc.board_layout cimport ABSENT, GPU_HOOK_ON
from csrc.clock cimport now_ns
from csrc.gpu cimport (
    GPU_PINNED, gpu_add_block, gpu_driver, gpu_enter, gpu_identify, gpu_is_used, gpu_leave,
    gpu_note_driver, gpu_note_hook, gpu_note_nvml, gpu_note_oom, gpu_note_pool,
    gpu_note_unfollowed, gpu_pool, gpu_remove_block)
from csrc.handle cimport task_handle
from csrc.probe cimport probe_active, probe_current
from dwsr_probe.binding.features cimport byte_count
from dwsr_probe.binding.tasks cimport set_begin_check

from weakref import WeakKeyDictionary

cdef enum:
    ROUNDING = 512  # bytes, of CuPy's pools
    # A pool walks over its blocks to sum their sizes (CuPy 13). Reading the sum may take 1/100 of
    # the time.
    POOL_READ_SHARE = 100
    POOL_READ_EVERY = 64  # allocations, if none of them raises a peak

# Of CuPy, once it is imported.
cdef object pooled_memory = None, plain_memory = None, async_memory = None, memory_pointer = None
cdef object get_allocator = None, current_device = None
cdef bint pooled_takes_attributes = False
# Memory that is handed out in place of the job's: CuPy's class, or our subclass, which passes on
# the attributes of the memory it stands for.
cdef object unowned_memory = None, stand_in_memory = None
# Functions of cupy_hook.py and monitor.py.
cdef object on_device_first_used = None  # called at the first allocation on a device
cdef object report_failure = None  # called once with an exception of our own; None: off
cdef object install_before = None  # puts one of our allocators before the one that CuPy uses
cdef object is_out_of_memory = None
cdef object allocator_in_place = None  # ours, as the last task begin found it


cdef gpu_pool unknown_pool() noexcept:
    return gpu_pool(ABSENT, ABSENT, ABSENT, ABSENT)


@cython.final
cdef class _PoolSums:
    """Bytes in use of one pool on one device, as far as they were allocated through the hook.

    The rest of what the pool says is in use is `unseen`.
    """
    # CuPy's weak reference to the pool: one object, which all memory of the pool carries. None if
    # the memory has no such attribute; then `pool` is set.
    cdef object reference
    cdef object pool
    cdef uint64_t live
    cdef uint64_t unseen, limit, next_read_ns


cdef object known_pools = WeakKeyDictionary()  # CuPy's pool of one device → _PoolSums


cdef gpu_pool read_pool(_PoolSums sums) except *:
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
        sums.limit = pool.get_limit() or ABSENT
        after = now_ns()
        sums.next_read_ns = after + POOL_READ_SHARE * (after - before)
    p.used_bytes = load_relaxed(&sums.live) + sums.unseen
    p.unseen_bytes = sums.unseen
    p.limit_bytes = sums.limit
    return p


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class _Token:
    """Tied to one allocation; its deallocation subtracts the memory from the task's account."""
    cdef _PoolSums sums
    cdef readonly object memory  # kept alive, where the token is the owner
    cdef task_handle handle
    cdef uint64_t size
    cdef unsigned int device

    def __dealloc__(self):
        if self.size:
            if self.sums is not None:
                add_relaxed(&self.sums.live, <uint64_t>0 - self.size)
            gpu_remove_block(self.handle, self.device, self.size)


@cython.final
cdef class Allocator:
    """Calls one allocator of the job and records the result. CuPy gets the method `malloc`."""
    cdef object __weakref__
    cdef readonly object inner
    cdef readonly bint pinned
    cdef object pool  # the pool whose method `inner` is, if it has methods for its sums
    cdef _PoolSums sums  # of the last allocation: the next one is mostly from the same pool
    cdef dict by_device
    cdef unsigned int count

    def __init__(self, inner, bint pinned=False):
        self.inner = inner
        self.pinned = pinned
        pool = getattr(inner, "__self__", None)
        sums = ("used_bytes", "total_bytes", "get_limit")
        if not pinned and all(hasattr(pool, name) for name in sums):
            self.pool = pool
        self.by_device = {}

    def malloc(self, size):
        if report_failure is None or not probe_active():
            return self.inner(size)
        # An allocator may call another one that is wrapped, too: only the outer call is recorded.
        if gpu_enter():
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
            return self.track_pinned(pointer) if self.pinned else self.track(pointer, size)
        except Exception as error:  # not KeyboardInterrupt: the job's Ctrl-C may arrive here
            # An allocator that returns no MemoryPointer is wrong itself: CuPy will say so.
            if self.pinned or isinstance(pointer, memory_pointer):
                disable(error)
            return pointer

    cdef object track(self, object pointer, object size):
        """Tie a token to the memory; return the pointer that the job gets."""
        cdef _Token token
        cdef uint64_t wanted = size
        cdef bint raised, pooled
        memory = pointer.mem
        if wanted == 0:
            return pointer
        token = _Token.__new__(_Token)
        token.handle = probe_current()
        token.device = pointer.device_id
        result = pointer
        pooled = type(memory) is pooled_memory and <uint64_t>memory.size - wanted < ROUNDING
        if pooled:
            token.sums = self.sums_of(memory)
            wanted = memory.size
        if pooled and pooled_takes_attributes:
            memory.dwsr_probe = token
        elif type(pointer) is not memory_pointer:  # a subclass of the job, which it expects back
            gpu_note_unfollowed()
            return pointer
        else:  # memory that takes no attributes, or a part of a larger block
            token.memory = pointer
            if not pooled and self.pool is not None:
                token.sums = self.sums_on(token.device)
            kind = stand_in_memory
            if type(memory) is plain_memory or type(memory) is async_memory:
                kind = unowned_memory
            if memory.size == size:
                result = memory_pointer(kind(pointer.ptr, size, token, token.device), 0)
            else:
                result = memory_pointer(
                    kind(memory.ptr, memory.size, token, token.device),
                    <intptr_t>pointer.ptr - <intptr_t>memory.ptr)
        token.size = wanted
        if token.sums is not None:
            add_relaxed(&token.sums.live, wanted)
        if not gpu_is_used(token.device):
            raised = gpu_add_block(token.handle, token.device, wanted)
            on_device_first_used()
        else:
            raised = gpu_add_block(token.handle, token.device, wanted)
        self.count += 1
        if raised or self.count % POOL_READ_EVERY == 0:
            note_pool(token.sums, token.handle, token.device, raised)
        return result

    cdef object track_pinned(self, object pointer):
        cdef _Token token
        cdef uint64_t given = pointer.mem.size
        if given:
            token = _Token.__new__(_Token)
            token.handle = probe_current()
            token.device = GPU_PINNED
            pointer.mem.dwsr_probe = token
            token.size = given
            gpu_add_block(token.handle, GPU_PINNED, given)
        return pointer

    cdef _PoolSums sums_of(self, object memory):
        """The sums of the pool that the memory is from, by the memory's reference to the pool."""
        reference = memory.pool
        if self.sums is not None and self.sums.reference is reference:
            return self.sums
        pool = reference()
        if pool is None:
            return None
        sums = known_pools.get(pool)
        if sums is None:
            sums = _PoolSums()
            (<_PoolSums>sums).reference = reference
            (<_PoolSums>sums).limit = ABSENT
            known_pools[pool] = sums
        self.sums = sums
        return sums

    cdef _PoolSums sums_on(self, unsigned int device):
        """The sums on one device of a pool whose memory has no reference to the pool."""
        sums = self.by_device.get(device)
        if sums is None:
            sums = self.by_device[device] = _PoolSums()
            (<_PoolSums>sums).pool = self.pool
            (<_PoolSums>sums).limit = ABSENT
        return sums

    cdef int note_failure(self, object size, object error) except -1:
        cdef gpu_pool pool = unknown_pool()
        try:
            if not is_out_of_memory(error):
                return 0
            device = GPU_PINNED if self.pinned else current_device()
            if self.pool is not None:
                pool.used_bytes, pool.total_bytes = self.pool.used_bytes(), self.pool.total_bytes()
                pool.limit_bytes = self.pool.get_limit() or ABSENT
            gpu_note_oom(probe_current(), device, size, &pool)
        except Exception as ours:
            disable(ours)
        return 0


cdef int note_pool(_PoolSums sums, task_handle handle, unsigned int device, bint raised) except -1:
    cdef gpu_pool pool = read_pool(sums)
    gpu_note_pool(handle, device, &pool, raised)
    return 0


cdef int disable(object error) except -1:
    """After an exception in our own code: switch the hook off and report it once."""
    global report_failure
    report, report_failure = report_failure, None
    if report is not None:
        report(error)
    return 0


cdef int keep_in_place() except -1:
    """Called before each task begin: a program that imported `set_allocator` before the hook was
    installed may have replaced our allocator."""
    global allocator_in_place
    try:
        current = get_allocator()
        if current is not allocator_in_place:
            if is_ours(current):
                allocator_in_place = current
            else:
                install_before(current)
    except Exception as error:
        disable(error)
    return 0


cdef object bound_method = type(Allocator(None).malloc)


def is_ours(allocator):
    """Whether this is the method `malloc` of an Allocator.

    Types are compared: reading attributes of the job's object could run code of the job.
    """
    return type(allocator) is bound_method and type(allocator.__self__) is Allocator


def forget_allocator():
    """Drop the reference to the last allocator: the job has set another one."""
    global allocator_in_place
    allocator_in_place = None


def use_cupy(memory, *, stand_in, device_of_thread, install, on_first_use, on_failure,
             out_of_memory):
    """Allocators record from here on.

    memory: CuPy's module. stand_in: the class of memory whose owner is a token.
    device_of_thread(): number of the current device. install(allocator): puts an Allocator before
    CuPy's current one. on_first_use(): a device is used for the first time. on_failure(error):
    removes the hook and reports the error. out_of_memory(error): whether an allocation failed for
    lack of memory.
    """
    global pooled_memory, plain_memory, async_memory, pooled_takes_attributes
    global unowned_memory, stand_in_memory, memory_pointer, get_allocator, current_device
    global install_before, on_device_first_used, report_failure, is_out_of_memory
    global allocator_in_place
    pooled_memory = getattr(memory, "PooledMemory", None)
    plain_memory = getattr(memory, "Memory", None)
    async_memory = getattr(memory, "MemoryAsync", None)
    pooled_takes_attributes = getattr(pooled_memory, "__dictoffset__", 0) != 0  # since CuPy 13.6
    unowned_memory, stand_in_memory = memory.UnownedMemory, stand_in
    memory_pointer = memory.MemoryPointer
    current_device, install_before, on_device_first_used = device_of_thread, install, on_first_use
    report_failure, is_out_of_memory, allocator_in_place = on_failure, out_of_memory, None
    get_allocator = memory.get_allocator
    set_begin_check(keep_in_place)


def note_gpu_hook(int state, bint pinned=False):
    """state: one of GPU_HOOK_*. pinned: page-locked memory is recorded, too."""
    global get_allocator, report_failure, allocator_in_place
    if state != GPU_HOOK_ON:
        set_begin_check(NULL)
        get_allocator = report_failure = allocator_in_place = None
    gpu_note_hook(state, pinned)


def note_nvml(int state):
    """state: one of NVML_*."""
    gpu_note_nvml(state)


def gpu_devices_used():
    return [device for device in range(GPU_PINNED) if gpu_is_used(device)]


def note_device_identity(unsigned int device, bytes name, bytes uuid, total_bytes):
    """Put these facts about a device on the board. total_bytes: None if it is not known."""
    gpu_identify(device, name, uuid, byte_count(total_bytes))


def note_device(unsigned int device, used_bytes, total_bytes, process_bytes, utilisation_percent,
                rmm_bytes, rmm_peak_bytes):
    """What the driver and RMM's statistics say of a device; None: not known."""
    cdef gpu_driver says = gpu_driver(
        byte_count(used_bytes), byte_count(total_bytes), byte_count(process_bytes),
        byte_count(utilisation_percent), byte_count(rmm_bytes), byte_count(rmm_peak_bytes))
    gpu_note_driver(device, &says)
