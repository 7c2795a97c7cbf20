"""Environments of the peers: each has its own, pinned, in the cache folder.

In: a peer's name and pins. Out: the environment's interpreter. Made on first use with pip and then
reused for as long as the pins are the same; an interrupted one is made anew.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from export.progress import Progress
from runtime.storage import cache_folder
from tools.errors import ToolError

_STAMP = "installed.txt"


def peer_folder(name: str) -> Path:
    """Return the folder of everything that belongs to a peer."""
    return cache_folder() / "peers" / name


def make_environment(name: str, pins: Sequence[str], *, progress: Progress) -> Path:
    """Return the interpreter of the peer's environment, installing `pins` if need be.

    Raises:
        ToolError: it cannot be made; the text holds pip's own last word.
    """
    folder = peer_folder(name) / "venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / _STAMP
    wanted = "\n".join([sys.version.split()[0], *pins])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    with progress.stage(f"installing {name}"):
        run_logged([sys.executable, "-m", "venv", str(folder)], folder.with_name("install.log"))
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        run_logged([*pip, *pins], folder.with_name("install.log"))
    stamp.write_text(wanted, encoding="utf-8")
    return python


def run_logged(
    command: Sequence[str], log: Path, *, variables: Mapping[str, str] | None = None
) -> None:
    """Run a command with its output in `log`, and with more environment variables.

    Raises:
        ToolError: it failed; the text holds the last line of its output and the log's path.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        code = subprocess.call(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(variables or {})},
        )
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1].strip() if lines else f"exit status {code}"
        raise ToolError(f"{last} (all of it: {log})")
