"""Where a long job stands, told to a person: one rewriting line on a terminal, few lines elsewhere.

In: stages that a job opens (`with progress.stage("fetch", total=n, unit="bytes") as stage`)
and advances. Out: text on standard error, and `progress.seconds`, the time each stage took.
Fetching and the export pipeline share it. Standard library only.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TextIO

Unit = Literal["bytes", "steps"]

REWRITE_EVERY_S = 0.1  # on a terminal
REPEAT_EVERY_S = 10.0  # in a log file


@dataclass(frozen=True)
class StageState:
    """One stage at one moment; `total` and `left_s` are None where they are not known."""

    name: str
    done: int
    total: int | None
    unit: Unit
    elapsed_s: float
    left_s: float | None


class Progress:
    """Tells a person how far a job is.

    `quiet` writes nothing (stage times are still kept); `stream` is standard error by default.
    `is_cancelled` is asked before each stage: libraries may swallow the exception of a Ctrl-C, and
    then no further stage begins.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._is_cancelled = is_cancelled
        self._rewrites = not quiet and self._stream.isatty()
        self._line_is_open = False

    @contextmanager
    def stage(
        self, name: str, *, total: int | None = None, done: int = 0, unit: Unit = "steps"
    ) -> Iterator["Stage"]:
        """Open a stage of `total` units, of which `done` were finished by an earlier run.

        Its last line says how long it took, or where it stood when an exception ended it.
        """
        if self._is_cancelled():
            raise KeyboardInterrupt
        stage = Stage(self, name, total=total, done=done, unit=unit)
        if self._rewrites:
            self.show(stage.state())
        try:
            yield stage
        except BaseException:
            self._end(f"{render_state(stage.state())}, stopped")
            raise
        self.seconds[name] = self.seconds.get(name, 0.0) + stage.state().elapsed_s
        self._end(render_end(stage.state()))

    def note(self, text: str) -> None:
        """Write `text` as a line of its own."""
        self._end(text)

    def now(self) -> float:
        """Return the clock's reading in seconds."""
        return self._clock()

    def interval_s(self) -> float:
        """Return the least time between two lines about one stage."""
        return REWRITE_EVERY_S if self._rewrites else REPEAT_EVERY_S

    def show(self, state: StageState) -> None:
        """Write the stage's present line: over the last one on a terminal, below it elsewhere."""
        if self._rewrites:
            self._write(f"\r{render_state(state)}\x1b[K")
            self._line_is_open = True
        else:
            self._write(f"{render_state(state)}\n")

    def _end(self, line: str) -> None:
        start, stop = ("\r", "\x1b[K\n") if self._line_is_open else ("", "\n")
        self._write(f"{start}{line}{stop}")
        self._line_is_open = False

    def _write(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(text)
            self._stream.flush()


class Stage:
    """One open stage; the job calls `advance` or `move_to` as often as it likes."""

    def __init__(
        self, progress: Progress, name: str, *, total: int | None, done: int, unit: Unit
    ) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._unit: Unit = unit
        self._done = self._done_before = done
        self._opened = self._shown = progress.now()

    def advance(self, by: int = 1) -> None:
        """Count `by` more units as done."""
        self.move_to(self._done + by)

    def move_to(self, done: int) -> None:
        """Set the number of units that are done."""
        self._done = done
        if self._progress.now() - self._shown >= self._progress.interval_s():
            self._shown = self._progress.now()
            self._progress.show(self.state())

    def state(self) -> StageState:
        """Return where the stage stands now."""
        elapsed = self._progress.now() - self._opened
        return StageState(
            self._name, self._done, self._total, self._unit, elapsed, self._left_s(elapsed)
        )

    def _left_s(self, elapsed: float) -> float | None:
        fresh = self._done - self._done_before
        if self._total is None or fresh <= 0:
            return None
        return elapsed * max(0, self._total - self._done) / fresh


def render_state(state: StageState) -> str:
    """Return one line about a stage under way, such as `fetch x: 45 %, 44 of 98 MB, 3 s left`."""
    words = []
    if state.total:
        words.append(f"{100 * state.done // state.total} %")
        words.append(f"{_amount(state.done, state.unit)} of {_amount(state.total, state.unit)}")
    elif state.done:
        words.append(_amount(state.done, state.unit))
    words.append(f"{_duration(state.elapsed_s)}")
    if state.left_s is not None:
        words.append(f"{_duration(state.left_s)} left")
    return f"{state.name}: {', '.join(words)}"


def render_end(state: StageState) -> str:
    """Return the line that stays when a stage is done, such as `fetch x: 98.4 MB in 2.1 s`."""
    amount = f"{_amount(state.done, state.unit)} in " if state.done else ""
    return f"{state.name}: {amount}{_duration(state.elapsed_s)}"


def _amount(count: int, unit: Unit) -> str:
    if unit == "steps":
        return str(count)
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"
