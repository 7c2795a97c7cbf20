"""A model's own attention, traced as it is, over caches that one standard op updates in place.

In: a manner without an op for attention, and the wrapper's cache tensors. Out: a step in which each
layer's new keys and values are written by a TensorScatter-24, and all columns are attended to
behind the model's own mask. Its cost grows with the caches' capacity.
Source: ONNX operator TensorScatter-24.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from . import Manner, Step
from .calling import Places, own_attention, run_model

OP = "TensorScatter"
OPSET = 24


def run_own(
    model: PreTrainedModel,
    manner: Manner,
    past: Sequence[torch.Tensor],
    input_ids: torch.Tensor,
    places: Places,
    write_indices: torch.Tensor,
) -> Step:
    """Run the model once; its layers attend to whole caches, in running order."""
    present: list[torch.Tensor] = []

    def update(*new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = (
            scatter(old, widened(tensor, old.shape[3]), write_indices)
            for old, tensor in zip(past[len(present) :], new, strict=False)
        )
        present.extend((key, value))
        return key[..., : new[0].shape[3]], value[..., : new[1].shape[3]]

    with own_attention(model, places):
        logits = run_model(
            model,
            input_ids,
            places=places,
            update=update,
            positions=manner.positions,
            offset=manner.offset,
            has_cache=True,
        )
    return logits, present


def scatter(past: torch.Tensor, new: torch.Tensor, write_indices: torch.Tensor) -> torch.Tensor:
    """Return `past` `[B, heads, capacity, width]` with `new` written from each row's index on."""
    return torch.onnx.ops.symbolic(
        OP,
        (past, new, write_indices),
        {"axis": 2, "mode": "linear"},
        dtype=past.dtype,
        shape=past.shape,
        version=OPSET,
    )


def widened(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Return `tensor` with zeros behind its last axis, up to `width`."""
    missing = width - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor
