"""Compute queries, keys and values of a layer by one product.

Requires: linear layers in their one form, the attention op reading q, k and v straight from three
of them with one common source. Ensures: one linear layer with their rows in order; a layer whose
q, k or v pass through a norm or a rotation first is unchanged.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .linear import Linear, as_linear
from .pattern import add_weight, derived_name, insert_node, only_use


def pack_qkv(model: ir.Model) -> int:
    """Pack in place; return how many layers were changed."""
    changed = 0
    for node in list(model.graph):
        if node.op_type == "GroupQueryAttention" and node.inputs[1] is not None:
            changed += _pack_layer(model.graph, node)
    return changed


def _pack_layer(graph: ir.Graph, attention: ir.Node) -> bool:
    parts = [as_linear(attention.inputs[index]) for index in range(3)]
    linears = [part for part in parts if part is not None]
    if len(linears) != 3 or not _are_alike(linears, attention):
        return False
    first = linears[0]
    name = derived_name(first.weight.name, "qkv")
    weight = add_weight(graph, name, _stacked([part.weight for part in linears], name))
    turned = insert_node(first.product, "Transpose", [weight], {"perm": [1, 0]})
    product = insert_node(first.product, "MatMul", [first.source, turned.outputs[0]])
    result = product.outputs[0]
    if first.bias is not None:
        biases = [part.bias for part in linears if part.bias is not None]
        name = derived_name(first.weight.name, "qkv.bias")  # biases of layers may be one tensor
        bias = add_weight(graph, name, _stacked(biases, name))
        result = insert_node(first.product, "Add", [result, bias]).outputs[0]
    for value in (product.outputs[0], result):
        value.type = first.output.type
        value.shape = _widened(first.output.shape, len_rows(weight))
    attention.replace_input_with(0, result)
    attention.replace_input_with(1, None)
    attention.replace_input_with(2, None)
    return True


def len_rows(weight: ir.Value) -> int:
    """Return the number of rows of a weight."""
    assert weight.const_value is not None
    rows = weight.const_value.shape[0]
    assert isinstance(rows, int)
    return rows


def _are_alike(linears: Sequence[Linear], attention: ir.Node) -> bool:
    first = linears[0]
    return all(
        part.source is first.source
        and (part.bias is None) == (first.bias is None)
        and only_use(part.output) is attention
        and part.weight.dtype == first.weight.dtype
        for part in linears
    )


def _stacked(values: Sequence[ir.Value], name: str) -> ir.LazyTensor:
    """Stack weights along their rows when they are written, not before."""
    tensors = [value.const_value for value in values if value.const_value is not None]
    rows = sum(tensor.shape.numpy()[0] for tensor in tensors)
    return ir.LazyTensor(
        lambda: ir.Tensor(np.concatenate([tensor.numpy() for tensor in tensors])),
        dtype=tensors[0].dtype,
        shape=ir.Shape((rows, *tensors[0].shape.numpy()[1:])),
        name=name,
    )


def _widened(shape: ir.Shape | None, width: int) -> ir.Shape | None:
    return None if shape is None else ir.Shape([*shape[:-1], width])
