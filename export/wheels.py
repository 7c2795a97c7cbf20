"""A recipe's part as a verified wheel on the disk, by way of the user's own pip configuration.

In: a `Part` and a folder. Out: the path of its wheel, whose SHA-256 is the pinned one; the
wheel is a zip archive to read from and is never installed. pip tells the wheel's address, the
download resumes; where that way is barred (a password, an odd index), pip downloads it itself.
"""

import hashlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .download import OnBytes, download
from .errors import FetchError, HashMismatchError, NoNetworkError
from .recipes import Part

LOOKUP_LIMIT_S = 20.0
POLL_S = 0.2
_PATIENCE = ("--retries", "1", "--timeout", "8")
_NO_ANSWER = re.compile(
    r"connection error|connection broken|timed out|Max retries exceeded", re.IGNORECASE
)

_log = logging.getLogger(__name__)


def obtain_wheel(part: Part, folder: Path, *, on_bytes: OnBytes) -> Path:
    """Bring the wheel of `part` into `folder`, continuing an earlier attempt, and verify it.

    Raises NoNetworkError, FetchError when no index offers it, HashMismatchError when it is
    another file.
    """
    wheel = folder / f"{part.distribution}-{part.version}.whl"
    arriving = wheel.with_name(f"{wheel.name}.part")
    if _settle(wheel, wheel, part) or _settle(arriving, wheel, part):
        return wheel
    if _download_directly(part, arriving, on_bytes) and _settle(arriving, wheel, part):
        return wheel
    download_with_pip(part, arriving, on_bytes=on_bytes)
    if _settle(arriving, wheel, part):
        return wheel
    found = hash_file(arriving)
    arriving.unlink()
    raise HashMismatchError(
        f"the wheel of {part.distribution}=={part.version} is not the one that the recipe pins: "
        f"expected SHA-256 {part.wheel_sha256}, found {found}; it was not used"
    )


def find_address(part: Part) -> str | None:
    """Ask pip where the wheel of `part` lies, without downloading it; None if pip does not say.

    pip has no command that prints an address without fetching the file behind it, so this reads
    the log of its version listing. Raises NoNetworkError when no index answers.
    """
    try:
        run = subprocess.run(
            [*_pip(), "-vv", *_PATIENCE, "index", "versions", part.distribution],
            capture_output=True,
            text=True,
            errors="replace",
            env=_plain_environment(),
            timeout=LOOKUP_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _no_network(part, f"no answer within {LOOKUP_LIMIT_S:.0f} s") from error
    address = parse_address(run.stdout + run.stderr, part)
    if address is None and _NO_ANSWER.search(run.stdout + run.stderr):
        raise _no_network(part, _last_reason(run.stdout + run.stderr))
    return address


def parse_address(log: str, part: Part) -> str | None:
    """Return the first wheel address for `part` in pip's verbose `log`.

    Addresses whose password pip has masked are of no use and are skipped.
    """
    name = re.escape(re.sub(r"[-_.]+", "_", part.distribution))
    wheel = rf"{name}-{re.escape(part.version)}-[^/\s]+\.whl"
    for match in re.finditer(rf"Found link ((?:https?|file)://\S*/{wheel})", log, re.IGNORECASE):
        if "****" not in match[1]:
            return match[1]
    return None


def download_with_pip(part: Part, to: Path, *, on_bytes: OnBytes) -> None:
    """Let pip download the wheel of `part` to `to`, from the beginning.

    Raises NoNetworkError or FetchError with pip's own reason.
    """
    with tempfile.TemporaryDirectory(dir=to.parent, prefix="pip-") as scratch:
        wanted = [f"{part.distribution}=={part.version}", "--dest", scratch]
        rules = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--quiet"]
        command = [*_pip(), *_PATIENCE, "download", *rules, *wanted]
        # pip collects the bytes in the folder for temporary files: watched there, on one disk.
        environment = _plain_environment() | {"TMPDIR": scratch}
        _run_watched(command, environment, Path(scratch), on_bytes, part)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"pip left {len(wheels)} wheels for {wanted[0]}, expected one")
        wheels[0].replace(to)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settle(arriving: Path, wheel: Path, part: Part) -> bool:
    """Give a complete download its final name; say whether it was complete."""
    if not arriving.exists() or hash_file(arriving) != part.wheel_sha256:
        return False
    arriving.replace(wheel)
    return True


def _download_directly(part: Part, to: Path, on_bytes: OnBytes) -> bool:
    address = find_address(part)
    if address is None:
        return False
    try:
        download(address, to, on_bytes=on_bytes)
    except FetchError as error:
        _log.info("%s; pip will download it instead", error)
        return False
    return True


def _run_watched(
    command: list[str],
    environment: dict[str, str],
    scratch: Path,
    on_bytes: OnBytes,
    part: Part,
) -> None:
    with tempfile.TemporaryFile("w+", errors="replace", dir=scratch) as log:
        pip = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while pip.poll() is None:
                on_bytes(_bytes_below(scratch), None)
                time.sleep(POLL_S)
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode:
            log.seek(0)
            raise _explain(log.read(), part)


def _explain(log: str, part: Part) -> FetchError:
    if "No module named pip" in log:
        return FetchError(
            f"this Python ({sys.executable}) has no pip, which tells where wheels lie; "
            f"add it with: {sys.executable} -m ensurepip --upgrade"
        )
    if _NO_ANSWER.search(log):
        return _no_network(part, _last_reason(log))
    return FetchError(
        f"pip found no wheel {part.distribution}=={part.version} on the indexes it is set up "
        f"for: {_last_reason(log)}"
    )


def _no_network(part: Part, reason: str) -> NoNetworkError:
    return NoNetworkError(
        f"no network: pip reaches no package index for {part.distribution} ({reason}); check the "
        "connection or pip's settings (pip config list) and run again to continue"
    )


def _last_reason(log: str) -> str:
    """Return what pip's log ends on: the system's word on a failed connection, or a line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["pip said nothing"]
    telling = [line for line in lines if _NO_ANSWER.search(line)] or lines
    system = re.search(r"\[Errno -?\d+\] ([\w ]+)|(timed out)", telling[-1])
    return (system[1] or system[2]) if system else telling[-1][:200]


def _pip() -> list[str]:
    # -P: a pip.py in the current folder is not the pip that is meant.
    return [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _plain_environment() -> dict[str, str]:
    """Return the environment without the settings that change how much pip says."""
    unwanted = {"PIP_QUIET", "PIP_VERBOSE", "PIP_LOG", "PIP_NO_COLOR"}
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:  # pip removed it meanwhile
                continue
    return total
