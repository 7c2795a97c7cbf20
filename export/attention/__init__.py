"""Attention as a seam: what a model's layers ask for, and the ops that answer in the graph.

In: a transformers model. Out: `LayerNeeds` of every layer (`observe.py`) and, while it is traced,
layers whose attention is an ONNX op over cache tensors of the wrapper. A flavour is a `Flavour`
(`fused.py`, `portable.py`); nothing here knows a model family.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

# (logits [B, S or rows, vocabulary], present caches in the order of the past ones)
Step = tuple[torch.Tensor, list[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class LayerNeeds:
    """What one layer's attention asks for, in the order in which layers run.

    `window` counts the tokens that a position sees, itself included (`None`: all before it);
    `sinks` says whether a learned logit per head joins the softmax.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


@dataclass(frozen=True, kw_only=True)
class PlaceInput:
    """A graph input that says where the new tokens stand: its name and its symbolic sizes."""

    name: str
    sizes: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Flavour:
    """One way to write attention into a graph.

    Attributes:
        name: as the manifest calls it.
        op: the op that each layer's attention becomes.
        opset: the operator set of the graph.
        places: the inputs beside `input_ids`, `logit_rows` and the caches, in graph order.
        batch: sequences in a pass: 1, or 0 for any number.
        is_standard: whether the graph may hold standard ops alone.
        make_places: `(batch, past, new, capacity)` to example values of `places`.
        run_step: `(model, needs, past, input_ids, places)` to the step's logits and caches.
    """

    name: str
    op: str
    opset: int
    places: tuple[PlaceInput, ...]
    batch: int
    is_standard: bool
    make_places: Callable[[int, int, int, int], list[torch.Tensor]]
    run_step: Callable[
        [
            PreTrainedModel,
            Sequence[LayerNeeds],
            Sequence[torch.Tensor],
            torch.Tensor,
            Sequence[torch.Tensor],
        ],
        Step,
    ]


def no_mask(*_: Any, **__: Any) -> None:
    """Stand in for transformers' masks where the graph masks by itself."""
