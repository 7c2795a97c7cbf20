"""Fold what is constant and drop what is unused, leaving the weights untouched.

Requires: a graph as traced. Ensures: shape arithmetic on constants is gone, every constant is an
initializer, and a weight's transpose is still a Transpose of that very weight, so that a weight
used twice is still one tensor.
"""

import onnx_ir as ir
from onnxscript import optimizer

_FOLDED = 1 << 17  # elements a folded constant may have: vectors yes, matrices of real models no


def simplify(model: ir.Model) -> int:
    """Simplify `model` in place; return how many nodes went away."""
    before = model.graph.num_nodes()
    optimizer.optimize_ir(
        model,
        input_size_limit=_FOLDED,
        output_size_limit=_FOLDED,
        should_fold=_may_fold,
        onnx_shape_inference=False,
    )
    return before - model.graph.num_nodes()


def _may_fold(node: ir.Node) -> bool | None:
    """Leave a Transpose alone when it turns a weight; None means: decide as usual."""
    if node.op_type != "Transpose":
        return None
    source = node.inputs[0]
    return False if source is not None and source.is_initializer() else None
