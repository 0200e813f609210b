"""Types of the compiled part. A test compares the names with those of `_core`.

Numbers of a board that were not measured are None.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar, final

_Words = tuple[int | None, ...]
# (words by TASK_FIELDS, name, key, inputs, output, devices, failed allocation, detail of the
# attribution's reason, operation, chain, parameters)
_Record = tuple[
    _Words,
    str,
    str,
    str,
    str,
    tuple[_Words, ...] | str | None,
    _Words | str | None,
    str,
    str,
    str,
    str,
]
# (words by TOTAL_FIELDS, devices, histograms of own peak, growth, duration, growth without own)
_Total = tuple[
    _Words, tuple[_Words, ...], dict[int, int], dict[int, int], dict[int, int], dict[int, int]
]
_Allocate = Callable[[int], Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# -- _core.pyx

BOARD_BYTES: int
DESCRIPTORS_LEAST: int
UNITS: dict[str, tuple[str, ...]]

def start(
    *,
    directory: bytes,
    run: bytes,
    host: bytes,
    task_name: bytes,
    worker: bytes,
    python: bytes,
    period_ns: int,
    keep_peak: bool,
    alloc: bool,
    alloc_from: int = ...,
    proc_root: bytes = ...,
    cgroup_root: bytes = ...,
) -> None: ...
def stop(error: bool = False, at_exit: bool = False, remove: bool = False) -> None: ...
def active() -> bool: ...
def board_path() -> str | None: ...
def make_room_for_tasks() -> None: ...
def on_missing_room(call: Callable[[OSError], object] | None) -> None: ...
def announce_fork() -> None: ...
def resume_after_fork(later: bool) -> None: ...
def claim_message(kind: int) -> bool: ...
def note_exec() -> None: ...
def set_facts(text: bytes) -> bool: ...
def note_dask_hooks(kind: int) -> None: ...
def note_unprobed_child() -> None: ...
def adopt_handle(handle: int) -> int: ...
def current_handle() -> int: ...
def find_arrow_pools(path: bytes) -> None: ...
def try_arrow_pool(use: Callable[[], object]) -> tuple[int, int, int, int]: ...
def wrap_arrow_pools() -> None: ...
def unwrap_arrow_pools() -> None: ...
def follow_arrow_threads(path: bytes) -> None: ...
def leave_arrow_threads() -> None: ...
def try_board(directory: bytes) -> None: ...
def try_accounting() -> tuple[str, bool]: ...
def memory_limit(proc_root: bytes = ..., cgroup_root: bytes = ...) -> int | None: ...

# -- binding/features.pyx

def describe_inputs(inputs: object) -> tuple[bytes, int | None, int, int]: ...
def describe_output(value: object) -> tuple[bytes, int | None]: ...

# -- binding/contexts.pyx

@final
class Context: ...

@final
class Opcodes: ...

# -- binding/params.pyx

def use_params(on: bool) -> None: ...

# -- binding/tasks.pyx

@final
class OpenTask:
    node: Any

class task:
    output: Any
    def __init__(
        self,
        name: object,
        inputs: object = None,
        *,
        features: dict[str, float] | None = None,
        key: object = None,
    ) -> None: ...
    def __enter__(self) -> task: ...
    def __exit__(self, kind: object, value: object, trace: object) -> None: ...
    def __call__(self, function: _Function) -> _Function: ...

class adopt:
    def __init__(self, block: task) -> None: ...
    def __enter__(self) -> task: ...
    def __exit__(self, kind: object, value: object, trace: object) -> None: ...

def call_block(
    block: task,
    function: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    first: int,
) -> task: ...
def use_gc(function: Callable[[], object] | None, after: bool) -> None: ...
def use_thread_names(function: Callable[[], object] | None) -> None: ...
def unnamed_thread() -> tuple[int, int] | None: ...
def name_thread(entry: int, name: bytes, counts: bool) -> None: ...
def use_foreign_counter(function: Callable[[], object] | None) -> None: ...

# -- binding/handover.pyx

@final
class FollowedCall:
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class FollowedCallback:
    def __call__(self, *args: Any) -> Any: ...

def around_call_soon_threadsafe(
    original: Callable[..., Any], may_follow: Callable[[Any], bool]
) -> Callable[..., Any]: ...
def around_run(original: Callable[[Any], None]) -> Callable[[Any], None]: ...
def around_write(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]: ...
def follow_call(function: Callable[..., Any]) -> Callable[..., Any]: ...

# -- binding/selection.pyx

def shape_of_selection(
    shape: tuple[int, ...] | None, selection: tuple[Any, ...]
) -> tuple[int | None, ...] | None: ...

# -- binding/functions.pyx

@final
class Function: ...

# -- binding/graph.pyx

@final
class Observed:
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class Scope: ...

@final
class Walk: ...

def walk_task(
    node: object, data: dict[Any, Any] | None = None
) -> tuple[bytes, str | None, list[str]]: ...

# -- binding/graph_tasks.pyx

def begin_graph_task(
    key: object, node: object, data: object, worker: object = None, reason: int = 0
) -> OpenTask | None: ...
def end_graph_task(
    opened: OpenTask | None,
    output: object,
    nbytes: object = None,
    error: BaseException | type[BaseException] | None = None,
    cancelled: bool = False,
) -> None: ...
def end_with_message(
    opened: OpenTask | None, message: object, worker: object, key: object
) -> None: ...
def use_key_split(function: Callable[[Any], str]) -> None: ...
def use_workers(
    register: Callable[[Any], int | None],
    sizes_of_inputs: Callable[[Any, Any], dict[Any, int] | None],
) -> None: ...

# -- binding/board_layout.pyx

ABSENT: int
BOARD_VERSION: int
BOARD_VERSION_OLDEST: int
OOM_ON_HOST: int
PINNED: int
BOARD_OPEN: int
BOARD_CLOSED: int
BOARD_CLOSED_ERROR: int
ALLOC_OFF: int
ALLOC_ON: int
ALLOC_UNAVAILABLE: int
DASK_HOOKS_NONE: int
DASK_HOOKS_WRAPPED: int
DASK_HOOKS_TRANSITIONS: int
GPU_HOOK_NONE: int
GPU_HOOK_ON: int
GPU_HOOK_OFF: int
NVML_NONE: int
NVML_OK: int
NVML_NO_MODULE: int
NVML_NO_DRIVER: int
NVML_DENIED: int
NVML_LOST: int
NVML_FAILED: int
NVML_STATES: dict[str, int]
RSS_KERNEL: int
RSS_SAMPLED: int
TASK_NONE: int
TASK_RUNNING: int
TASK_OK: int
TASK_ERROR: int
TASK_CANCELLED: int
TASK_KILLED: int
ATTRIBUTION_EXACT: int
ATTRIBUTION_SHARED: int
REASON_NONE: int
REASON_COROUTINE: int
REASON_EVENT_LOOP: int
REASON_NATIVE_THREADS: int
REASON_UNOWNED_THREAD: int
REASON_FOREIGN_ALLOCATOR: int
REASON_INNER_TASKS: int
HEADER_FIELDS: tuple[str, ...]
HEADER_TEXTS: tuple[str, ...]
LIVE_FIELDS: tuple[str, ...]
TASK_FIELDS: tuple[str, ...]
TASK_DEVICE_FIELDS: tuple[str, ...]
OOM_FIELDS: tuple[str, ...]
DEVICE_FIELDS: tuple[str, ...]
TOTAL_FIELDS: tuple[str, ...]
TOTAL_DEVICE_FIELDS: tuple[str, ...]
SAMPLE_FIELDS: tuple[str, ...]

# -- binding/board_reader.pyx

REASONS: dict[int, str]

class BoardError(Exception):
    reason: str
    detail: int | None
    def __init__(self, reason: str, detail: int | None = None) -> None: ...

@final
class Layout:
    @property
    def text(self) -> bytes: ...
    def __init__(self, text: bytes) -> None: ...
    def unpack(self, packed: bytes, texts: list[str]) -> list[_Record]: ...

class BoardReader:
    @property
    def layout(self) -> Layout: ...
    def __new__(cls, path: str | os.PathLike[str]) -> BoardReader: ...
    def close(self) -> None: ...
    def header(self) -> _Words: ...
    def inode(self) -> int: ...
    def texts(self) -> tuple[bytes, ...]: ...
    def live(self) -> _Words: ...
    def facts(self) -> bytes: ...
    def devices(self) -> list[tuple[int, _Words, bytes, bytes]]: ...
    def slots(self, running: int) -> list[tuple[int, _Record]]: ...
    def frames(
        self, position: int, most: int = 100_000, after_seq: int = 0, size: int = 262144
    ) -> tuple[int, bool, bytes, int, int, int, int, int]: ...
    def texts_from(self, position: int, size: int = 65536) -> tuple[list[str], int]: ...
    def totals(self) -> list[_Total]: ...
    def samples(self, index: int, most: int = 16384) -> tuple[bytes, int]: ...

# -- gpu/hook.pyx

@final
class Allocator:
    @property
    def inner(self) -> _Allocate: ...
    @property
    def pinned(self) -> bool: ...
    def __init__(self, inner: _Allocate, pinned: bool = False) -> None: ...
    def malloc(self, size: int) -> Any: ...

def use_cupy(
    memory: Any,
    *,
    stand_in: type,
    device_of_thread: Callable[[], int],
    install: Callable[[_Allocate], object],
    on_first_use: Callable[[], object],
    on_failure: Callable[[Exception], object],
    out_of_memory: Callable[[BaseException], bool],
) -> None: ...
def is_ours(allocator: object) -> bool: ...
def forget_allocator() -> None: ...
def note_gpu_hook(state: int, pinned: bool = False) -> None: ...
def note_nvml(state: int) -> None: ...
def gpu_devices_used() -> list[int]: ...
def note_device_identity(
    device: int, name: bytes, uuid: bytes, total_bytes: int | None
) -> None: ...
def note_device(
    device: int,
    used_bytes: int | None,
    total_bytes: int | None,
    process_bytes: int | None,
    utilisation_percent: int | None,
    rmm_bytes: int | None,
    rmm_peak_bytes: int | None,
) -> None: ...
