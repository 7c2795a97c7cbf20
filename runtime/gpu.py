"""Which GPU and which TensorRT this machine has, asked of their own libraries.

In: a device's number. Out: names and versions for messages and folders, `None` where the library
is not there. Standard library only.
Source: CUDA driver API (`cuInit`, `cuDeviceGet`, `cuDeviceGetName`); TensorRT
(`getInferLibVersion`).
"""

import ctypes
import sys
from collections.abc import Sequence

_CUDA = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",)
_TENSORRT = (
    ("nvinfer_11.dll", "nvinfer_10.dll")
    if sys.platform == "win32"
    else ("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so")
)
_LONGEST_NAME = 256


def gpu_name(device_id: int = 0) -> str | None:
    """Return a GPU's name as its driver gives it, or `None` without a driver or such a device."""
    driver = _load(_CUDA)
    if driver is None or driver.cuInit(0) != 0:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST_NAME)
    if driver.cuDeviceGet(ctypes.byref(device), device_id) != 0:
        return None
    if driver.cuDeviceGetName(name, _LONGEST_NAME, device) != 0:
        return None
    return name.value.decode("utf-8", "replace")


def tensorrt_version() -> str | None:
    """Return TensorRT's version, for instance `10.15.1`, or `None` if it is not installed."""
    library = _load(_TENSORRT)
    if library is None:
        return None
    number = int(library.getInferLibVersion())  # 101501, or 8601 before version 10
    base = 10_000 if number >= 100_000 else 1000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def missing_library(path: str) -> str | None:
    """Return why a shared library cannot be loaded, naming what it lacks; `None` if it can."""
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return None


def _load(names: Sequence[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
