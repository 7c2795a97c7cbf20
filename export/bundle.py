"""Put a bundle, or a stage of one, into its place whole, or not at all.

In: an output folder. Out: `Staging`, a hidden sibling to write into; `publish` adds `manifest.json`
last and renames the whole, `amend` moves stages into the bundle that is there and then replaces its
manifest. Whatever fails before leaves what was there as it was. Failures to write come as
`PublishError` that names the path and says space or permission.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from runtime.errors import BundleError
from runtime.manifest import MANIFEST_NAME, FileEntry, Manifest, dump_manifest, parse_manifest

from .errors import PublishError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_TOUCHED = "touched"  # names the sub-folders of a bundle that an edit moves in or out


class Staging:
    """A folder beside the output in which a bundle grows. Made and removed by `staged`."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder = folder
        self._output = output

    def make_folder(self, name: str) -> Path:
        """Make a sub-folder."""
        folder = self.folder / name
        with writing(folder):
            folder.mkdir()
        return folder

    def remove_folder(self, name: str) -> None:
        """Remove a sub-folder that is not to be published."""
        shutil.rmtree(self.folder / name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        path = self.folder / name
        with writing(path):
            path.write_bytes(content)

    def publish(self, manifest: Manifest) -> Manifest:
        """List all files, write the manifest last, and rename the folder into its place."""
        with writing(self._output):
            listed = replace(manifest, files=_list_files(self.folder))
            for entry in listed.files:
                _flush(self.folder / entry.path)
            last = self.folder / MANIFEST_NAME
            last.write_text(dump_manifest(listed), encoding="utf-8")
            _flush(last)
            self._place()
        return listed

    def put(self) -> None:
        """Rename the folder, which is to be no bundle, into its place with the files it holds."""
        with writing(self._output):
            for path in self.folder.rglob("*"):
                if path.is_file():
                    _flush(path)
            self._place()

    def amend(self, before: Manifest, after: Manifest, *, dropped: Sequence[str] = ()) -> Manifest:
        """Move the sub-folders made here into the bundle at the output; return its new manifest.

        One rename, that of the manifest, turns the old bundle into the new one. Files of other
        sub-folders are not touched, so that whoever has them open reads on.

        Args:
            before: the bundle's manifest when the edit began.
            after: its new manifest; the list of files is made here.
            dropped: sub-folders that no longer belong to the bundle.

        Raises:
            PublishError: something lies where a sub-folder is to go, or the bundle was changed
                meanwhile.
        """
        with writing(self._output):
            added = sorted(path.name for path in self.folder.iterdir())
            listed = replace(after, files=_merge_files(before, _list_files(self.folder), dropped))
            for path in [*self.folder.rglob("*")]:
                _flush(path)
            pending = self.folder / MANIFEST_NAME
            pending.write_text(dump_manifest(listed), encoding="utf-8")
            (self.folder / _TOUCHED).write_text("\n".join([*added, *dropped]), encoding="utf-8")
            for path in (pending, self.folder / _TOUCHED, self.folder):
                _flush(path)
            self._check_unchanged(before, added)
            try:
                for name in added:
                    (self.folder / name).rename(self._output / name)
                _flush(self._output)
                pending.replace(self._output / MANIFEST_NAME)
                _flush(self._output)
            finally:
                _settle(self._output, self.folder)
        return listed

    def _place(self) -> None:
        for folder in {self.folder, *(path.parent for path in self.folder.rglob("*"))}:
            _flush(folder)
        _rename_over(self.folder, self._output)
        _flush(self._output.parent)

    def _check_unchanged(self, before: Manifest, added: Iterable[str]) -> None:
        if _read_manifest(self._output) != before:
            raise PublishError(
                f"{self._output} was changed by another program meanwhile: nothing was done, run "
                "the command again"
            )
        for name in added:
            check_free(self._output, name)


@contextmanager
def staged(output: Path) -> Iterator[Staging]:
    """Make a staging folder beside `output`; remove it, and what was made for it, on failure."""
    output = output.resolve()
    _remove_leftovers(output)
    folder = _sibling(output, "partial", os.getpid())
    missing = [path for path in output.parents if not path.exists()]
    with writing(folder):
        folder.mkdir(parents=True)
    try:
        yield Staging(folder, output)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)


def check_output(output: Path, *, overwrite: bool) -> None:
    """Check that a bundle may be put at `output`.

    Raises PublishError: it is a file, or holds something and `overwrite` is not given, or holds
    something that no bundle put there.
    """
    if output.exists() and not output.is_dir():
        raise PublishError(f"--output {output} is a file; name a folder")
    held = (
        sorted(path for path in output.rglob("*") if not path.is_dir()) if output.exists() else []
    )
    if not held and not (output.exists() and any(output.iterdir())):
        return
    if not overwrite:
        raise PublishError(
            f"--output {output} is not empty: choose another folder, or add --overwrite to replace "
            "the bundle there"
        )
    known = _known_files(output)
    for path in held:
        name = path.relative_to(output).as_posix()
        if name not in known:
            raise PublishError(
                f"--output {output} holds {name}, which no bundle put there: --overwrite replaces "
                "bundles only; move it away, or choose another folder"
            )


def check_free(output: Path, name: str) -> None:
    """Check that a sub-folder may be put into the bundle; raise PublishError if not."""
    if (output / name).exists():
        raise PublishError(
            f"{output} holds {name} already, which its manifest does not list: move it away, or "
            "choose another --name"
        )


def check_space(output: Path, needed: int) -> None:
    """Check that `needed` bytes fit where `output` will be; raise PublishError if not."""
    place = next(path for path in (output.resolve(), *output.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise PublishError(
            f"not enough space at {place}: the export needs about {needed / 1e9:.2f} GB for a "
            f"while, {free / 1e9:.2f} GB are free"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a PublishError that names `path` and the reason."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        if error.errno in _FULL:
            reason = "no space left (disk full, quota or file size limit); free some and try again"
        elif error.errno in _FORBIDDEN:
            reason = "not allowed (read-only or no permission); choose another --output"
        else:
            reason = error.strerror or str(error)
        raise PublishError(f"cannot write {place}: {reason}") from error


def _known_files(output: Path) -> set[str]:
    manifest = _read_manifest(output)
    return set() if manifest is None else {MANIFEST_NAME, *(file.path for file in manifest.files)}


def _read_manifest(output: Path) -> Manifest | None:
    try:
        return parse_manifest((output / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, BundleError):
        return None


def _merge_files(
    before: Manifest, added: Iterable[FileEntry], dropped: Sequence[str]
) -> tuple[FileEntry, ...]:
    kept = [file for file in before.files if PurePosixPath(file.path).parts[0] not in dropped]
    return tuple(sorted([*kept, *added], key=lambda file: PurePosixPath(file.path)))


def _settle(output: Path, staging: Path) -> None:
    """Move out of a bundle what an edit touched and its manifest does not list.

    That is a stage that could not be added, or one that was dropped: one rule for an edit that
    failed, that is done, or that was killed.
    """
    known = {PurePosixPath(path).parts[0] for path in _known_files(output)}
    if not known:
        return
    for name in (staging / _TOUCHED).read_text(encoding="utf-8").splitlines():
        if name not in known and (output / name).exists():
            (output / name).rename(staging / f"{name}.gone")


def _list_files(folder: Path) -> tuple[FileEntry, ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        FileEntry(
            path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=_hash(path)
        )
        for path in files
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Make sure that a file, or a folder's list of files, is on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename_over(folder: Path, output: Path) -> None:
    if not output.exists():
        folder.rename(output)
        return
    if not any(output.iterdir()):
        output.rmdir()
        folder.rename(output)
        return
    old = _sibling(output, "replaced", os.getpid())
    output.rename(old)
    try:
        folder.rename(output)
    except BaseException:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sibling(output: Path, kind: str, process: int) -> Path:
    return output.with_name(f".{output.name}.{kind}-{process}")


def _remove_leftovers(output: Path) -> None:
    """Clear away what exports that were killed left beside `output`; put a good bundle back."""
    if os.name != "posix" or not output.parent.is_dir():
        return
    for folder in (*_leftovers(output, "replaced"), *_leftovers(output, "partial")):
        if "replaced" in folder.name and not output.exists():
            folder.rename(output)  # killed between the two renames
        else:
            if (folder / _TOUCHED).is_file():
                _settle(output, folder)  # killed in the middle of an edit
            shutil.rmtree(folder, ignore_errors=True)


def _leftovers(output: Path, kind: str) -> Iterator[Path]:
    prefix = f".{output.name}.{kind}-"
    for folder in output.parent.iterdir():
        process = folder.name.removeprefix(prefix)
        if folder.name.startswith(prefix) and process.isdigit() and not _is_running(int(process)):
            yield folder


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
