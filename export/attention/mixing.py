"""Find what lets tokens of a text meet elsewhere than in replaceable attention.

In: a transformers model. Out: a clause that names the innermost such module, or nothing. The last
token's features must not depend on another token, the first or the one before, while every
attention returns zeros: where they begin to, a module keeps a state, convolves, or attends in a way
of its own.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..errors import UnsupportedModelError
from . import no_mask
from .calling import attention_swapped

_NAME = "forerun_zeros"
_TOKENS = 6
_SAME = 1e-5  # of a feature's size


def find_mixing(model: PreTrainedModel) -> str | None:
    """Return which module lets tokens meet by itself, as a clause; None if none was found."""
    texts = torch.arange(3, 3 + _TOKENS).repeat(3, 1)
    texts[1, 0] += 1
    texts[2, -2] += 2
    try:
        with attention_swapped(model, _NAME):
            plain, *others = [_record(model, text[None]) for text in texts]
    except UnsupportedModelError:
        plain, *others = [_record(model, text[None]) for text in texts]
    for other in others:
        for (name, given, made), (_, other_given, other_made) in zip(plain, other, strict=False):
            if _alike(given, other_given) and not _alike(made, other_made):
                return (
                    f"its {name} lets tokens meet in a way of its own (a recurrent state, a "
                    "convolution, or attention outside transformers' interface), which a rollback "
                    "by length cannot undo"
                )
    return None


_Seen = tuple[str, torch.Tensor | None, torch.Tensor | None]


def _record(model: PreTrainedModel, text: torch.Tensor) -> list[_Seen]:
    """Run the model; return each module's name and its features of the last token, in and out."""
    seen: list[_Seen] = []

    def note(module: nn.Module, given: tuple[Any, ...], told: dict[str, Any], made: Any) -> None:
        first = next((v for v in (*given, *told.values()) if _last(v) is not None), None)
        result = made[0] if isinstance(made, tuple) and made else made
        seen.append((type(module).__name__, _last(first), _last(result)))

    hooks = [
        module.register_forward_hook(note, with_kwargs=True)
        for module in model.modules()
        if not isinstance(module, PreTrainedModel | nn.Embedding)
    ]
    try:
        model(input_ids=text, use_cache=False)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
        pass  # what was seen until then is told
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _last(value: Any) -> torch.Tensor | None:
    """Return what is of the last token, where `value` has an id or a row for each token."""
    if isinstance(value, torch.Tensor) and value.shape[:2] == (1, _TOKENS) and value.dim() <= 3:
        return value[0, -1].float()
    return None


def _alike(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return True
    return bool((a - b).abs().max() <= _SAME * a.abs().max().clamp(min=_SAME))


def _give_zeros(
    module: nn.Module,  # noqa: ARG001 - the interface passes the layer
    query: torch.Tensor,
    key: torch.Tensor,  # noqa: ARG001
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    **rest: Any,  # noqa: ARG001
) -> tuple[torch.Tensor, None]:
    batch, heads, length, _ = query.shape
    return query.new_zeros(batch, length, heads, value.shape[3]), None


AttentionInterface.register(_NAME, _give_zeros)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, no_mask)
