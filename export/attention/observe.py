"""Watch one eager pass of a model and note what every layer's attention asks for.

In: a transformers model. Out: one `LayerNeeds` per attention layer, in running order, or
`UnsupportedModelError` with the reason. The mask that a layer is given, not a keyword, says which
positions it sees: transformers' own eager attention obeys the mask alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..errors import UnsupportedModelError
from . import LayerNeeds

_NAME = "forerun_observe"
_TOKENS = 4  # length of the observed pass; masks are judged by their rule, not by this sample

MaskRule = Callable[..., Any]  # (batch, head, query position, key position) -> visible


@dataclass
class _Observation:
    """What was seen so far; masks are recognised by the memory that they lie in."""

    needs: list[LayerNeeds] = field(default_factory=list)
    windows: dict[int, int | None] = field(default_factory=dict)
    masks: list[torch.Tensor] = field(default_factory=list)  # kept alive: memory is not reused


_watching: list[_Observation] = []


def observe_layers(model: PreTrainedModel) -> list[LayerNeeds]:
    """Return what every attention layer of `model` asks for, in running order.

    Raises:
        UnsupportedModelError: a layer's attention does not go through transformers' attention
            interface, or asks for something that no graph here can express.
    """
    seen = _Observation()
    _watching.append(seen)
    try:
        with attention_swapped(model, _NAME), torch.no_grad():
            ids = torch.zeros(1, _TOKENS, dtype=torch.int64)
            model(input_ids=ids, position_ids=torch.arange(_TOKENS)[None], use_cache=False)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UnsupportedModelError(
            f"{_family(model)} cannot be exported: its own forward fails once its attention is "
            f"replaced ({error})"
        ) from None
    finally:
        _watching.pop()
    _check_count(model, len(seen.needs))
    return seen.needs


@contextmanager
def attention_swapped(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Let the attention registered as `name` stand in for the model's own."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
    except ValueError as error:
        raise UnsupportedModelError(
            f"{_family(model)} cannot be exported: its attention cannot be replaced ({error})"
        ) from None
    try:
        yield
    finally:
        model.set_attn_implementation(before or "eager")


def window_of(rule: MaskRule, local_size: int | None) -> int | None:
    """Return how many tokens a position sees under a mask rule; None means all before it.

    Raises:
        UnsupportedModelError: the rule is neither causal nor a causal window of `local_size`.
    """
    size = local_size or 0
    keys = torch.arange(2 * size + 6)
    zero = torch.tensor(0)
    for query in sorted({0, 1, max(0, size - 1), size, size + 1, 2 * size + 5}):
        visible = rule(zero, zero, torch.tensor(query), keys)
        expected = keys <= query
        if local_size:
            expected = expected & (keys > query - size)
        if not torch.equal(torch.as_tensor(visible).expand_as(expected), expected):
            raise UnsupportedModelError(
                "the model's attention mask is neither causal nor a sliding window (it is chunked, "
                "bidirectional or mixed), which the graph's attention cannot express"
            )
    return local_size


def _note_mask(
    *, q_length: int, kv_length: int, mask_function: MaskRule, dtype: torch.dtype, **rest: Any
) -> torch.Tensor:
    seen = _watching[-1]
    window = window_of(mask_function, rest.get("local_size"))
    queries, keys = torch.arange(q_length)[:, None], torch.arange(kv_length)[None]
    visible = keys <= queries  # a window is wider than the observed pass, or does not matter here
    mask = torch.zeros(1, 1, q_length, kv_length, dtype=dtype).masked_fill(~visible, -torch.inf)
    seen.masks.append(mask)
    seen.windows[mask.untyped_storage().data_ptr()] = window
    return mask


def _note_layer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    seen = _watching[-1]
    batch, heads, length, head_dim = query.shape
    if value.shape[-1] != head_dim or key.shape != value.shape:
        raise UnsupportedModelError(
            f"{type(module).__name__} has keys of width {key.shape[-1]} and values of width "
            f"{value.shape[-1]}; the graph's attention needs one width for both"
        )
    if rest.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise UnsupportedModelError(f"{type(module).__name__} is not causal: it sees later tokens")
    seen.needs.append(
        LayerNeeds(
            heads=heads,
            kv_heads=key.shape[1],
            head_dim=head_dim,
            scale=float(scaling) if scaling is not None else head_dim**-0.5,
            window=_window_of_layer(seen, module, attention_mask),
            softcap=float(softcap) if softcap else None,
            sinks=s_aux is not None,
        )
    )
    return query.new_zeros(batch, length, heads, head_dim), None


def _window_of_layer(
    seen: _Observation, module: torch.nn.Module, mask: torch.Tensor | None
) -> int | None:
    if mask is None:
        return None
    place = mask.untyped_storage().data_ptr()
    if place not in seen.windows:
        raise UnsupportedModelError(
            f"{type(module).__name__} changes its attention mask (ALiBi or a second mask), which "
            "the graph's attention cannot express"
        )
    return seen.windows[place]


def _check_count(model: PreTrainedModel, found: int) -> None:
    expected = getattr(model.config.get_text_config(), "num_hidden_layers", found)
    if found == 0 or found != expected:
        raise UnsupportedModelError(
            f"{_family(model)} cannot be exported: its {expected} layers call transformers' "
            f"attention interface {found} times, not once each (layers that are recurrent, share "
            "their attention, or compute it in a way of their own)"
        )


def _family(model: PreTrainedModel) -> str:
    return f"model type {model.config.model_type!r}"


AttentionInterface.register(_NAME, _note_layer)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, _note_mask)
