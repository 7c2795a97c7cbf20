"""Give every product with a weight one form, by which later passes know it.

Requires: a simplified graph. Ensures: each product of an activation with a 2-D weight reads
`MatMul(x, Transpose(W))` with W `[N, K]` (rows are outputs), its bias added by an `Add` after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .pattern import (
    add_weight,
    derived_name,
    inputs_either_way,
    insert_node,
    is_weight,
    made_by,
    only_use,
    replace_value,
)


@dataclass(frozen=True)
class Linear:
    """`output = x @ W.T (+ bias)`; `weight` is `[N, K]`, `output` the value after the bias."""

    product: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value

    @property
    def source(self) -> ir.Value:
        """The activation that is multiplied."""
        value = self.product.inputs[0]
        assert value is not None  # MatMul has two inputs
        return value

    @property
    def last(self) -> ir.Node:
        """The node that makes `output`: the product or the Add of its bias."""
        node = self.output.producer()
        assert node is not None
        return node


def unify_linears(model: ir.Model) -> int:
    """Bring every linear layer to the one form, in place; return how many were rewritten."""
    changed = 0
    for node in list(model.graph):
        if node.op_type == "Gemm" and _is_plain_gemm(node):
            _replace_gemm(model.graph, node)
        elif node.op_type == "MatMul" and is_weight(node.inputs[1], rank=2):
            _turn_weight(model.graph, node)
        else:
            continue
        changed += 1
    return changed


def find_linears(graph: ir.Graph) -> Iterator[Linear]:
    """Yield every linear layer of a graph in the one form, in running order."""
    for node in list(graph):
        linear = as_linear(node.outputs[0]) if node.op_type == "MatMul" else None
        if linear is not None:
            yield _with_bias(linear)


def as_linear(value: ir.Value | None) -> Linear | None:
    """Return the linear layer whose output `value` is, else None."""
    node = value.producer() if value is not None else None
    if node is None or value is None:
        return None
    if node.op_type == "Add":
        for product, bias in inputs_either_way(node):
            linear = as_linear(product) if is_weight(bias, rank=1) else None
            if linear is not None and linear.bias is None and only_use(linear.output) is node:
                return Linear(linear.product, linear.weight, bias, value)
        return None
    turned = made_by(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
    if turned is None or not is_weight(turned.inputs[0], rank=2):
        return None
    weight = turned.inputs[0]
    assert weight is not None
    return Linear(node, weight, None, value)


def _with_bias(linear: Linear) -> Linear:
    user = only_use(linear.output)
    biased = as_linear(user.outputs[0]) if user is not None and user.op_type == "Add" else None
    return biased if biased is not None and biased.product is linear.product else linear


def _is_plain_gemm(node: ir.Node) -> bool:
    def number(name: str, default: float) -> float:
        return float(node.attributes[name].value) if name in node.attributes else default

    plain = number("alpha", 1.0) == number("beta", 1.0) == 1.0 and number("transA", 0) == 0
    weight = node.inputs[1]
    turned = made_by(weight, "Transpose")
    return plain and is_weight(turned.inputs[0] if turned is not None else weight, rank=2)


def _replace_gemm(graph: ir.Graph, node: ir.Node) -> None:
    source, weight = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    turns = "transB" in node.attributes and node.attributes["transB"].value == 1
    if turns:
        weight = insert_node(node, "Transpose", [weight], {"perm": [1, 0]}).outputs[0]
    product = insert_node(node, "MatMul", [source, weight], like=node.outputs[0])
    result = product
    if bias is not None:
        result = insert_node(node, "Add", [product.outputs[0], bias], like=node.outputs[0])
    replace_value(node.outputs[0], result.outputs[0])
    graph.remove(node, safe=True)
    if is_weight(product.inputs[1], rank=2):
        _turn_weight(graph, product)


def _turn_weight(graph: ir.Graph, product: ir.Node) -> None:
    """Replace a weight `[K, N]` by its transpose, made when it is read, and a Transpose of it."""
    weight = product.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    content = weight.const_value
    rows, columns = content.shape.numpy()
    name = derived_name(weight.name, "turned")
    turned = graph.initializers.get(name)
    if turned is None:
        lazy = ir.LazyTensor(
            lambda: ir.Tensor(content.numpy().T),
            dtype=content.dtype,
            shape=ir.Shape((columns, rows)),
            name=name,
        )
        turned = add_weight(graph, name, lazy)
    back = insert_node(product, "Transpose", [turned], {"perm": [1, 0]})
    product.replace_input_with(1, back.outputs[0])
