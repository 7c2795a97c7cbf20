"""Graph passes on onnx_ir: each file says what it requires and what it ensures.

In: a traced graph. Out: the same graph, changed in place; every pass returns how much it changed.
`prepare` is the order in which they run; what comes after it (quantise or place the float weights,
finish) depends on the precision.
"""

from dataclasses import dataclass

import onnx_ir as ir

from .experts import lower_experts
from .layout import cancel_layout
from .linear import unify_linears
from .norm import fuse_norms
from .packing import pack_qkv
from .positions import lower_positions
from .rotary import rotate_by_op, rotate_in_attention
from .simplify import simplify
from .tidy import tidy


@dataclass(frozen=True)
class SpeedPasses:
    """Passes that only make a graph faster, and are left out where parity fails with them."""

    rotation: bool = True
    packing: bool = True

    @property
    def left_out(self) -> str:
        """What is left out, in words."""
        names = {"rotation by one op": self.rotation, "packed q, k, v": self.packing}
        return " and ".join(name for name, kept in names.items() if not kept)


# In the order in which they are tried; standard ops have no packing to leave out.
VARIANTS = (
    SpeedPasses(),
    SpeedPasses(rotation=False),
    SpeedPasses(rotation=False, packing=False),
)
STANDARD_VARIANTS = (SpeedPasses(), SpeedPasses(rotation=False))


def prepare(model: ir.Model, *, context: int, speed: SpeedPasses) -> dict[str, int]:
    """Bring a fused graph to the form from which weights are placed; return what changed."""
    changes = {
        "simplify": simplify(model),
        "linears": unify_linears(model),
        "experts": lower_experts(model),
        "norms": fuse_norms(model),
        "tidy": tidy(model),
    }
    if speed.rotation:
        changes["rotation"] = rotate_in_attention(model, context=context + 1)  # and the scratch row
    changes["layout"] = cancel_layout(model)
    if speed.packing:
        changes["packing"] = pack_qkv(model)
    changes["positions"] = lower_positions(model)
    changes["tidy"] += tidy(model)
    return changes


def prepare_standard(model: ir.Model, *, context: int, speed: SpeedPasses) -> dict[str, int]:
    """Bring a portable graph to the same form, by standard ops alone; return what changed."""
    changes = {
        "simplify": simplify(model),
        "linears": unify_linears(model),
        "norms": fuse_norms(model, is_standard=True),
        "tidy": tidy(model),
    }
    if speed.rotation:
        changes["rotation"] = rotate_by_op(model, context=context)
    changes["layout"] = cancel_layout(model)
    changes["tidy"] += tidy(model)
    return changes
