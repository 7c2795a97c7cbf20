"""Speculative decoding for the edge on stock ONNX Runtime: the runtime of forerun.

    from runtime import Engine

    with Engine.open("bundle") as engine:
        for chunk in engine.generate("Once upon a time", max_tokens=64):
            print(chunk.text, end="", flush=True)

Needs NumPy, ONNX Runtime, tokenizers and jinja2; never torch.
"""

from .engine import Completion, Engine
from .errors import (
    BundleError,
    CapacityError,
    EngineClosedError,
    ForerunError,
    PromptTooLongError,
    ProviderError,
    RequestError,
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
]
