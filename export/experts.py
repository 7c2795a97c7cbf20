"""Mixtures of experts as a seam: one node for all experts of a layer instead of a loop over them.

In: a transformers model whose experts go through its experts interface. Out: while the model is
traced, one `forerun::Experts` node per layer, which a pass lowers to an op of ONNX Runtime.
What a gate computes is found by feeding it numbers: all gates in use are
`clip(g) * sigmoid(alpha * clip(g)) * (clip(u) + beta)`, and only that form is accepted.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from .errors import UnsupportedModelError

OP = "Experts"
_NAME = "forerun_experts"
_FAR = 1e4  # beyond any clip
_EXACT = 1e-4


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`g * sigmoid(alpha * g) * (u + beta)`, `g` clipped to ≤ `limit` and `u` to ± `limit`."""

    alpha: float
    beta: float
    limit: float


_gates: dict[Any, Gate] = {}  # of the model that is being traced, by module


@contextmanager
def experts_swapped(model: PreTrainedModel) -> Iterator[None]:
    """Let one node stand for the experts of every layer; a model without experts is left alone.

    Raises UnsupportedModelError: ONNX Runtime's experts do not compute what these do.
    """
    experts: list[Any] = [module for module in model.modules() if hasattr(module, "_apply_gate")]
    if not experts:
        yield
        return
    _gates.update((module, recognise_gate(module)) for module in experts)
    before = model.get_experts_implementation()
    model.set_experts_implementation(_NAME)
    try:
        yield
    finally:
        model.set_experts_implementation(before)
        _gates.clear()


def recognise_gate(module: Any) -> Gate:
    """Return what the gate of an experts module computes.

    Raises UnsupportedModelError: it computes something else, or there is none.
    """
    if not module.has_gate or module.has_post_expert_norm:
        raise UnsupportedModelError(
            f"the experts of {type(module).__name__} have no gate, or a norm of their own behind "
            "them, which ONNX Runtime's experts have not"
        )
    width = module.down_proj.shape[1 if module.is_transposed else 2]

    def apply(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        pairs = torch.cat((gate, up)) if module.is_concatenated else torch.stack((gate, up), 1)
        result: torch.Tensor = module._apply_gate(pairs.reshape(1, -1).float())[0]
        return result

    def at(gate: float, up: float) -> float:
        return float(apply(torch.full((width,), gate), torch.full((width,), up))[0])

    slope = at(1.0, 1.0) - at(1.0, 0.0)  # sigmoid(alpha), unless 1 is beyond the limit
    if 0 < slope < 1:
        beta = at(1.0, 0.0) / slope
        limit = at(1.0, _FAR) / slope - beta
        found = Gate(
            alpha=round(math.log(slope / (1 - slope)), 4),
            beta=round(beta, 4),
            limit=round(limit, 4) if limit < 0.99 * _FAR else math.inf,
        )
        gate, up = torch.randn(2, width, generator=torch.Generator().manual_seed(3)) * 10
        clipped = gate.clamp(max=found.limit)
        wanted = (
            clipped
            * torch.sigmoid(found.alpha * clipped)
            * (up.clamp(-found.limit, found.limit) + found.beta)
        )
        if torch.allclose(apply(gate, up), wanted, rtol=_EXACT, atol=_EXACT):
            return found
    raise UnsupportedModelError(
        f"the gate of {type(module).__name__} is no SiLU of the one half times the other, which is "
        "all that ONNX Runtime's experts compute"
    )


def _route(
    module: Any,
    hidden_states: torch.Tensor,  # [T, width]
    top_k_index: torch.Tensor,  # [T, k] int64
    top_k_weights: torch.Tensor,  # [T, k]
) -> torch.Tensor:
    """Give every choice of a token a row of its own, and weigh and add the rows afterwards.

    Adding inside the op would add in an order that depends on the other tokens.
    """
    tokens, chosen = top_k_index.shape
    gate = _gates[module]
    limit = {"limit": gate.limit} if math.isfinite(gate.limit) else {}
    rows = hidden_states[:, None].expand(tokens, chosen, -1).reshape(tokens * chosen, -1)
    output = torch.onnx.ops.symbolic(
        f"forerun::{OP}",
        [
            *(rows, top_k_index.reshape(-1)),
            *(module.gate_up_proj, module.down_proj),
            *([module.gate_up_proj_bias, module.down_proj_bias] if module.has_bias else []),
        ],
        {
            "is_transposed": int(module.is_transposed),
            "is_concatenated": int(module.is_concatenated),
            "alpha": gate.alpha,
            "beta": gate.beta,
            **limit,
        },
        dtype=rows.dtype,
        shape=rows.shape,
        version=1,
    )
    weighted = output.reshape(tokens, chosen, -1) * top_k_weights[..., None].to(output.dtype)
    return weighted.sum(1)


ALL_EXPERTS_FUNCTIONS.register(_NAME, _route)
