"""Watch what an answer costs: seconds in graphs, bytes that cross, device memory.

In: a block of work. Out: sums. The watch stands where `runtime.session` runs graphs,
`runtime.steps` writes inputs and `runtime.logits` reads rows; of device memory `nvidia-smi` tells.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import perf_counter
from typing import Any
from unittest.mock import patch

from runtime import steps
from runtime.logits import Best, Logits
from runtime.session import Session, write

_EVERY_S = 0.1
_MIB = 1 << 20


@dataclass
class Reading:
    """What was seen: passes, seconds within graphs and in all, bytes to the device and back."""

    passes: int = 0
    pass_seconds: float = 0.0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def host_share(self) -> float:
        """Part of the time that no graph ran, from 0 to 1."""
        return 1 - self.pass_seconds / self.seconds if self.seconds else 0.0


@contextmanager
def metered() -> Iterator[Reading]:
    """Count passes, their time and their input while the block runs."""
    reading = Reading()
    run, read = Session.run, Logits.read

    def timed(session: Session, binding: Any, options: Any) -> None:
        began = perf_counter()
        run(session, binding, options)
        reading.pass_seconds += perf_counter() - began

    def counted(tensor: Any, values: Any) -> None:
        reading.bytes_in += values.nbytes
        write(tensor, values)

    def fetched(logits: Logits, best: Best | None) -> Any:
        rows = read(logits, best)
        reading.bytes_out += logits.crossed
        reading.passes += 1
        return rows

    began = perf_counter()
    try:
        with (
            patch.object(Session, "run", timed),
            patch.object(steps, "write", counted),
            patch.object(Logits, "read", fetched),
        ):
            yield reading
    finally:
        reading.seconds = perf_counter() - began


class MemoryWatch:
    """Samples how much device memory is in use, in the background, while its block runs."""

    def __init__(self) -> None:
        self.peak: int | None = device_memory()
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        if self.peak is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.peak = max(self.peak or 0, device_memory() or 0)


def device_memory() -> int | None:
    """Return the bytes in use on the first GPU, or `None` where `nvidia-smi` does not tell."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return int(done.stdout.split()[0]) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
