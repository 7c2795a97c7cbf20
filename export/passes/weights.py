"""Turn weights for the float kernels, which want `[K, N]`, without storing one twice.

Requires: linear layers in their one form. Ensures: a weight that only one product reads is stored
turned and its Transpose is gone; one that is read elsewhere too (a tied head) stays as it is and
its product over rows of one batch becomes a Gemm, which reads it turned.
"""

import numpy as np
import onnx_ir as ir

from .linear import Linear, find_linears
from .pattern import add_weight, as_tensor, derived_name, insert_node, only_use, replace_value
from .tidy import tidy


def place_weights(model: ir.Model) -> int:
    """Lower in place; return how many linear layers were lowered."""
    count = 0
    for linear in list(find_linears(model.graph)):
        turn = linear.product.inputs[1]
        assert turn is not None
        if only_use(linear.weight) is not None and only_use(turn) is not None:
            linear.product.replace_input_with(1, _turned(model.graph, linear.weight))
        elif linear.source.shape is not None and linear.source.shape[0] == 1:
            _make_gemm(model.graph, linear)
        else:
            continue
        count += 1
    tidy(model)
    return count


def turned_name(name: str) -> str:
    """Return the name under which the weight `name` is stored turned."""
    return derived_name(name, "columns")


def _turned(graph: ir.Graph, weight: ir.Value) -> ir.Value:
    content = weight.const_value
    assert content is not None
    rows, columns = content.shape.numpy()
    name = turned_name(weight.name or "weight")
    lazy = ir.LazyTensor(
        lambda: as_tensor(content.numpy().T, name),
        dtype=content.dtype,
        shape=ir.Shape((columns, rows)),
        name=name,
    )
    return add_weight(graph, name, lazy)


def _make_gemm(graph: ir.Graph, linear: Linear) -> None:
    """`[1, R, K] -> [R, K] -> Gemm(transB) -> [1, R, N]`."""
    weight = linear.weight
    assert weight.const_value is not None
    rows, columns = (int(n) for n in weight.const_value.shape.numpy())
    before, after = (
        add_weight(graph, derived_name(weight.name, name), as_tensor(np.array(shape, np.int64)))
        for name, shape in (("flat", [-1, columns]), ("rows", [1, -1, rows]))
    )
    flat = insert_node(linear.product, "Reshape", [linear.source, before])
    product = insert_node(linear.product, "Gemm", [flat.outputs[0], weight], {"transB": 1})
    result = insert_node(
        linear.product, "Reshape", [product.outputs[0], after], like=linear.product.outputs[0]
    )
    replace_value(linear.product.outputs[0], result.outputs[0])
