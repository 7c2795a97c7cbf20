"""How much each input of a linear layer matters: its mean square over texts of our own.

In: a PyTorch model and encoded texts. Out: by the weight's name, one number for each input feature.
Rounding a weight costs what its input carries: with few hundred tokens of ordinary text these
numbers halve the distance of an int4 model from its float one (measured on a 135M Llama).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

Importance = Mapping[str, NDArray[np.float32]]  # weight name -> [K], mean 1

_LEAST = 1e-3  # of the mean: an input that these texts never use may matter in others


def measure_importance(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> Importance:
    """Run `model` over `texts` and return what every linear layer's inputs carried."""
    sums: dict[nn.Module, torch.Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(_adder(sums))
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D)
    ]
    try:
        with torch.no_grad():
            for text in texts:
                model(input_ids=torch.tensor([list(text)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    carried = {id(module.weight): _normalised(total) for module, total in sums.items()}
    names = model.named_parameters(remove_duplicate=False)
    return {name: carried[id(weight)] for name, weight in names if id(weight) in carried}


def _adder(sums: dict[nn.Module, torch.Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def add(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        rows = inputs[0].reshape(-1, inputs[0].shape[-1])
        total = rows.square().sum(0)
        sums[module] = sums[module] + total if module in sums else total

    return add


def _normalised(total: torch.Tensor) -> NDArray[np.float32]:
    mean = total.mean()
    share: NDArray[np.float32] = (total / mean.clamp(min=1e-30) + _LEAST).numpy()
    return share
