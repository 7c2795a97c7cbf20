"""Run a check in a process of its own, so that what kills or stops it costs its own rows alone.

In: a check that can be pickled and the seconds it may take. Out: its rows, each as soon as it is
found; a row that says so when the process died or ran out of time.
"""

import os
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import Signals
from time import monotonic

from .rows import Row, guarded

Find = Callable[[], Iterator[Row]]


def run_apart(check: str, subject: str, find: Find, *, seconds: float) -> Iterator[Row]:
    """Yield the rows of `find`, run in a fresh process that is ended after so many seconds."""
    context = get_context("spawn")  # a copy of a process that holds a GPU is of no use
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send_rows, args=(there, check, subject, find), daemon=True)
    child.start()
    there.close()
    ends = monotonic() + seconds
    try:
        while here.poll(max(0.0, ends - monotonic())):
            row = here.recv()
            if row is None:
                return
            yield row
        found = f"no answer within {seconds:.0f} s"
    except EOFError:
        child.join()
        found = f"the process died ({_cause(child.exitcode)})"
    finally:
        child.kill()
        child.join()
    yield Row(check=check, subject=subject, found=found, verdict="failed")


def _send_rows(there: Connection, check: str, subject: str, find: Find) -> None:
    os.dup2(2, 1)  # the table alone goes to standard output, whatever libraries print
    for row in guarded(check, subject, find):
        there.send(row)
    there.send(None)


def _cause(code: int | None) -> str:
    return Signals(-code).name if code and code < 0 else f"exit code {code}"
