"""The portable flavour: standard ops alone, for TensorRT, batches and trees.

In: what each layer needs and the wrapper's cache tensors. Out: per layer two TensorScatter-24 that
write keys and values into caches in place, and one Attention-24 over the whole capacity behind an
explicit mask, which all layers of one window share.
Inputs of the graph beside `input_ids`: `position_ids [B, S] int64` and `write_indices [B] int64`,
the cache's column that takes a sequence's first new token. A token sees the columns up to its
position; in the flavour for trees, those that `attention_mask [B, S, capacity] bool` names.
Source: ONNX operators TensorScatter-24, Attention-24.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from . import Flavour, LayerNeeds, Manner, PlaceInput, Step, no_mask
from .calling import Places, attention_swapped, hand_back, run_model
from .own import run_own, scatter, widened

_OP = "Attention"
_OPSET = 24
_NAME = "forerun_portable"


@dataclass
class _Step:
    """One traced step: layers take their past from here and leave their present here."""

    needs: Sequence[LayerNeeds]
    past: Sequence[torch.Tensor]  # 2 per layer, [B, kv_heads, capacity, head_dim]
    positions: torch.Tensor  # [B, S] int64
    write_indices: torch.Tensor  # [B] int64
    given: torch.Tensor | None  # [B, S, capacity] bool
    present: list[torch.Tensor] = field(default_factory=list)
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """Return which columns a new token sees, `[B, 1, S, capacity] bool`."""
        if window not in self.masks:
            columns = torch.arange(self.past[0].shape[2])
            positions = self.positions[:, None, :, None]
            visible = columns <= positions if self.given is None else self.given[:, None]
            if window is not None:
                visible = visible & (columns > positions - window)
            self.masks[window] = visible
        return self.masks[window]


_steps: list[_Step] = []


def _make_places(batch: int, past: int, new: int, capacity: int) -> list[torch.Tensor]:
    return [
        torch.arange(past, past + new).expand(batch, new),
        torch.full((batch,), past),
        torch.ones(batch, new, capacity, dtype=torch.bool),
    ]


def _run_step(
    model: PreTrainedModel,
    manner: Manner,
    past: Sequence[torch.Tensor],
    input_ids: torch.Tensor,
    places: Sequence[torch.Tensor],
) -> Step:
    """Run the model once, one op or its own attention in each layer."""
    positions, write_indices, *given = places
    told = Places(positions=positions, length=write_indices[0], capacity=past[0].shape[2])
    if manner.is_own:
        return run_own(model, manner, past, input_ids, told, write_indices)
    step = _Step(manner.needs, past, positions, write_indices, given[0] if given else None)
    _steps.append(step)
    try:
        with attention_swapped(model, _NAME):
            logits = run_model(
                model,
                input_ids,
                places=told,
                update=hand_back,
                positions=manner.positions,
                offset=manner.offset,
                has_cache=False,
            )
    finally:
        _steps.pop()
    return logits, step.present


def _attend(
    module: torch.nn.Module,  # noqa: ARG001 - the interface passes the layer
    query: torch.Tensor,  # [B, heads, S, head_dim]
    key: torch.Tensor,  # [B, kv_heads, S, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - the step has its own
    **rest: Any,  # noqa: ARG001 - scale, window, caps were observed before
) -> tuple[torch.Tensor, None]:
    step = _steps[-1]
    layer = len(step.present) // 2
    needs = step.needs[layer]
    keys, values = (
        scatter(past, widened(new, needs.head_dim), step.write_indices)
        for past, new in zip(step.past[2 * layer : 2 * layer + 2], (key, value), strict=True)
    )
    attributes: dict[str, Any] = {"scale": needs.scale}
    if needs.softcap is not None:
        attributes["softcap"] = needs.softcap
    output = torch.onnx.ops.symbolic(
        _OP,
        (widened(query, needs.head_dim), keys, values, step.mask(needs.window)),
        attributes,
        dtype=query.dtype,
        shape=(*query.shape[:3], needs.head_dim),
        version=_OPSET,
    )
    step.present += (keys, values)
    # Some layers take it apart as if it lay in memory so.
    return output[..., : value.shape[3]].transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, no_mask)

PORTABLE = Flavour(
    name="portable",
    op=_OP,
    opset=_OPSET,
    places=(
        PlaceInput(name="position_ids", sizes=("batch", "sequence")),
        PlaceInput(name="write_indices", sizes=("batch",)),
    ),
    batch=0,
    is_standard=True,
    make_places=lambda *sizes: _make_places(*sizes)[:2],
    run_step=_run_step,
)
TREES = replace(
    PORTABLE,
    name="trees",
    places=(
        *PORTABLE.places,
        PlaceInput(name="attention_mask", sizes=("batch", "sequence", "capacity")),
    ),
    make_places=_make_places,
)
