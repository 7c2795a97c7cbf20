"""A lock between processes: whoever holds a file's lock may write what it stands for.

In: a path. Out: a context in which no other process holds that path. The operating system
frees the lock when its process ends, however it ends; the empty file stays. Standard library only.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.2

if sys.platform == "win32":
    import msvcrt

    def _take_lock(file: int) -> bool:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _take_lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def hold_lock(
    path: Path,
    *,
    on_wait: Callable[[], None] = lambda: None,
    patience_s: float = math.inf,
    mode: int = 0o644,
) -> Iterator[None]:
    """Hold the lock of `path` (created with `mode` if absent), waiting for another process.

    `on_wait` is called once when there is something to wait for. Raises TimeoutError when another
    process still holds it after `patience_s`, OSError when the file cannot be created or its file
    system has no locks.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if not _take_lock(file):
            on_wait()
            deadline = time.monotonic() + patience_s
            while not _take_lock(file):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds {path}")
                time.sleep(POLL_S)
        yield
    finally:
        os.close(file)
