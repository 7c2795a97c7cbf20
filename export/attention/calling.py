"""Call a model that goes on after tokens which are already in caches.

In: a transformers model, new tokens and their positions. Out: logits, every layer's keys and values
having passed through a function of the caller's. The model sees a cache object of transformers'
kind that holds nothing itself.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..errors import UnsupportedModelError
from . import Positions

# Takes the new keys and values of the next layer and returns those that its attention is to see.
Update = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_MANY = 4096  # layers; all are one object


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where new tokens stand: their `positions` `[B, S]` and the `length` of what is before them.

    `capacity` is the number of columns that the model's own attention sees.
    """

    positions: torch.Tensor
    length: torch.Tensor  # a scalar
    capacity: int


def run_model(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    *,
    places: Places,
    update: Update,
    positions: Positions,
    offset: int,
    has_cache: bool,
) -> torch.Tensor:
    """Run the model once; return its logits `[B, S, vocabulary]`.

    Raises UnsupportedModelError: its forward does not take what it would have to be told.
    """
    taken = inspect.signature(model.forward).parameters
    told: dict[str, Any] = {}
    if positions == "given":
        if "position_ids" not in taken:
            raise UnsupportedModelError("its forward takes no position_ids")
        told["position_ids"] = places.positions + offset if offset else places.positions
    if has_cache or positions == "length":
        name = next((name for name in ("cache", "past_key_values") if name in taken), None)
        if name is None:
            raise UnsupportedModelError("its forward takes no key-value cache")
        told[name] = _Cache(layers=[_Layer(update, places)] * _MANY)
    output: Any = model(input_ids=input_ids, use_cache=has_cache or positions == "length", **told)
    logits: torch.Tensor = output.logits
    return logits


def hand_back(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new keys and values as they are: an update for an op that knows the past."""
    return key, value


@contextmanager
def own_attention(model: PreTrainedModel, places: Places) -> Iterator[None]:
    """Let the model attend by itself, with masks over whole caches."""

    def make_mask(
        *, mask_function: Callable[..., torch.Tensor], dtype: torch.dtype, **_: Any
    ) -> torch.Tensor:
        batch = torch.arange(places.positions.shape[0])[:, None, None, None]
        rows = places.positions[:, None, :, None]
        columns = torch.arange(places.capacity)[None, None, None]
        visible = mask_function(batch, torch.tensor(0), rows, columns)
        lowest = torch.finfo(dtype).min
        return torch.where(visible, torch.zeros((), dtype=dtype), torch.tensor(lowest, dtype=dtype))

    with attention_swapped(model, "eager"):
        ALL_MASK_ATTENTION_FUNCTIONS["eager"] = make_mask
        try:
            yield
        finally:
            del ALL_MASK_ATTENTION_FUNCTIONS["eager"]  # type: ignore[no-untyped-call]


@contextmanager
def attention_swapped(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Let the attention registered as `name` stand in for the model's own."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
    except ValueError as error:
        raise UnsupportedModelError(f"its attention cannot be replaced ({error})") from None
    try:
        yield
    finally:
        model.set_attn_implementation(before or "eager")


class _Cache(Cache):
    """Holds keys and values alone, and says what else a layer wants to keep."""

    def update_indexer(self, *_: Any, **__: Any) -> torch.Tensor:
        """Refuse."""
        raise _wants("an index of its keys")

    def get_conv_state(self, *_: Any, **__: Any) -> torch.Tensor:
        """Refuse."""
        raise _wants("the state of a convolution")

    update_conv_state = get_conv_state

    def get_recurrent_state(self, *_: Any, **__: Any) -> torch.Tensor:
        """Refuse."""
        raise _wants("a recurrent state")

    update_recurrent_state = get_recurrent_state

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """Refuse."""
        raise _wants("a state")


def _wants(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"a layer keeps {what} beside keys and values, which a rollback by length cannot undo"
    )


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A layer's cache as transformers sees it; all layers of a step are this one."""

    is_compileable = True
    is_croppable = True
    is_sliding = False

    def __init__(self, update: Update, places: Places) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self._update = update
        self._places = places

    def lazy_initialization(self, *_: Any) -> None:
        """Nothing is allocated."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hand over the new keys and values; return those to attend to."""
        return self._update(key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - the interface
        """Return how many columns a mask has, and from which on."""
        return self._places.capacity, 0

    def get_seq_length(self) -> torch.Tensor:  # type: ignore[override]
        """Return how many tokens come before."""
        return self._places.length

    def get_max_length(self) -> int:
        """Return how many tokens there is room for."""
        return self._places.capacity
