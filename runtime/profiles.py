"""What TensorRT is told before it builds an engine: shapes, types, and where its caches lie.

In: a provider, a graph, and what the manifest says of it. Out: the provider with these options; one
that is not TensorRT passes through. Makes the folder of the caches.
Source: ONNX Runtime's documentation of the TensorRT execution provider (explicit shape profiles);
TensorRT's KVCacheUpdate, which wants a capacity that is known when the engine is built.
"""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from .gpu import gpu_name, tensorrt_version
from .manifest import ModelEntry
from .providers import TENSORRT, Provider
from .storage import cache_folder

SCRATCH = 1
_MULTIPLE = 64
# (fewest, usual, most) tokens of a pass, and rows: plain steps and proposals; pieces of a prompt.
PASSES = (((1, 4, 17), (1, 4, 17)), ((18, 512, 512), (1, 1, 64)))


def fit_provider(
    provider: Provider, entry: ModelEntry, graph: Path, *, onnxruntime: str
) -> Provider:
    """Return `provider` with what depends on the model it is to run.

    Args:
        provider: where the model runs.
        entry: the model.
        graph: its `.onnx` file.
        onnxruntime: its version, of which engines on the disk are a matter.
    """
    if TENSORRT not in provider.backends:
        return provider
    capacity = fixed_capacity(entry.context)
    words = (gpu_name(provider.device_id), "tensorrt", tensorrt_version(), "ort", onnxruntime)
    versions = cache_folder() / "tensorrt" / "-".join(_plain(word) for word in words)
    folder = versions / _identity(graph)
    folder.mkdir(parents=True, exist_ok=True)
    options = dict(provider.backends[TENSORRT]) | {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(versions),
        "trt_fp16_enable": str(int(entry.cache.dtype == "float16")),
    }
    for place, name in enumerate(("min", "opt", "max")):
        options[f"trt_profile_{name}_shapes"] = ",".join(_shapes(entry, place, capacity))
    return replace(
        provider,
        backends={**provider.backends, TENSORRT: options},
        dimensions={"batch": 1, "capacity": capacity},
    )


def fixed_capacity(context: int) -> int:
    """Return the one capacity of a cache whose size is built into an engine."""
    return -(-(context + SCRATCH) // _MULTIPLE) * _MULTIPLE


def _identity(graph: Path) -> str:
    """Return a name that another graph, or the same one with other weights, does not have.

    ONNX Runtime names an engine by its graph's structure alone: weights are in none of its names.
    """
    files = sorted(graph.resolve().parent.iterdir())
    told = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return sha256(repr((str(graph.resolve()), told)).encode()).hexdigest()[:16]


def _shapes(entry: ModelEntry, place: int, capacity: int) -> Iterator[str]:
    """Yield `name:AxBx…` of every input whose size varies; one profile's after the other's."""
    for tokens, rows in PASSES:
        count = tokens[place]
        yield f"input_ids:1x{count}"
        yield f"position_ids:1x{count}"
        if entry.flavour == "trees":
            yield f"attention_mask:1x{count}x{capacity}"
        yield f"logit_rows:{rows[place]}"


def _plain(word: str | None) -> str:
    return "".join(c if c.isalnum() or c == "." else "_" for c in word or "none").lower()
