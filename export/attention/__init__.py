"""Attention as a seam: what a model's layers ask for, and the ops that answer in the graph.

In: a transformers model. Out: the `Manner` in which it can be run over caches, found in PyTorch
(`rehearse.py`), and, while it is traced, layers whose attention is an ONNX op over cache tensors of
the wrapper, or their own over caches that an op updates (`own.py`). A flavour is a `Flavour`
(`fused.py`, `portable.py`); nothing here knows a model family.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

# (logits [B, S or rows, vocabulary], present caches in the order of the past ones)
Step = tuple[torch.Tensor, list[torch.Tensor]]
Positions = Literal["given", "length"]


@dataclass(frozen=True, kw_only=True)
class LayerNeeds:
    """What one layer's attention asks for, in the order in which layers run.

    `head_dim` is the width of keys or of values, whichever is larger; `window` counts the tokens
    that a position sees, itself included (`None`: all before it); `sinks` says whether a learned
    logit per head joins the softmax.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """One layer's cache: `[B, kv_heads, capacity, head_dim]`, twice."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a model goes on after a non-empty cache.

    Attributes:
        caches: the shape of each cache, in running order of the attention that fills it.
        needs: what each attention asks for where one op stands for it; empty where the model's own
            attention runs, over whole caches.
        positions: `given` to the model, or found by it from the `length` of its cache.
        offset: added to positions that are given (a table may start behind its padding row).
    """

    caches: tuple[CacheShape, ...]
    needs: tuple[LayerNeeds, ...] = ()
    positions: Positions = "given"
    offset: int = 0

    @property
    def is_own(self) -> bool:
        """Whether the model's own attention runs."""
        return not self.needs


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
        op: the op that each layer's attention becomes, where one op can.
        opset: the operator set of the graph.
        places: the inputs beside `input_ids`, `logit_rows` and the caches, in graph order.
        batch: sequences in a pass: 1, or 0 for any number.
        is_standard: whether the graph may hold standard ops alone.
        make_places: `(batch, past, new, capacity)` to example values of `places`.
        run_step: `(model, manner, past, input_ids, places)` to the step's logits and caches.
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
            Manner,
            Sequence[torch.Tensor],
            torch.Tensor,
            Sequence[torch.Tensor],
        ],
        Step,
    ]


def no_mask(*_: Any, **__: Any) -> None:
    """Stand in for transformers' masks where the graph masks by itself."""
