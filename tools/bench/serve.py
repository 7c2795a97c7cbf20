"""A worker's side: one engine that answers jobs from standard input, timed by one clock.

Whatever the engine, the time of a chunk is taken here when it hands the chunk over, so that plain
and speculative decoding, this product and its peers are measured by one code path.
Standard library only.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

from .busy import count_busy, read_clock, read_peak_bytes
from .wire import Answer, Failure, Hello, Job, Timed, decode, encode

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class Emit(Protocol):
    """Takes the tokens that an engine has just decided."""

    def __call__(
        self, token_ids: Sequence[int], /, *, shows_text: bool | None = None, request: int = 0
    ) -> None:
        """Note the time at which these tokens came out, and for which of the job's prompts."""
        ...


class Served(Protocol):
    """An engine to be measured."""

    def describe(self) -> Hello:
        """Return versions and threads; `load_s` is filled in by the caller."""
        ...

    def reset(self) -> None:
        """Forget everything that an earlier job could make a later one faster by."""
        ...

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Answer the job greedily, hand over each chunk, and return the engine's own counters."""
        ...

    def memory(self) -> dict[str, int]:
        """Return what is known of the memory's parts, in bytes by name."""
        ...


def serve(
    make_engine: Callable[[], Served],
    *,
    jobs: TextIO | None = None,
    answers: TextIO | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Load the engine, then answer jobs until there are no more; return the exit code."""
    if jobs is None:
        jobs = sys.stdin
        _die_with_parent()
    answers = _claim_stdout() if answers is None else answers

    def tell(message: Answer | Failure | Hello) -> None:
        answers.write(encode(message))
        answers.flush()

    began = clock()
    try:
        engine = make_engine()
        hello = engine.describe()
    except Exception as error:  # whatever a library raises becomes the row's reason
        tell(Failure(reason=explain(error)))
        return 1
    tell(
        Hello(
            versions=hello.versions,
            threads=hello.threads,
            load_s=clock() - began,
            details=hello.details,
        )
    )
    for line in jobs:
        job = decode(line)
        assert isinstance(job, Job)
        try:
            tell(measure(engine, job, clock=clock))
        except Exception as error:
            tell(Failure(reason=explain(error)))
    return 0


def measure(engine: Served, job: Job, *, clock: Callable[[], float] = time.perf_counter) -> Answer:
    """Run one job and return its chunks with their times."""
    engine.reset()
    chunks: list[Timed] = []
    before = read_clock()
    submitted = clock()

    def emit(
        token_ids: Sequence[int], /, *, shows_text: bool | None = None, request: int = 0
    ) -> None:
        at = round(clock() - submitted, 6)
        chunks.append(
            Timed(at_s=at, token_ids=tuple(token_ids), shows_text=shows_text, request=request)
        )

    stats = engine.run(job, emit)
    wall = clock() - submitted
    after = read_clock()
    return Answer(
        chunks=tuple(chunks),
        stats=stats,
        cpu_s=after.cpu_s - before.cpu_s,
        wall_s=wall,
        busy_threads=count_busy(before, after),
        peak_bytes=read_peak_bytes(),
        memory=engine.memory(),
    )


def explain(error: Exception) -> str:
    """Return the error on one line: what it begins and what it ends with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = lines[0] if len(lines) == 1 else f"{lines[0]}; {lines[-1]}"
    return f"{type(error).__name__}: {said}"


def _die_with_parent() -> None:
    """End with the benchmark, even when it is killed while this process stands still."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _claim_stdout() -> TextIO:
    """Keep standard output for messages; what libraries print goes to standard error."""
    mine = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return mine
