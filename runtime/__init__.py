"""Speculative decoding for the edge on stock ONNX Runtime: the runtime of forerun.

    from runtime import Engine

    with Engine.open("bundle") as engine:
        for chunk in engine.generate("Once upon a time", max_tokens=64):
            print(chunk.text, end="", flush=True)

Needs NumPy, ONNX Runtime, tokenizers and jinja2; never torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Completion, Engine
    from .errors import (
        BundleError,
        CapacityError,
        EngineClosedError,
        ForerunError,
        PromptTooLongError,
        ProviderError,
        RequestError,
        StoreError,
    )
    from .generation import Chunk
    from .stats import StageSeconds, Stats

__all__ = [
    "BundleError",
    "CapacityError",
    "Chunk",
    "Completion",
    "Engine",
    "EngineClosedError",
    "ForerunError",
    "PromptTooLongError",
    "ProviderError",
    "RequestError",
    "StageSeconds",
    "Stats",
    "StoreError",
]

_HOMES = {
    "Completion": "engine",
    "Engine": "engine",
    "Chunk": "generation",
    "StageSeconds": "stats",
    "Stats": "stats",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for.

    Programs that only read a bundle's manifest, or only fetch a file, do not pay for an engine.
    """
    if name not in __all__:
        raise AttributeError(f"module 'runtime' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
