"""Write root-mean-square norms, and the residual sum before them, as one op each.

Requires: a simplified graph. Ensures: `x * 1/sqrt(mean(x^2) + eps) * w` is one
SimplifiedLayerNormalization, or one SkipSimplifiedLayerNormalization when x is a sum of two
activations; a norm of another form keeps its standard ops. By standard ops alone it is one
RMSNormalization, whose squares are float32 whatever the type of x.
Source: ONNX Runtime operators SimplifiedLayerNormalization-1, SkipSimplifiedLayerNormalization-1;
ONNX operator RMSNormalization-23.
"""

import onnx_ir as ir

from .pattern import (
    constant,
    inputs_either_way,
    insert_node,
    is_weight,
    made_by,
    replace_value,
    same_shape,
)


def fuse_norms(model: ir.Model, *, is_standard: bool = False) -> int:
    """Fuse norms in place; return how many."""
    fused = 0
    for node in list(model.graph):
        if node.graph is not None and node.op_type == "Mul":
            fused += _fuse_norm(node, is_standard=is_standard)
    return fused


def _fuse_norm(last: ir.Node, *, is_standard: bool) -> bool:
    for weight, scaled in inputs_either_way(last):
        matched = _match_scaled(scaled) if is_weight(weight, rank=1) else None
        if matched is None:
            continue
        source, epsilon = matched
        if is_standard:
            _replace_alone(last, "RMSNormalization", source, weight, epsilon)
        else:
            _replace(last, source, weight, epsilon)
        return True
    return False


def _match_scaled(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """Match `x * 1/sqrt(mean(x^2, -1) + eps)`; return x and eps."""
    product = made_by(value, "Mul")
    if product is None:
        return None
    for source, inverse in inputs_either_way(product):
        epsilon = _match_inverse(inverse, source)
        if epsilon is not None and source is not None:
            return source, epsilon
    return None


def _match_inverse(value: ir.Value | None, source: ir.Value | None) -> float | None:
    reciprocal = made_by(value, "Reciprocal")
    root = made_by(reciprocal.inputs[0], "Sqrt") if reciprocal is not None else None
    shifted = made_by(root.inputs[0], "Add") if root is not None else None
    if shifted is None:
        return None
    for mean, epsilon in inputs_either_way(shifted):
        small = constant(epsilon)
        if small is not None and small.size == 1 and _is_mean_square(mean, source):
            return float(small.item())
    return None


def _is_mean_square(value: ir.Value | None, source: ir.Value | None) -> bool:
    mean = made_by(value, "ReduceMean")
    square = made_by(mean.inputs[0], "Pow") if mean is not None else None
    if mean is None or square is None or square.inputs[0] is not source:
        return False
    axes, exponent = constant(mean.inputs[1]), constant(square.inputs[1])
    return (
        axes is not None and axes.tolist() == [-1] and exponent is not None and exponent.item() == 2
    )


def _replace(last: ir.Node, source: ir.Value, weight: ir.Value | None, epsilon: float) -> None:
    total = made_by(source, "Add")
    if total is None or len(source.shape or ()) != 3 or not same_shape(*total.inputs):
        _replace_alone(last, "SimplifiedLayerNormalization", source, weight, epsilon)
        return
    norm = insert_node(
        last,
        "SkipSimplifiedLayerNormalization",
        [*total.inputs, weight],
        {"epsilon": epsilon},
        domain="com.microsoft",
        outputs=4,
        like=last.outputs[0],
    )
    _move_sum(total, norm)
    _put(norm, last)


def _replace_alone(
    last: ir.Node, op_type: str, source: ir.Value, weight: ir.Value | None, epsilon: float
) -> None:
    attributes = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
    norm = insert_node(last, op_type, [source, weight], attributes, like=last.outputs[0])
    _put(norm, last)


def _put(norm: ir.Node, last: ir.Node) -> None:
    graph = last.graph
    assert graph is not None
    replace_value(last.outputs[0], norm.outputs[0])
    graph.remove(last, safe=True)


def _move_sum(total: ir.Node, norm: ir.Node) -> None:
    """Let the norm hand out the sum too, to all later readers of it."""
    before, after = total.outputs[0], norm.outputs[3]
    after.type, after.shape = before.type, before.shape
    replace_value(before, after)
