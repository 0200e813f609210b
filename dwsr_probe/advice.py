"""What to do when a board cannot be made: one line, from the step that failed and its errno.

Called by the probe inside a job, by `run`'s parent and by doctor.
"""

from __future__ import annotations

import errno
import os

from dwsr_probe import _core

_ELSEWHERE = "choose another place with DWSR_PROBE_BOARD_DIR"
_SIZE = f"a board needs {-(-_core.BOARD_BYTES >> 20)} MiB"
_BY_ERRNO = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit on open files (sysctl fs.file-max)",
    errno.ENOMEM: f"{_SIZE}: raise the limit on virtual memory (ulimit -v), or free memory",
    errno.EAGAIN: "raise the limit on locked memory (ulimit -l)",
    errno.ENOSPC: f"{_SIZE} there: free some, or {_ELSEWHERE}",
    errno.EDQUOT: f"{_SIZE} there: free some of your quota, or {_ELSEWHERE}",
    errno.EFBIG: f"{_SIZE}: raise the limit on file sizes (ulimit -f)",
    errno.EROFS: _ELSEWHERE,
    errno.ENOENT: f"make the directory above it, or {_ELSEWHERE}",
    errno.ENAMETOOLONG: f"{_ELSEWHERE}, with a shorter name",
    errno.ENOTDIR: f"it must be a directory and not a link: remove it, or {_ELSEWHERE}",
    errno.ELOOP: f"it must be a directory and not a link: remove it, or {_ELSEWHERE}",
    errno.EPERM: f"it must belong to you with mode 0700: change that, or {_ELSEWHERE}",
    errno.EACCES: f"you may not write there: {_ELSEWHERE}",
}


def failure_text(error: OSError, directory: str, worked_before: bool = False) -> str:
    """One line: what failed, why, what to do.

    worked_before: a board could be made in that directory when the run, or this program, began.
    """
    if error.strerror == "use descriptors":
        return (
            f"cannot start: the limit on open files (ulimit -n) is below {_core.DESCRIPTORS_LEAST};"
            " raise it"
        )
    why = (
        "it is a symbolic link or not a directory"
        if error.errno in (errno.ENOTDIR, errno.ELOOP)
        else os.strerror(error.errno or 0)
    )
    advice = _BY_ERRNO.get(error.errno or 0, "run dwsr-probe doctor")
    if error.errno in (errno.EPERM, errno.EACCES) and worked_before:
        advice = (
            f"this process runs as another user (uid {os.geteuid()}) than the first one, or in a"
            " sandbox: run dwsr-probe there to measure it"
        )
    return f"cannot {error.strerror or 'start'} {directory}: {why}; {advice}"
