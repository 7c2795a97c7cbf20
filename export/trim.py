"""Trim a model's head to few tokens: the vocabulary's rows are what a small draft spends most on.

In: a PyTorch model and the ids that it may propose. Out: the same model, whose head projects onto
these alone, in their order; a table that it shares with the embedding stays whole there.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from .errors import UnsupportedModelError
from .source_model import output_head


def trim_head(model: PreTrainedModel, kept: NDArray[np.int64]) -> None:
    """Give `model` a head of `len(kept)` rows, in place.

    Raises UnsupportedModelError: its head is not one plain linear layer.
    """
    head = output_head(model)
    if type(head) is not nn.Linear:
        raise UnsupportedModelError(
            f"the head of model type {model.config.model_type!r} cannot be trimmed: it is no plain "
            "linear layer; leave out --draft-vocab"
        )
    rows = torch.from_numpy(kept)
    small = nn.Linear(head.in_features, len(kept), bias=head.bias is not None)
    small.requires_grad_(requires_grad=False)
    small.weight.copy_(head.weight[rows])
    if head.bias is not None:
        small.bias.copy_(head.bias[rows])
    model.set_output_embeddings(small)  # type: ignore[no-untyped-call]
