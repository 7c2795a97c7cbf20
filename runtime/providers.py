"""Execution providers by the names that people type: `cpu`, `cuda`, `tensorrt`.

In: a name and a device. Out: a frozen `Provider` with what ONNX Runtime wants to be told. Whether
it really loads, and which nodes it leaves to the CPU, is checked by `session`, which opens it.
Source: ONNX Runtime's documentation of the CUDA and TensorRT execution providers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import ProviderError, RequestError

MAX_THREADS = 256
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
# Those that ONNX Runtime tries for each node, in order; the CPU stands behind all.
_BACKENDS = {"cpu": (CPU,), "cuda": (CUDA,), "tensorrt": (TENSORRT, CUDA)}


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
    """Where a session runs.

    Attributes:
        name: as typed.
        device: the kind of memory its tensors live in, `cpu` or `cuda`.
        device_id: which device of that kind.
        backends: ONNX Runtime's names and options, the one that must load first.
        dimensions: symbolic sizes of the graph that are given a value when it is loaded.
        captures: record each pass of a few tokens as a CUDA graph and replay it.
    """

    name: str
    device: str
    device_id: int = 0
    backends: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dimensions: Mapping[str, int] = field(default_factory=dict)
    captures: bool = False

    @property
    def ort_name(self) -> str:
        """ONNX Runtime's name of the one that must load."""
        return next(iter(self.backends))

    def for_small_graphs(self) -> "Provider":
        """Return the same device with what starts at once: nothing is built or recorded."""
        last = list(self.backends)[-1]
        options = {k: v for k, v in self.backends[last].items() if k != "enable_cuda_graph"}
        return replace(self, backends={last: options}, dimensions={}, captures=False)


def make_provider(name: str, *, device_id: int = 0, captures: bool = False) -> Provider:
    """Return the provider called `name`.

    Args:
        name: `cpu`, `cuda` or `tensorrt`.
        device_id: which GPU.
        captures: record passes as CUDA graphs; for `cuda` only.

    Raises:
        ProviderError: the name is unknown.
    """
    if name not in _BACKENDS:
        raise ProviderError(
            f"provider must be one of {', '.join(sorted(_BACKENDS))}, but is {name!r}"
        )
    if name == "cpu":
        return Provider(name=name, device="cpu", backends={CPU: {}})
    return Provider(
        name=name,
        device="cuda",
        device_id=device_id,
        backends={backend: _options(backend, device_id, captures) for backend in _BACKENDS[name]},
        captures=captures,
    )


def _options(backend: str, device_id: int, captures: bool) -> dict[str, str]:  # noqa: FBT001
    options = {"device_id": str(device_id)}
    if backend == CUDA:
        # The arena grows by what is asked for, and float32 products keep all their bits.
        options |= {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
        if captures:
            options["enable_cuda_graph"] = "1"
    return options


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
