"""Watch one eager pass of a model and note what every layer's attention asks for.

In: a transformers model. Out: one `LayerNeeds` per call of attention, in running order, or
`UnsupportedModelError` with the reason. The mask that a layer is given, not a keyword, says which
positions it sees: transformers' own eager attention obeys the mask alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..errors import UnsupportedModelError
from . import LayerNeeds, Positions
from .calling import Places, attention_swapped, hand_back, run_model

_NAME = "forerun_observe"
_TOKENS = 4  # length of the observed pass; masks are judged by their rule, not by this sample

MaskRule = Callable[..., Any]  # (batch, head, query position, key position) -> visible


@dataclass
class _Observation:
    """What was seen so far; masks are recognised by the memory that they lie in."""

    tokens: int
    needs: list[LayerNeeds] = field(default_factory=list)
    windows: dict[int, int | UnsupportedModelError | None] = field(default_factory=dict)
    masks: list[torch.Tensor] = field(default_factory=list)  # kept alive: memory is not reused
    wanted: int = 0  # tokens that a mask's rule must be asked about


_watching: list[_Observation] = []


def observe_layers(
    model: PreTrainedModel, *, positions: Positions, offset: int, has_cache: bool = False
) -> tuple[LayerNeeds, ...]:
    """Return what every call of attention in `model` asks for, in running order.

    Raises:
        UnsupportedModelError: no attention goes through transformers' attention interface, or it
            asks for something that no op here can express.
    """
    told: dict[str, Any] = {"positions": positions, "offset": offset, "has_cache": has_cache}
    seen = _observe(model, _TOKENS, told)
    if seen.wanted > _TOKENS:  # a rule that reads something of each token
        seen = _observe(model, seen.wanted, told)
    if not seen.needs:
        raise UnsupportedModelError("none of its layers calls transformers' attention interface")
    return tuple(seen.needs)


def _observe(model: PreTrainedModel, tokens: int, told: dict[str, Any]) -> _Observation:
    seen = _Observation(tokens)
    places = Places(positions=torch.arange(tokens)[None], length=torch.tensor(0), capacity=tokens)
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    _watching.append(seen)
    try:
        with attention_swapped(model, _NAME), torch.no_grad():
            run_model(model, ids, places=places, update=hand_back, **told)
    finally:
        _watching.pop()
    return seen


def window_of(rule: MaskRule, local_size: int | None) -> int | None:
    """Return how many tokens a position sees under a mask rule; None means all before it.

    Raises:
        UnsupportedModelError: the rule is neither causal nor a causal window of `local_size`.
    """
    size = local_size or 0
    keys = torch.arange(_asked_about(size))
    zero = torch.tensor(0)
    for query in sorted({0, 1, max(0, size - 1), size, size + 1, len(keys) - 1}):
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


def _asked_about(window: int) -> int:
    """Return how many tokens show whether a rule is a window of this size."""
    return 2 * window + 6


def _note_mask(
    *, q_length: int, kv_length: int, mask_function: MaskRule, dtype: torch.dtype, **rest: Any
) -> torch.Tensor:
    seen = _watching[-1]
    size = rest.get("local_size")
    window: int | UnsupportedModelError | None
    try:
        window = window_of(mask_function, size)
    except UnsupportedModelError as error:
        window = error  # raised if a layer uses this mask
    except IndexError:
        seen.wanted = max(seen.wanted, _asked_about(size or 0))
        window = None
    queries, keys = torch.arange(q_length)[:, None], torch.arange(kv_length)[None]
    visible = keys <= queries  # what is seen does not matter here
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
    if rest.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise UnsupportedModelError(f"{type(module).__name__} is not causal: it sees later tokens")
    seen.needs.append(
        LayerNeeds(
            heads=heads,
            kv_heads=key.shape[1],
            head_dim=max(head_dim, value.shape[3]),
            scale=float(scaling) if scaling is not None else head_dim**-0.5,
            window=_window_of_layer(seen, module, attention_mask),
            softcap=float(softcap) if softcap else None,
            sinks=s_aux is not None,
        )
    )
    return query.new_zeros(batch, length, heads, value.shape[3]), None


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
    window = seen.windows[place]
    if isinstance(window, UnsupportedModelError):
        raise window
    return window


AttentionInterface.register(_NAME, _note_layer)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, _note_mask)
