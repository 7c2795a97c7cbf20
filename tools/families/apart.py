"""Examine a model type in a process of its own: what it patches, breaks or leaks ends with it.

In: a type and a flavour. Out: the verdict, also when the process dies or never ends. All processes
part from one that has loaded the libraries once.
"""

import multiprocessing
from multiprocessing.connection import Connection

from .record import Verdict

TIMEOUT_S, _SLICE_S = 600, 5  # in slices, since a machine that sleeps counts as one of them


def examine_apart(family: str, flavour: str) -> Verdict:
    """Return what `examine` finds, or that its process failed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.families.examine"])  # libraries are loaded once
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=send_verdict, args=(family, flavour, there))
    process.start()
    there.close()
    try:
        if any(here.poll(_SLICE_S) for _ in range(TIMEOUT_S // _SLICE_S)):
            verdict: Verdict = here.recv()
            return verdict
        reason = f"no verdict after {TIMEOUT_S} s"
    except EOFError:
        process.join()
        reason = f"the process ended by itself with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Verdict(family=family, flavour=flavour, verdict="failed", reason=reason)


def send_verdict(family: str, flavour: str, connection: Connection) -> None:
    """Examine a type and send the verdict away: what the process of its own does."""
    from .examine import examine

    connection.send(examine(family, flavour=flavour))
