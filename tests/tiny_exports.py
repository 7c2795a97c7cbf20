"""Bundles of tiny random models, each exported once per test run and shared by all tests."""

import atexit
import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tiny_models import tiny_model, write_checkpoint
from transformers import PreTrainedModel

from export import build
from export.pipeline import export_bundle
from export.plan import make_plan
from export.progress import Progress
from export.report import Report
from export.trace import Traced, trace
from tools.families.specimen import make_model

_folder = tempfile.TemporaryDirectory(prefix="forerun-tiny-")
atexit.register(_folder.cleanup)

# What makes each family worth a test; the sizes of `tiny_models` hold otherwise.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": 16, "tie_word_embeddings": False},  # a window of 16 tokens
    "gemma3_text": {"sliding_window": 16},  # mixed windows, two rotary bases, norms on q and k
    "qwen2": {"tie_word_embeddings": True},  # biases, one matrix for embedding and head
    "gpt2": {},  # learned positions, weights turned, layer norms
    "gpt_neox": {},  # part of each head rotates
    "mixtral": {"num_local_experts": 4, "tie_word_embeddings": False},  # experts
    # experts with biases, a clipped gate; attention with biases, sinks and mixed windows
    "gpt_oss": {"num_local_experts": 4, "sliding_window": 16, "head_dim": 16},
}
# Models of the sweep over all families, as it shrinks them.
SPECIMENS = (
    "falcon",  # attention of its own over whole caches
    "bart",  # positions found by the length of the cache
    "roberta",  # positions that start behind the padding
    "deepseek_v3",  # wide keys and narrow values, groups of experts
    "gemma4_text",  # layers with caches of different shapes
)


@functools.cache
def model_of(family: str) -> PreTrainedModel:
    """Return the family's tiny model as PyTorch runs it."""
    return make_model(family) if family in SPECIMENS else tiny_model(family, **FAMILIES[family])


@functools.cache
def checkpoint_of(family: str) -> Path:
    """Return the folder of the family's checkpoint."""
    return write_checkpoint(Path(_folder.name) / f"{family}-checkpoint", model_of(family))


@functools.cache
def _trace(family: str, flavour: str) -> Traced:
    return trace(model_of(family), build.FLAVOURS[flavour])


def traced_again(family: str, flavour: str = "fused") -> Traced:
    """Return a trace of the family's model that may be changed; tracing is what takes seconds."""
    traced = _trace(family, flavour)
    return replace(traced, graph=traced.graph.clone())


@contextmanager
def traces_kept(family: str) -> Iterator[None]:
    """Let exports of this family's checkpoint use the one trace of it."""
    kept = mock.Mock(side_effect=lambda _, flavour: traced_again(family, flavour.name))
    with mock.patch.object(build, "trace", kept):
        yield


def export_of(
    family: str,
    precision: str = "float32",
    block_size: int | None = None,
    flavour: str = "fused",
    provider: str = "cpu",
) -> Report:
    """Return the report of the family's bundle, exported at the first call."""
    return _export(family, precision, block_size, flavour, provider)


@functools.cache
def _export(
    family: str, precision: str, block_size: int | None, flavour: str, provider: str
) -> Report:
    plan = make_plan(
        target=str(checkpoint_of(family)),
        output=Path(_folder.name) / f"{family}-{precision}-{block_size}-{flavour}-{provider}",
        precision=precision,
        block_size=block_size,
        flavour=flavour,
        provider=provider,
        context=128 if provider == "tensorrt" else None,
    )
    with traces_kept(family):
        return export_bundle(plan, progress=Progress(quiet=True))
