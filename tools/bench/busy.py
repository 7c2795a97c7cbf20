"""What this process really uses: threads that compute, processor time, resident memory.

A library may ignore the number of threads it was given; the clock of each thread does not lie.
Standard library only. Where the system has no `/proc`, threads and memory are not known (None).
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
# A thread that computed for less than this share of the busiest one's time only woke up at times.
_BUSY_SHARE = 0.25
# Threads' clocks tick every 10 ms or so: fewer ticks than this say nothing.
_FEWEST_TICKS = 10


@dataclass(frozen=True)
class Clock:
    """Readings at one moment: processor time in seconds, and the clock ticks of each thread."""

    cpu_s: float
    ticks: dict[str, int]


def read_clock() -> Clock:
    """Return the readings now."""
    return Clock(time.process_time(), dict(_read_ticks()))


def count_busy(before: Clock, after: Clock) -> int | None:
    """Return how many threads did the work in between; None where that cannot be told."""
    spent = [ticks - before.ticks.get(name, 0) for name, ticks in after.ticks.items()]
    most = max(spent, default=0)
    if most < _FEWEST_TICKS:
        return None
    return sum(ticks >= _BUSY_SHARE * most for ticks in spent)


def read_peak_bytes() -> int | None:
    """Return the greatest resident memory that this process has had."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _read_ticks() -> list[tuple[str, int]]:
    if not _TASKS.is_dir():
        return []
    found = []
    for task in _TASKS.iterdir():
        try:
            stat = (task / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:  # the thread ended meanwhile
            continue
        numbers = stat.rpartition(")")[2].split()  # a name may hold spaces
        found.append((task.name, int(numbers[11]) + int(numbers[12])))  # user and system time
    return found
