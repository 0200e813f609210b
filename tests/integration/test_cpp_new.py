"""C++'s operators new and delete, with glibc's malloc and with preloaded allocators that define the
operators themselves: each block is counted once, whichever function it comes from."""

import shutil
import subprocess

import pytest

from tests.conftest import require, tasks
from tests.integration.test_alloc_world import MIB, PRELUDE, library, own

ALLOCATORS = {
    "glibc": None,
    "jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
    "mimalloc": ("libmimalloc.so.2.0", "libmimalloc2.0"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
}
# How a block is made and how it is given back, each with its own form of the operators.
FORMS = {
    "plain": ("::operator new(n)", "::operator delete(p)"),
    "array": ("::operator new[](n)", "::operator delete[](p)"),
    "sized": ("::operator new(n)", "::operator delete(p, n)"),
    "sized_array": ("::operator new[](n)", "::operator delete[](p, n)"),
    "nothrow": ("::operator new(n, std::nothrow)", "::operator delete(p, std::nothrow)"),
    "nothrow_array": ("::operator new[](n, std::nothrow)", "::operator delete[](p, std::nothrow)"),
    "aligned": ("::operator new(n, a)", "::operator delete(p, a)"),
    "aligned_array": ("::operator new[](n, a)", "::operator delete[](p, a)"),
    "aligned_sized": ("::operator new(n, a)", "::operator delete(p, n, a)"),
    "aligned_sized_array": ("::operator new[](n, a)", "::operator delete[](p, n, a)"),
    "aligned_nothrow": (
        "::operator new(n, a, std::nothrow)",
        "::operator delete(p, a, std::nothrow)",
    ),
    "aligned_nothrow_array": (
        "::operator new[](n, a, std::nothrow)",
        "::operator delete[](p, a, std::nothrow)",
    ),
}
SOURCE = """
#include <malloc.h>
#include <new>
#include <string>
#include <vector>
static const std::align_val_t a{256};
#define FORM(form, make, drop) \\
    extern "C" void *form##_new(size_t n) { return make; } \\
    extern "C" void form##_delete(void *p, size_t n) { (void)n; drop; }
FORMS
extern "C" size_t size_of(void *p) { return malloc_usable_size(p); }
/* grown by code inside libstdc++ */
extern "C" size_t text(size_t n)
{
    std::string s;
    s.reserve(n);
    return malloc_usable_size(&s[0]);
}
/* a delete that is counted twice would hide later blocks */
extern "C" size_t small(size_t count)
{
    size_t bytes = 0;
    std::vector<char *> blocks(2 * count);
    const auto fill = [&](size_t from, size_t to) {
        for (; from < to; from++)
            blocks[from] = new char[1000], bytes += malloc_usable_size(blocks[from]);
    };
    fill(0, count);
    for (size_t i = 0; i < count / 2; i++) {
        bytes -= malloc_usable_size(blocks[i]);
        delete[] blocks[i];
        blocks[i] = nullptr;
    }
    fill(count, 2 * count);
    for (char *p : blocks) delete[] p;
    return bytes + malloc_usable_size(blocks.data());
}
extern "C" int is_null(void)
{
    volatile size_t huge = (size_t)-1 / 2 - 65536;
    return (::operator new(huge, std::nothrow) == nullptr)
        + (::operator new[](huge, a, std::nothrow) == nullptr);
}
extern "C" int is_thrown(void)
{
    volatile size_t huge = (size_t)-1 / 2 - 65536;
    int caught = 0;
    try { ::operator new(huge); } catch (const std::bad_alloc &) { caught++; }
    try { ::operator new[](huge); } catch (const std::bad_alloc &) { caught++; }
    try { ::operator new(huge, a); } catch (const std::bad_alloc &) { caught++; }
    return caught;
}
""".replace(
    "FORMS", "\n".join(f"FORM({form}, {make}, {drop})" for form, (make, drop) in FORMS.items())
)
JOB = (
    PRELUDE
    + f"""
lib = ctypes.CDLL(os.path.abspath("news.so"))
lib.size_of.restype = lib.text.restype = lib.small.restype = ctypes.c_size_t
take = lambda form: ctypes.c_void_p(getattr(lib, form + "_new")(ctypes.c_size_t(50 << 20)))
give = lambda form, p: getattr(lib, form + "_delete")(p, ctypes.c_size_t(50 << 20))
for form in {list(FORMS)}:
    getattr(lib, form + "_new").restype = ctypes.c_void_p
    with task(form):
        p = take(form)
        size = lib.size_of(p)
        give(form, p)
    print(form, size)
    with task(form + " keeps"):
        p = take(form)
    with task(form + " of another task"):
        give(form, p)
with task("text"):
    size = lib.text(ctypes.c_size_t(50 << 20))
print("text", size)
with task("small"):
    size = lib.small(ctypes.c_size_t(20_000))
print("small", size)
with task("refused"):
    assert lib.is_null() == 2
    # Debian's mimalloc is built as C: it aborts the program instead, with and without the probe
    assert "mimalloc" in os.environ.get("LD_PRELOAD", "") or lib.is_thrown() == 3
with task("after"):
    give("plain", take("plain"))
"""
)


@pytest.mark.parametrize("binding", ["lazy", "now"])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_new_and_delete(cli, allocator, binding):
    """Calls between libraries are bound at the first call, or all at the start."""
    require(shutil.which("g++"), "g++: apt-get install g++")
    if ALLOCATORS[allocator]:
        name, package = ALLOCATORS[allocator]
        path = require(library(name), f"{name}: apt-get install {package}")
        cli.env["LD_PRELOAD"] = path
    if binding == "now":
        cli.env["LD_BIND_NOW"] = "1"
    (cli.cwd / "news.cpp").write_text(SOURCE)
    built = subprocess.run(
        ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-o", "news.so", "news.cpp"],
        capture_output=True,
        text=True,
        cwd=cli.cwd,
        env={k: v for k, v in cli.env.items() if k != "LD_PRELOAD"},
    )
    assert built.returncode == 0, built.stderr
    done, records = cli.job(JOB)
    assert done.returncode == 0, done.stderr
    sizes = {name: int(size) for name, size in map(str.split, done.stdout.splitlines())}
    assert len(sizes) == len(FORMS) + 2
    for form in FORMS:
        # jemalloc's next size is 56 MiB, and an aligned block has room before it
        assert 50 * MIB <= sizes[form] <= 57 * MIB
        own(records, form, sizes[form], 0)
        own(records, f"{form} keeps", sizes[form], sizes[form])
        own(records, f"{form} of another task", 0, 0)
    own(records, "text", sizes["text"], 0)
    own(records, "small", sizes["small"], 0)
    own(records, "refused", 0, 0)
    own(records, "after", sizes["plain"], 0)
    (count,) = {r["alloc_count"] for r in tasks(records, "small")}
    assert 40_000 <= count < 41_000
