"""A store of past answers that outlives processes: one private file of token sequences.

In: a path and a tokenizer's fingerprint. Out: an archive of what is stored, to draft from; finished
sequences are added. Nothing about the file ever stops an answer: what cannot be written is not
stored, and a log line says so.

The file is one line, `forerun store 1 FINGERPRINT`, and records: a length and a CRC-32 as little
endian uint32, then that many int32. It grows at its end under a lock between processes; a record
that a crash cut short is dropped by whoever adds next. Full, it is replaced by its newest half.
"""

import logging
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .drafters import Archive
from .errors import StoreError
from .lock import hold_lock
from .storage import user_path

MOST_TOKENS = 1 << 20  # a full store takes a fifth of a second to open
MOST_BYTES = 4 * MOST_TOKENS
_MAGIC = b"forerun store "
_VERSION = b"1"
_HEADER = struct.Struct("<II")
_OVERLAP = 4  # tokens that are stored again with what continues them
_PATIENCE_S = 1.0  # how long an answer's end may wait for another process
_PRIVATE = 0o600

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """What a store's file holds: sequences as int32 bytes, and where the last whole one ends."""

    fingerprint: str
    records: tuple[bytes, ...]
    end: int

    @property
    def tokens(self) -> int:
        """How many tokens are stored."""
        return sum(len(record) for record in self.records) // 4


def read_store(path: Path) -> Contents:
    """Return what the store at `path` holds, without anything that a crash cut short.

    Raises:
        StoreError: it is absent, unreadable, of a newer version, or no store.
    """
    with _naming(path):
        return _parse(path, path.read_bytes())


def clear_store(path: Path) -> None:
    """Remove the store at `path`.

    Raises:
        StoreError: it is no store, or cannot be removed.
    """
    read_store(path)
    with _naming(path), _locked(path):
        path.unlink(missing_ok=True)


class Store:
    """An open store. One engine adds to it at a time; other processes may add to the same file.

    Args:
        path: the file; it is made if absent, its folder too.
        fingerprint: of the tokenizer whose tokens are stored.
        vocabulary: how many tokens it has.

    Attributes:
        archive: what is stored, for drafters to read.

    Raises:
        StoreError: the file is no store, belongs to another tokenizer, or cannot be used.
    """

    def __init__(self, path: str | Path, *, fingerprint: str, vocabulary: int) -> None:
        self.path = user_path(path).resolve()
        self._fingerprint = fingerprint
        with _naming(self.path):
            if _is_missing(self.path):
                self._make()
        contents = read_store(self.path)
        if contents.fingerprint != fingerprint:
            raise StoreError(
                f"{self.path} holds the tokens of another tokenizer: give each tokenizer a store "
                f"of its own, or clear this one with  python -m runtime store {self.path} --clear"
            )
        with _naming(self.path):
            self.path.chmod(_PRIVATE)
        sequences = [np.frombuffer(record, "<i4") for record in contents.records]
        self._last = sequences[-1].tolist() if sequences else []
        # A damaged file must not name tokens that no graph can be fed.
        known = (np.where(tokens < vocabulary, tokens, -1) for tokens in sequences)
        self.archive = Archive(known, capacity=MOST_TOKENS)

    def add(self, sequence: Sequence[int]) -> None:
        """Store a finished sequence; what it shares with the last one is not stored again."""
        shared = next(
            (i for i, (a, b) in enumerate(zip(sequence, self._last, strict=False)) if a != b),
            min(len(sequence), len(self._last)),
        )
        self._last = list(sequence)
        added = self._last[max(0, shared - _OVERLAP) :]
        if shared == len(sequence):
            return
        self.archive.add(added)
        try:
            with _locked(self.path):
                self._append(np.array(added, "<i4").tobytes())
        except (OSError, StoreError) as error:
            _log.warning("an answer was not stored in %s: %s", self.path, error)

    def _make(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.path):
            if _is_missing(self.path):
                _write_whole(self.path, self._fingerprint, ())

    def _append(self, record: bytes) -> None:
        if _is_missing(self.path):  # another process cleared it
            _write_whole(self.path, self._fingerprint, [])
        contents = _parse(self.path, self.path.read_bytes())
        if contents.fingerprint != self._fingerprint:
            raise StoreError("it now holds the tokens of another tokenizer")
        if contents.end + _HEADER.size + len(record) > MOST_BYTES:
            kept = _newest([*contents.records, record], MOST_BYTES // 2)
            _write_whole(self.path, self._fingerprint, kept)
            return
        with self.path.open("r+b") as file:
            file.truncate(contents.end)
            file.seek(contents.end)
            file.write(_spell(record))


def _is_missing(path: Path) -> bool:
    return not path.exists() or (path.is_file() and path.stat().st_size == 0)


def _parse(path: Path, data: bytes) -> Contents:
    line, newline, _ = data.partition(b"\n")
    words = line.removeprefix(_MAGIC).split(b" ")
    if not line.startswith(_MAGIC) or not newline or len(words) != 2 or not words[1].isalnum():
        raise StoreError(f"{path} is no store of forerun: name another file")
    if words[0] != _VERSION:
        raise StoreError(
            f"{path} has format version {words[0].decode(errors='replace')}, but this forerun "
            f"reads version {_VERSION.decode()}: update forerun, or name another file"
        )
    records = list(_records(data, len(line) + 1))
    end = len(line) + 1 + sum(_HEADER.size + len(record) for record in records)
    return Contents(words[1].decode(), tuple(records), end)


def _records(data: bytes, place: int) -> Iterator[bytes]:
    """Yield the records from `place` on, up to the first that is not whole."""
    while place + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, place)
        record = data[place + _HEADER.size :][: 4 * length]
        if len(record) < 4 * length or zlib.crc32(record, length) != checksum:
            return
        yield record
        place += _HEADER.size + len(record)


def _spell(record: bytes) -> bytes:
    length = len(record) // 4
    return _HEADER.pack(length, zlib.crc32(record, length)) + record


def _newest(records: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """Return the newest records that fit; of one that is too long by itself, its end."""
    kept: list[bytes] = []
    left = most_bytes
    for record in reversed(records):
        left -= _HEADER.size + len(record)
        if left < 0:
            break
        kept.insert(0, record)
    return kept or [records[-1][-(most_bytes // 4 * 4) :]]


def _write_whole(path: Path, fingerprint: str, records: Sequence[bytes]) -> None:
    """Put a new file in the place of the old one in a single step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - a handle has no path
            file.write(b"%b%b %b\n" % (_MAGIC, _VERSION, fingerprint.encode()))
            file.writelines(map(_spell, records))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(f"{path.name}.lock")
    with hold_lock(lock, patience_s=_PATIENCE_S, mode=_PRIVATE):
        yield


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"there is no store at {path}") from None
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"the store {path} cannot be used ({reason}): name another file") from None
