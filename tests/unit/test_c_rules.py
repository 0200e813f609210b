"""Rules for csrc and its tests that a compiler does not check: atomics, handles and thread-locals
each have one header (CONTRIBUTING.md, "C"). test_layers.py checks the size of the thread-locals.

tests/standin is another program, with C11's atomics on a board of its own: not covered.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
C_FILES = sorted(
    path.relative_to(ROOT)
    for folder in ("csrc", "tests/c")
    for path in (ROOT / folder).glob("*.[ch]")
)
RAW_ATOMIC = re.compile(
    r"__atomic_|__sync_|__ATOMIC_|\b_Atomic\b|\batomic_\w+|\bstdatomic\b|\bmemory_order"
    r"|\bdmb\b|__asm__ volatile"
)
RAW_HANDLE = re.compile(
    r"\.word\b|->word\b|task_handle\)\s*\{|task_handle \w+ = \{|[%*/] SLOT_COUNT"
)
RAW_THREAD_LOCAL = re.compile(r"\b__thread\b|\b_Thread_local\b|\bthread_local\b|<threads\.h>")


def code_of(text):
    """The text without comments; everything else keeps its line."""
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)


def found(pattern):
    return sorted(
        str(path) for path in C_FILES if pattern.search(code_of((ROOT / path).read_text()))
    )


def test_raw_atomics_are_in_one_header():
    assert found(RAW_ATOMIC) == ["csrc/atomics.h"]


def test_a_handle_is_made_and_decoded_in_one_header():
    assert found(RAW_HANDLE) == ["csrc/handle.h"]


def test_thread_locals_are_in_one_struct():
    """thread.h declares the struct, lineage.c defines it."""
    assert found(RAW_THREAD_LOCAL) == ["csrc/lineage.c", "csrc/thread.h"]
    names = [
        name
        for path in C_FILES
        for name in re.findall(r"\b__thread ([\w *]+);", code_of((ROOT / path).read_text()))
    ]
    assert names == ["struct thread_state this_thread"] * 2


@pytest.mark.parametrize(
    "pattern, line",
    [
        (RAW_ATOMIC, "__atomic_store_n(&x, 1, __ATOMIC_RELAXED);"),
        (RAW_ATOMIC, "__sync_fetch_and_add(&x, 1);"),
        (RAW_ATOMIC, "_Atomic int x;"),
        (RAW_ATOMIC, "atomic_fetch_add(&x, 1);"),
        (RAW_ATOMIC, '__asm__ volatile("" ::: "memory");'),
        (RAW_HANDLE, "uint64_t w = task.word;"),
        (RAW_HANDLE, "task_handle task = { w };"),
        (RAW_HANDLE, "use((task_handle){ w });"),
        (RAW_HANDLE, "slot = w % SLOT_COUNT;"),
        (RAW_THREAD_LOCAL, "static __thread int x;"),
        (RAW_THREAD_LOCAL, "static _Thread_local int x;"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern, line):
    assert pattern.search(code_of(line)) and not pattern.search(code_of(f"/* {line} */"))
