"""The fused flavour: com.microsoft.GroupQueryAttention over caches that are updated in place.

In: what each layer needs and the wrapper's cache tensors. Out: one op per layer in the trace.
Inputs of the graph beside `input_ids`: `seqlens_k [1] int32` (tokens in the cache after the step,
minus 1) and `total_sequence_length [1] int32` (the same, plus 1).
Source: ONNX Runtime contrib operator GroupQueryAttention-1 (docs/ContribOperators.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from . import Flavour, LayerNeeds, Manner, PlaceInput, Step, no_mask
from .calling import Places, attention_swapped, hand_back, run_model
from .own import run_own, widened

_OP = "GroupQueryAttention"
_OPSET = 18  # low on purpose: older ONNX Runtimes load it, and every kernel used here exists
_NAME = "forerun_fused"


@dataclass
class _Step:
    """One traced step: layers take their past from here and leave their present here."""

    needs: Sequence[LayerNeeds]
    past: Sequence[torch.Tensor]  # 2 per layer, [1, kv_heads, capacity, head_dim]
    seqlens_k: torch.Tensor
    total_sequence_length: torch.Tensor
    present: list[torch.Tensor] = field(default_factory=list)


_steps: list[_Step] = []


def _positions(input_ids: torch.Tensor, seqlens_k: torch.Tensor) -> torch.Tensor:
    """Return the positions `[1, S] int64` of the fed tokens as one marked node of the graph.

    A pass replaces the node by standard ops: `seqlens_k + 1 - S + arange(S)`.
    """
    return torch.onnx.ops.symbolic(
        "forerun::Positions",
        (input_ids, seqlens_k),
        dtype=torch.int64,
        shape=input_ids.shape,
        version=1,
    )


def _make_places(
    batch: int,  # noqa: ARG001 - one sequence
    past: int,
    new: int,
    capacity: int,  # noqa: ARG001 - the op finds it out
) -> list[torch.Tensor]:
    total = past + new
    return [torch.tensor([n], dtype=torch.int32) for n in (total - 1, total)]


def _run_step(
    model: PreTrainedModel,
    manner: Manner,
    past: Sequence[torch.Tensor],
    input_ids: torch.Tensor,
    places: Sequence[torch.Tensor],
) -> Step:
    """Run the model once, one op or its own attention in each layer."""
    seqlens_k, total_sequence_length = places
    before = seqlens_k.to(torch.int64) + 1 - input_ids.shape[1]  # [1]
    told = Places(
        positions=_positions(input_ids, seqlens_k), length=before[0], capacity=past[0].shape[2]
    )
    if manner.is_own:
        return run_own(model, manner, past, input_ids, told, before)
    step = _Step(manner.needs, past, seqlens_k, total_sequence_length)
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
    query: torch.Tensor,  # [1, heads, S, head_dim]
    key: torch.Tensor,  # [1, kv_heads, S, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - the op masks by itself
    s_aux: torch.Tensor | None = None,  # [heads], attention sinks
    **rest: Any,  # noqa: ARG001 - scale, window, caps were observed before
) -> tuple[torch.Tensor, None]:
    step = _steps[-1]
    layer = len(step.present) // 2
    past_key, past_value = step.past[2 * layer : 2 * layer + 2]
    needs = step.needs[layer]
    rows = [_merge_heads(widened(tensor, needs.head_dim)) for tensor in (query, key, value)]
    lengths = [step.seqlens_k, step.total_sequence_length]
    sinks = [] if s_aux is None else [None, None, None, None, s_aux]
    output, *present = torch.onnx.ops.symbolic_multi_out(
        f"com.microsoft::{_OP}",
        [*rows, past_key, past_value, *lengths, *sinks],
        _attributes(needs),
        dtypes=[query.dtype, key.dtype, value.dtype],
        shapes=[rows[0].shape, past_key.shape, past_value.shape],
        version=1,
    )
    step.present.extend(present)
    heads = output.reshape(1, query.shape[2], needs.heads, needs.head_dim)
    return heads[..., : value.shape[3]], None


def _attributes(needs: LayerNeeds) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "num_heads": needs.heads,
        "kv_num_heads": needs.kv_heads,
        "scale": needs.scale,
    }
    if needs.window is not None:
        attributes["local_window_size"] = needs.window
    if needs.softcap is not None:
        attributes["softcap"] = needs.softcap
    return attributes


def _merge_heads(tensor: torch.Tensor) -> torch.Tensor:
    _, heads, length, head_dim = tensor.shape
    return tensor.transpose(1, 2).reshape(1, length, heads * head_dim)


AttentionInterface.register(_NAME, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, no_mask)

FUSED = Flavour(
    name="fused",
    op=_OP,
    opset=_OPSET,
    places=(
        PlaceInput(name="seqlens_k", sizes=(1,)),
        PlaceInput(name="total_sequence_length", sizes=(1,)),
    ),
    batch=1,
    is_standard=False,
    make_places=_make_places,
    run_step=_run_step,
)
