"""Samples kept as they are measured, so that an interrupted run can go on.

A JSON Lines file beside the result: first what was planned, then one sample a line. It is deleted
when the run is complete.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from tools.errors import ToolError

from .record import make_sample
from .turns import Sample


class Journal:
    """The journal of one run; None as its path keeps samples in memory alone.

    Args:
        path: of the journal.
        plan: what the samples belong to; a run that plans otherwise cannot go on from them.
        resume: go on from an earlier run's samples.

    Raises:
        ToolError: there is an unfinished run and `resume` is false, or it planned otherwise.
    """

    def __init__(self, path: Path | None, plan: Mapping[str, Any], *, resume: bool) -> None:
        self.samples: list[Sample] = []
        self._path = path
        self._file: TextIO | None = None
        if path is None:
            return
        if path.exists():
            if not resume:
                raise ToolError(
                    f"{path} holds a run that was not finished: add --resume to go on with it, or "
                    "delete it"
                )
            self.samples = read_journal(path, plan)
        text = "".join(f"{json.dumps(asdict(sample))}\n" for sample in self.samples)
        path.write_text(f"{json.dumps(plan)}\n{text}", encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        self.samples.append(sample)
        if self._file is not None:
            self._file.write(f"{json.dumps(asdict(sample))}\n")
            self._file.flush()

    def close(self, *, complete: bool) -> None:
        """Close the file, and delete it if it is of no more use."""
        if self._file is not None:
            self._file.close()
        if complete and self._path is not None:
            self._path.unlink(missing_ok=True)


def read_journal(path: Path, plan: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of an earlier run with the same plan; a torn last line is left out.

    Raises:
        ToolError: the plan was another one.
    """
    first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    try:
        found = json.loads(first)
    except ValueError:
        found = None
    wanted = json.loads(json.dumps(plan))
    if not isinstance(found, dict) or found != wanted:
        names = [
            name
            for name in wanted
            if not isinstance(found, dict) or found.get(name) != wanted[name]
        ]
        raise ToolError(
            f"{path} belongs to another run (other {', '.join(names)}): give the same options, or "
            "delete it"
        )
    samples = []
    for line in lines:
        try:
            samples.append(make_sample(json.loads(line)))
        except (ValueError, TypeError, KeyError):
            break
    return samples
