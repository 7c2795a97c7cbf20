"""Find out in PyTorch how a model can be run over caches, before anything is traced.

In: a transformers model. Out: the first `Manner` in which a text fed in pieces gives the logits of
the whole text; or `UnsupportedModelError` with the reason. One op a layer is tried first, then the
model's own attention; positions first given, then found by the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..errors import UnsupportedModelError, first_line
from . import CacheShape, LayerNeeds, Manner, Positions, no_mask
from .calling import (
    Places,
    attention_swapped,
    hand_back,
    own_attention,
    run_model,
)
from .mixing import find_mixing
from .observe import observe_layers

TOLERANCE = 1e-4  # of the range of the logits
_PIECES = [13, 1, 10]
_CAPACITY = 32
_POISON = 1e4  # lies in caches wherever no token was fed
_NAME = "forerun_rehearse"


@dataclass
class _Caches:
    """Caches that grow with the text; `turn` counts the layers of a pass."""

    needs: tuple[LayerNeeds, ...] = ()
    past: int = 0
    turn: int = 0
    tensors: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def put(self, *new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the next layer's keys and values behind its past ones; return the whole buffers."""
        if self.turn == len(self.tensors):
            key, value = (
                torch.full((*t.shape[:2], _CAPACITY, t.shape[3]), _POISON, dtype=t.dtype)
                for t in new
            )
            self.tensors.append((key, value))
        held = self.tensors[self.turn]
        self.turn += 1
        for buffer, tensor in zip(held, new, strict=True):
            buffer[:, :, self.past : self.past + tensor.shape[2]] = tensor
        return held


_playing: list[_Caches] = []


class _VagueError(UnsupportedModelError):
    """A manner does not fit, for a reason that says little about the model."""


def find_manner(model: PreTrainedModel) -> Manner:
    """Return how `model` can be run over caches.

    Raises UnsupportedModelError: in no manner does it go on as if it had read the text at once.
    """
    refusals: list[UnsupportedModelError] = []
    text = _make_text(model)
    with torch.no_grad():
        wanted = model(input_ids=text, use_cache=False).logits
        for is_own in (False, True):
            for positions, offset in _ways(model):
                try:
                    return _rehearse(model, text, wanted, positions, offset, is_own=is_own)
                except UnsupportedModelError as error:
                    refusals.append(error)
        mixing = find_mixing(model)
    clear = [error for error in refusals if not isinstance(error, _VagueError)]
    raise UnsupportedModelError(
        f"model type {model.config.model_type!r} cannot be exported: "
        f"{mixing or (*clear, *reversed(refusals))[0]}"
    )


def _ways(model: PreTrainedModel) -> Iterator[tuple[Positions, int]]:
    """Yield how the model may be told positions, and what is added to them."""
    yield "given", 0
    padding = getattr(model.config, "pad_token_id", None)
    if isinstance(padding, int) and padding >= 0:
        yield "given", padding + 1
    yield "length", 0


def _rehearse(
    model: PreTrainedModel,
    text: torch.Tensor,
    wanted: torch.Tensor,
    positions: Positions,
    offset: int,
    *,
    is_own: bool,
) -> Manner:
    """Feed `text` in pieces; return the manner if the logits are those that are `wanted`."""
    how: dict[str, Any] = {"positions": positions, "offset": offset, "has_cache": is_own}
    try:
        needs = () if is_own else observe_layers(model, **how)
        caches = _Caches(needs)
        found = torch.cat(
            [_play(model, piece, caches, how) for piece in torch.split(text, _PIECES, 1)], 1
        )
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        raise _VagueError(
            f"its own forward cannot go on from a cache ({first_line(error)})"
        ) from None
    distance = float((found - wanted).abs().max() / (wanted.max() - wanted.min()))
    if not distance <= TOLERANCE:
        raise _VagueError(
            f"fed in pieces it gives other logits than at once (by {distance:.2g} of their range)"
        )
    shapes = [
        CacheShape(kv_heads=key.shape[1], head_dim=max(key.shape[3], value.shape[3]))
        for key, value in caches.tensors
    ]
    return Manner(caches=tuple(shapes), needs=needs, positions=positions, offset=offset)


def _play(
    model: PreTrainedModel, piece: torch.Tensor, caches: _Caches, how: dict[str, Any]
) -> torch.Tensor:
    """Run the model over one piece of the text."""
    past, caches.turn = caches.past, 0
    places = Places(
        positions=torch.arange(past, past + piece.shape[1])[None],
        length=torch.tensor(past),
        capacity=_CAPACITY,
    )
    swapped = own_attention(model, places) if how["has_cache"] else attention_swapped(model, _NAME)
    _playing.append(caches)
    try:
        with swapped:
            update = caches.put if how["has_cache"] else hand_back
            logits = run_model(model, piece, places=places, update=update, **how)
    finally:
        _playing.pop()
    caches.past += piece.shape[1]
    return logits


def _attend(
    module: torch.nn.Module,  # noqa: ARG001 - the interface passes the layer
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - what is seen was observed before
    s_aux: torch.Tensor | None = None,
    **rest: Any,  # noqa: ARG001 - scale, window, caps were observed before
) -> tuple[torch.Tensor, None]:
    """Attend as the op does that is to stand here: by what was observed alone."""
    caches = _playing[-1]
    needs, past, new = caches.needs[caches.turn], caches.past, query.shape[2]
    keys, values = (
        tensor[:, :, : past + new].repeat_interleave(needs.heads // needs.kv_heads, 1)
        for tensor in caches.put(key, value)
    )
    scores = needs.scale * query @ keys.transpose(2, 3)  # [B, heads, S, past + S]
    if needs.softcap is not None:
        scores = needs.softcap * torch.tanh(scores / needs.softcap)
    rows, columns = torch.arange(past, past + new)[:, None], torch.arange(past + new)
    visible = columns <= rows
    if needs.window is not None:
        visible &= columns > rows - needs.window
    scores = scores.masked_fill(~visible, -torch.inf)
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(len(scores), -1, new, 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., : past + new]
    return (weights @ values).transpose(1, 2).contiguous(), None


def _make_text(model: PreTrainedModel) -> torch.Tensor:
    """Return `[1, S]` tokens that are all different from the padding, which is no text."""
    embedding: Any = model.get_input_embeddings()
    count = embedding.weight.shape[0]
    tokens = torch.randint(0, count, (1, sum(_PIECES)), generator=torch.Generator().manual_seed(11))
    padding = getattr(model.config, "pad_token_id", None)
    return torch.where(tokens == padding, (tokens + 1) % count, tokens) if padding else tokens


AttentionInterface.register(_NAME, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, no_mask)
