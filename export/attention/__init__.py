"""Attention as a seam: what a model's layers ask for, and the op that answers in the graph.

In: a transformers model. Out: `LayerNeeds` of every layer (`observe.py`) and, while it is traced,
layers whose attention is one ONNX op over cache tensors of the wrapper (`fused.py`).
A flavour is one file with `FLAVOUR`, `make_inputs`, `attend`; nothing here knows a model family.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerNeeds:
    """What one layer's attention asks for, in the order in which layers run.

    `window` counts the tokens that a position sees, itself included (`None`: all before it);
    `sinks` says whether a learned logit per head joins the softmax.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
