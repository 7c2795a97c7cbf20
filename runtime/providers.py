"""Execution providers by the names that people type: `cpu`, `cuda`, `tensorrt`.

In: a name and a device. Out: a frozen `Provider` with ONNX Runtime's own name and options.
Whether a provider really loads is checked by `session`, which opens it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import ProviderError, RequestError

MAX_THREADS = 256
_ORT_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The compute threads of a session.

    `spins`: between two operations of a run they wait busily, which is quick, and stop with the
    run; else they sleep, which leaves the cores to others.
    """

    count: int
    spins: bool = True


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One execution provider: `name` as typed, `ort_name` and `options` as ONNX Runtime wants them.

    `device` is the kind of memory its tensors live in (`cpu` or `cuda`).
    """

    name: str
    ort_name: str
    device: str
    device_id: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


def make_provider(name: str, *, device_id: int = 0) -> Provider:
    """Return the provider called `name`.

    Raises:
        ProviderError: the name is not one of `cpu`, `cuda`, `tensorrt`.
    """
    if name not in _ORT_NAMES:
        raise ProviderError(
            f"provider must be one of {', '.join(sorted(_ORT_NAMES))}, but is {name!r}"
        )
    if name == "cpu":
        return Provider(name=name, ort_name=_ORT_NAMES[name], device="cpu")
    options = {"device_id": str(device_id)}
    if name == "cuda":
        # The arena grows by what is asked for, and float32 products keep all their bits.
        options |= {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
    return Provider(
        name=name, ort_name=_ORT_NAMES[name], device="cuda", device_id=device_id, options=options
    )


def count_threads(threads: int | None) -> int:
    """Return the number of compute threads to use: `threads`, or one per usable core.

    Raises:
        RequestError: `threads` is not a whole number of at least 1.
    """
    if threads is None:
        # Containers and `taskset` narrow the affinity; the plain core count would oversubscribe.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _all_cores()
    is_whole = isinstance(threads, int) and not isinstance(threads, bool)
    if not is_whole or not 1 <= threads <= MAX_THREADS:
        raise RequestError(
            f"threads must be a whole number from 1 to {MAX_THREADS}, but is {threads!r}"
        )
    return threads


def _all_cores() -> int:
    return os.cpu_count() or 1
