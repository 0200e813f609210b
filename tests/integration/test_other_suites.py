"""What the test suites of CPython and distributed look at, under the probe as without it.

Each situation is a script of our own that prints what such a test compares: descriptors of
children, refused arguments, signals, exit codes, threads, the state of a Dask worker. It runs bare
and under `dwsr-probe run`; both must print the same. CPython's own tests of descriptors run, too,
where they are installed.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import permitted

PY = sys.executable

# CPython's test_subprocess, test_os, test_posix, test_signal, test_threading, test_fork1,
# test_wait3, test_gc, test_faulthandler and test_atexit
PYTHON = {
    "descriptors of a child": """
        import os, subprocess, sys
        LIST = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
        pipes = [descriptor for _ in range(5) for descriptor in os.pipe()]
        for descriptor in pipes: os.set_inheritable(descriptor, True)
        for options in ({}, {"pass_fds": pipes[2:4]}, {"close_fds": False}):
            done = subprocess.run([sys.executable, "-c", LIST], stdout=-1, text=True, **options)
            print(done.stdout)
    """,
    "descriptors above a lowered limit": """
        import os, resource, subprocess, sys
        high = os.dup2(1, 300)
        os.set_inheritable(high, True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
        print(subprocess.run([sys.executable, "-c", code], stdout=-1, text=True).stdout)
    """,
    "arguments that are refused": """
        import _posixsubprocess, os, subprocess, sys
        def refused(function, *args, **kwargs):
            try: print(function(*args, **kwargs))
            except Exception as error: print(type(error).__name__, error)
        true = [b"/bin/true"]
        rest = None, -1, -1, -1, -1, 1, 2, 1, 2, True, True, -1, None, None, None, -1, None
        if sys.version_info >= (3, 11): rest += (False,)
        for keep in ((-1, 2), (4, 3), ("x",), (1 << 65,)):
            refused(_posixsubprocess.fork_exec, true, true, True, keep, None, *rest)
        refused(_posixsubprocess.fork_exec)
        refused(os.execv, "/bin/true", [])
        refused(os.execv, "/none", ["x"])
        refused(os.execve, "/bin/true", ["x"], {"a=b": "c"})
        refused(os.execve, "/bin/true", ["x"], [])
        refused(subprocess.run, ["/none"])
        refused(subprocess.run, ["/bin/true"], cwd="/none")
        refused(subprocess.run, ["/bin/true"], preexec_fn=lambda: 1 / 0)
    """,
    "functions that are wrapped": """
        import _posixsubprocess, inspect, os, pickle
        for function in (os.execv, os.execve, _posixsubprocess.fork_exec):
            print(function.__name__, function.__qualname__, (function.__doc__ or "")[:40])
            print(pickle.loads(pickle.dumps(function)) is function)
            try: print(inspect.signature(function))
            except ValueError: print("no signature")
        print(os.execve in os.supports_fd, sorted({f.__name__ for f in os.supports_fd}))
    """,
    "signals": """
        import os, signal, subprocess, sys
        def state():
            blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
            return blocked, [str(signal.getsignal(n)) for n in range(1, 32)], signal.getitimer(0)
        print(state())
        pid = os.fork()
        if pid == 0:
            print(state(), flush=True)
            os.kill(os.getpid(), signal.SIGUSR1)
        print(os.waitpid(pid, 0)[1])
        child = [sys.executable, "-c", "import signal as s; print(s.pthread_sigmask(0, []))"]
        print(subprocess.run(child, stdout=-1, text=True).stdout)
        print(subprocess.run(child, stdout=-1, text=True, restore_signals=False).stdout)
    """,
    "children that are ours to wait for": """
        import os, resource
        def none():
            try: return os.waitpid(-1, os.WNOHANG)
            except ChildProcessError: return "none"
        print(none())
        for wait in (lambda pid: os.wait3(0)[1], lambda pid: os.wait4(pid, 0)[1]):
            pid = os.fork()
            if pid == 0: os._exit(7)
            print(os.waitstatus_to_exitcode(wait(pid)), none())
        print([resource.getrlimit(kind) for kind in range(16)], os.getpgrp() == os.getsid(0))
    """,
    "threads and garbage": """
        import faulthandler, gc, sys, threading
        print([t.name for t in threading.enumerate()], len(sys._current_frames()))
        print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.get_freeze_count(), gc.garbage)
        print(sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.excepthook.__name__)
        with open("traceback", "w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            print([line for line in file if "hread" not in line])
    """,
    "the end of a program": """
        import atexit, os, sys, threading
        atexit.register(print, "last")
        atexit.register(print, "first")
        before = threading.Thread(target=print, args=("thread",), kwargs={"flush": True})
        before.start()
        before.join()
        if os.fork() == 0: sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        sys.exit(5)
    """,
    "an exception at the end": """
        import atexit
        atexit.register(lambda: 1 / 0)
        class Late:
            def __del__(self): print("deleted", flush=True)
        late = Late()
        raise ValueError("as it should")
    """,
}

# distributed's test_worker, test_actor, test_nanny, test_preload, test_gc, and the checks of its
# utils_test for what a closed cluster leaves
DASK = {
    "inside a task": """
        import threading, traceback
        import distributed.worker as module
        from distributed import Client, LocalCluster, get_worker
        def look():
            worker, thread_state = get_worker(), module.thread_state
            key = worker.get_current_task()
            return (thread_state.key == key, worker.active_threads[threading.get_ident()] == key,
                    thread_state.execution_state["worker"] is worker, key in worker.active_keys)
        def fails(): raise ValueError("as it should")
        async def fails_later(): raise ValueError("as it should")
        class Actor:
            def fails(self): raise ValueError("as it should")
            def look(self): return module.thread_state.actor, module.thread_state.key
        with LocalCluster(n_workers=1, threads_per_worker=1, processes=False,
                          dashboard_address=None) as cluster, Client(cluster) as client:
            print(client.submit(look).result())
            for function in (fails, fails_later):
                future = client.submit(function)
                error = future.exception()
                print(repr(error), [f.name for f in traceback.extract_tb(future.traceback())])
            actor = client.submit(Actor, actor=True).result()
            print(actor.look().result())
            try: actor.fails().result()
            except ValueError as error: print(error)
            worker = cluster.workers[0]
            threads = list(worker.active_threads.values())
            print(threads, sorted(worker.plugins), sorted(worker.extensions))
    """,
    "what a closed cluster leaves": """
        import gc, threading
        from distributed import Client, LocalCluster, Nanny, Scheduler, Worker
        before = {thread.name for thread in threading.enumerate()}
        with LocalCluster(n_workers=2, threads_per_worker=2, processes=False,
                          dashboard_address=None) as cluster, Client(cluster) as client:
            print(client.gather(client.map(abs, range(4))))
        del cluster, client
        gc.collect()
        left = [found for kind in (Scheduler, Worker, Nanny) for found in kind._instances]
        print([(type(found).__name__, found.status.name) for found in left])
        names = {thread.name for thread in threading.enumerate()} - before
        print(sorted(name for name in names if "offload" not in name.lower()))
    """,
    "a nanny's worker": """
        import os
        from distributed import Client, LocalCluster
        if __name__ == "__main__":
            with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None
                              ) as cluster, Client(cluster) as client:
                first, = client.run(os.getpid).values()
                client.restart()
                second, = client.run(os.getpid).values()
                print(first != second, client.submit(sum, [1, 2]).result())
                names = client.run(lambda dask_worker: sorted(dask_worker.preloads))
                print(list(names.values()))
    """,
}


def same(cli, code):
    """stdout and exit code, bare; they are the same under the probe. stderr is not compared: lines
    of different processes mix there."""
    script = cli.script(code)
    options = dict(cwd=cli.cwd, env=cli.env, capture_output=True, text=True, timeout=600)
    bare = subprocess.run([PY, script], **options)
    probed = cli("run", "-q", PY, script)
    assert (probed.stdout, probed.returncode) == (bare.stdout, bare.returncode), probed.stderr
    assert bare.stdout, bare.stderr
    return bare


@pytest.mark.parametrize("situation", PYTHON)
def test_of_cpython(cli, situation):
    same(cli, PYTHON[situation])


@pytest.mark.parametrize("situation", DASK)
def test_of_distributed(cli, situation):
    pytest.importorskip("distributed")
    assert same(cli, DASK[situation]).returncode == 0


def test_cpythons_own_tests_of_descriptors(cli):
    """They list all descriptors of a child interpreter."""
    permitted(
        list(Path(sysconfig.get_path("stdlib")).glob("test/test_subprocess.py")),
        "run CPython's own tests: they are not installed",
    )
    chosen = ("-m", "test_pass_fds*", "-m", "test_close_fds*")
    done = cli("run", "-q", PY, "-m", "test", "test_subprocess", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
