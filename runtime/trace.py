"""A line of JSON for every round, for people who want to see what was drafted and what stayed.

In: verdicts. Out: a file of one object per line, written as the rounds happen: `level`, `start`
(position of the first token), `drafter`, `drafted` and `emitted` (token ids), `accepted` (how many
of the drafted stayed), `signals` (how sure the drafter was), `seconds`. Rounds inside a proposal
come before the round that proposal belongs to. What a stop or the budget cuts from the last round
still stands in its line.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .errors import RequestError
from .speculate import Verdict, Watch, watch_nothing


@contextmanager
def open_trace(path: str | Path | None) -> Iterator[Watch]:
    """Yield a watch that writes to `path`; without a path it looks away.

    Raises:
        RequestError: the file cannot be written.
    """
    if path is None:
        yield watch_nothing
        return
    with _open(Path(path)) as file:

        def watch(verdict: Verdict) -> None:
            if (
                file.seekable() and file.tell() == 0
            ):  # an older trace stays until there is a new one
                file.truncate()
            file.write(json.dumps(_line(verdict)) + "\n")

        yield watch


def _open(path: Path) -> TextIO:
    try:
        return path.open("r+" if path.is_file() else "w", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"the trace {path} cannot be written: {error.strerror}") from None


def _line(verdict: Verdict) -> dict[str, object]:
    return {
        "level": verdict.level,
        "start": verdict.start,
        "drafter": verdict.drafted.drafter,
        "drafted": verdict.drafted.tokens,
        "signals": [round(signal, 3) for signal in verdict.drafted.signals],
        "accepted": verdict.accepted,
        "emitted": verdict.emitted,
        "seconds": round(verdict.seconds, 6),
    }
