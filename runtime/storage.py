"""The user's cache folder: where forerun keeps what it can fetch or measure again.

Export and runtime share it. Standard library only.
"""

import os
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path

from .errors import RequestError

CACHE_VARIABLE = "FORERUN_CACHE"


def cache_folder() -> Path:
    """Return the folder for kept files: `FORERUN_CACHE`, or the platform's cache folder.

    Who has no home folder has a private one among the system's temporary files.

    Raises OSError when there is not even a place for those.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    try:
        return Path(chosen or _platform_folder()).expanduser().absolute()
    except RuntimeError:  # there is no home folder
        return _temporary_folder()


def user_path(text: str | Path) -> Path:
    """Return a path that a person typed, `~` and `~name` replaced.

    Raises:
        RequestError: there is no such home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise RequestError(f"{text}: the home folder is not known; write the whole path") from None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base) / "forerun"


@cache
def _temporary_folder() -> Path:
    """Return a folder that nobody else can read or write, if possible the one of the last time."""
    if sys.platform == "win32":  # temporary files are the user's own there
        return Path(tempfile.gettempdir()) / "forerun"
    folder = Path(tempfile.gettempdir()) / f"forerun-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:  # a file has its name
        return Path(tempfile.mkdtemp(prefix="forerun-"))
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    is_private = not found.st_mode & 0o077
    return folder if is_own and is_private else Path(tempfile.mkdtemp(prefix="forerun-"))


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file that other processes see whole or not at all; make its folder.

    Raises OSError when it cannot be written; what was there stays then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    partial = Path(name)
    try:
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a handle has no path
            file.write(text)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
