"""The verdicts of a sweep, kept in a file as they come, so that a sweep can stop and go on.

In: a path, shared by as many sweeps as like to. Out: whose turn it is, and every verdict so far. A
family that a living process has begun is left to it. The file is JSON: the versions that the
verdicts hold for, and one verdict for each family and flavour.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runtime.lock import hold_lock

from ..errors import ToolError

_LIBRARIES = ("transformers", "torch", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one type in one flavour; `error` is relative to the range of the logits."""

    family: str
    flavour: str
    verdict: str  # ok, refused or failed
    reason: str = ""
    error: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        words = f"{self.verdict}: {self.reason}" if self.reason else self.verdict
        error = "" if self.error is None else f"  {self.error:.1e}"
        return f"{self.family} ({self.flavour})  {words}{error}  {self.seconds:.0f} s"


class Record:
    """The verdicts in `path`; without a path, in memory alone.

    Raises ToolError: the file is no record, or one of other versions.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory = _empty()
        with self._opened() as record:
            if record["versions"] != _versions():
                raise ToolError(
                    f"{path} holds verdicts for {_words(record['versions'])}, but these are "
                    f"{_words(_versions())}: name another file"
                )

    def verdicts(self) -> list[Verdict]:
        """Return every verdict so far, by family and flavour."""
        with self._opened() as record:
            return [Verdict(**fields) for _, fields in sorted(record["verdicts"].items())]

    def forget(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Let `jobs` be done anew."""
        with self._opened() as record:
            for job in jobs:
                record["verdicts"].pop(_key(job), None)

    def left(self, jobs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those of `jobs` that have no verdict yet."""
        with self._opened() as record:
            return [job for job in jobs if _key(job) not in record["verdicts"]]

    def claim(self, jobs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
        """Return the first of `jobs` that is neither done nor begun elsewhere, now begun here."""
        with self._opened() as record:
            for job in jobs:
                key = _key(job)
                if key in record["verdicts"] or _is_running(record["begun"].get(key)):
                    continue
                record["begun"][key] = os.getpid()
                return job
        return None

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict."""
        key = _key((verdict.family, verdict.flavour))
        with self._opened() as record:
            record["verdicts"][key] = asdict(verdict)
            record["begun"].pop(key, None)

    @contextmanager
    def _opened(self) -> Iterator[dict[str, Any]]:
        """Read the record, and write what changed in it, while no other process does."""
        if self._path is None:
            yield self._memory
            return
        with hold_lock(self._path.with_name(f"{self._path.name}.lock"), on_wait=lambda: None):
            record = _read(self._path)
            before = json.dumps(record)
            yield record
            if json.dumps(record) != before or not self._path.exists():
                draft = self._path.with_name(f"{self._path.name}.partial")
                draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
                draft.replace(self._path)


def _empty() -> dict[str, Any]:
    return {"versions": _versions(), "verdicts": {}, "begun": {}}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return _empty()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        record = None
    if not isinstance(record, dict) or not _empty().keys() <= record.keys():
        raise ToolError(f"{path} does not hold the verdicts of a sweep: name another file")
    return record


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}


def _words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _key(job: tuple[str, str]) -> str:
    return "/".join(job)


def _is_running(process: int | None) -> bool:
    if process is None:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
