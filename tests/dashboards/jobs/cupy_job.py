"""A CuPy job, until its input ends: one task holds memory of the device and of the host, others
come and go beside it."""

import select
import sys
import threading

import cupy as cp

import dwsr_probe


@dwsr_probe.task("semblance")
def semblance(volume):
    shifted = cp.stack([cp.roll(volume, n) for n in range(5)])
    return shifted.sum(axis=0)


@dwsr_probe.task("hold")
def hold(running, over):
    kept = cp.ones(4_000_000), cp.cuda.alloc_pinned_memory(1 << 20)
    running.set()
    over.wait()
    del kept


if __name__ == "__main__":
    running, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(running, over))
    thread.start()
    running.wait()
    volume = cp.ones(1_000_000)
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        semblance(volume)
    over.set()
    thread.join()
