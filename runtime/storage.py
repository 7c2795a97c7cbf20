"""The user's cache folder: where forerun keeps what it can fetch or measure again.

Export and runtime share it. Standard library only.
"""

import os
import sys
import tempfile
from pathlib import Path

CACHE_VARIABLE = "FORERUN_CACHE"


def cache_folder() -> Path:
    """Return the folder for kept files: `FORERUN_CACHE`, or the platform's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "forerun"


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
