"""One file from an address to the disk, continuing where an earlier attempt stopped.

In: an http, https or file address and the path of a possibly half-finished file. Out: that
path, complete. Proxies and certificates come from the environment, as urllib reads them.
Standard library only.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.response import addinfourl

from .errors import FetchError, NoNetworkError

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 15.0

OnBytes = Callable[[int, int | None], None]  # bytes here, bytes in all (None: not known)


def download(address: str, to: Path, *, on_bytes: OnBytes) -> None:
    """Append to `to` what it lacks of `address`, as often as each attempt brings new bytes.

    Raises FetchError when the server refuses, NoNetworkError when it does not answer or breaks off;
    what has arrived stays. A failed write raises OSError.
    """
    while True:
        before = file_size(to)
        try:
            return _transfer(address, to, on_bytes)
        except NoNetworkError:
            if file_size(to) <= before:
                raise


def file_size(path: Path) -> int:
    """Return the size of `path` in bytes, 0 when there is no such file."""
    return path.stat().st_size if path.exists() else 0


def _transfer(address: str, to: Path, on_bytes: OnBytes) -> None:
    response, start = _open(address, file_size(to))
    with response:
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        here = start
        with to.open("r+b" if start else "wb") as file:
            file.seek(start)
            while chunk := _read(response, address):
                file.write(chunk)
                here += len(chunk)
                on_bytes(here, total)
    if total is not None and here < total:
        raise NoNetworkError(
            f"{address} broke off after {here} of {total} bytes; run again to continue"
        )


def _open(address: str, start: int) -> tuple[addinfourl | http.client.HTTPResponse, int]:
    """Open `address` from byte `start` on; return the response and the byte it begins with."""
    request = urllib.request.Request(address, headers={"User-Agent": "forerun"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == 416:  # nothing lies beyond `start`: begin afresh
            return _open(address, 0)
        raise FetchError(f"{address} was refused: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoNetworkError(f"{address} cannot be reached: {error}") from error
    return response, start if response.status == 206 else 0


def _read(response: IO[bytes] | http.client.HTTPResponse, address: str) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise NoNetworkError(f"{address} broke off: {error}; run again to continue") from error
