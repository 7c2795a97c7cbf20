"""Tells a person that passes are being timed: the one wait that a first use brings.

In: a call for every pass. Out: text on standard error, nothing if nothing is timed.
"""

import sys
from time import perf_counter
from types import TracebackType
from typing import TextIO

from .measure import Clock

_REWRITE_EVERY_S = 0.1


class PassCounter:
    """Counts passes in a `with` block: one rewriting line on a terminal, one at the end elsewhere.

    Call it after every pass.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Clock = perf_counter) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._rewrites = self._stream.isatty()
        self._clock = clock
        self._passes = 0
        self._began = self._shown = clock()

    def __enter__(self) -> "PassCounter":
        return self

    def __call__(self) -> None:
        """Count a pass."""
        self._passes += 1
        if self._passes == 1:
            self._began = self._clock()
        if self._rewrites and self._clock() - self._shown >= _REWRITE_EVERY_S:
            self._shown = self._clock()
            self._write(self._state(), end="")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._passes:
            self._write(self._state() + (", stopped" if error else ""), end="\n")

    def _state(self) -> str:
        return f"timed {self._passes} passes in {self._clock() - self._began:.1f} s"

    def _write(self, text: str, *, end: str) -> None:
        self._stream.write(f"\r{text}\x1b[K{end}" if self._rewrites else f"{text}{end}")
        self._stream.flush()
