"""The line of a probe that cannot start: its advice fits the errno."""

import errno
import os

import pytest

from dwsr_probe.advice import failure_text


@pytest.mark.parametrize(
    ("step", "number", "worked", "said", "unsaid"),
    [
        (
            "open the board directory",
            errno.EACCES,
            True,
            f"another user (uid {os.geteuid()})",
            "link",
        ),
        ("trust the board directory", errno.EPERM, True, "another user", "DWSR_PROBE_BOARD_DIR"),
        ("trust the board directory", errno.EPERM, False, "mode 0700", "another user"),
        ("create the board directory", errno.EACCES, False, "DWSR_PROBE_BOARD_DIR", "another user"),
        ("create the board directory", errno.ENOENT, False, "directory above it", "link"),
        ("create the board file", errno.EMFILE, True, "ulimit -n", "DWSR_PROBE_BOARD_DIR"),
        ("open the board directory", errno.EMFILE, False, "ulimit -n", "link"),
        ("create the board file", errno.ENFILE, True, "fs.file-max", "DWSR_PROBE_BOARD_DIR"),
        ("create the board file", errno.EROFS, False, "DWSR_PROBE_BOARD_DIR", "MiB"),
        ("create the board file", errno.ENOSPC, False, "MiB there", "mode"),
        ("allocate the board file", errno.ENOSPC, True, "free some", "ulimit"),
        ("allocate the board file", errno.EDQUOT, True, "quota", "ulimit"),
        ("allocate the board file", errno.EFBIG, True, "ulimit -f", "DWSR_PROBE_BOARD_DIR"),
        ("map the board file", errno.ENOMEM, True, "ulimit -v", "DWSR_PROBE_BOARD_DIR"),
        ("open the board directory", errno.ELOOP, False, "not a link", "Too many levels"),
        ("map the board file", errno.EXDEV, False, "dwsr-probe doctor", "ulimit"),
    ],
)
def test_the_advice_fits_the_errno(step, number, worked, said, unsaid):
    line = failure_text(OSError(number, step), "/some/where", worked)
    assert (
        line.startswith(f"cannot {step} /some/where: ")
        and said in line
        and unsaid not in line
        and "\n" not in line
    )
