"""Small words for reading a graph: who made a value, is it constant, what else goes in.

In: values and nodes of onnx_ir. Out: plain answers. All passes read the graph through these.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

TRACED_PREFIX = "model"  # the wrapper's name for the model that it traces
_SMALL = 65536  # elements; larger constants are weights and are never read while matching


def made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that made `value` if it is an `op_type`, else None."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """Return a small constant's content, else None."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy() if value.const_value.size <= _SMALL else None


def is_weight(value: ir.Value | None, *, rank: int) -> bool:
    """Whether `value` is an initializer of that rank."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return False
    return len(value.const_value.shape) == rank


def only_use(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads `value`, or None when there are others or none."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def inputs_either_way(node: ir.Node) -> list[tuple[ir.Value | None, ir.Value | None]]:
    """Return the two inputs of a commutative node in both orders."""
    first, second = node.inputs
    return [(first, second), (second, first)]


def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether both shapes are known and equal, symbolic sizes by name."""
    if a is None or b is None or a.shape is None or b.shape is None:
        return False
    first, second = (
        [d if isinstance(d, int) else d.value for d in shape] for shape in (a.shape, b.shape)
    )
    return first == second and None not in first


def insert_node(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, Any] | None = None,
    *,
    domain: str = "",
    outputs: int = 1,
    like: ir.Value | None = None,
) -> ir.Node:
    """Insert a node before another one; its first output takes type and shape of `like`."""
    node = ir.node(op_type, inputs, attributes or {}, domain=domain, num_outputs=outputs)
    if like is not None:
        node.outputs[0].type = like.type
        node.outputs[0].shape = like.shape
    graph = before.graph
    assert graph is not None  # nodes come from walking a graph
    graph.insert_before(before, node)
    return node


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let all readers of `old` read `new`; if `old` is a graph output, `new` takes its name."""
    name = old.name
    is_output = old.is_graph_output()
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    if is_output:
        old.name = f"{name}.replaced"
        new.name = name


def add_weight(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Register `tensor` as the initializer `name` and return its value.

    What is registered under this name already is the same: a weight may be used more than once.
    """
    if name in graph.initializers:
        known = graph.initializers[name]
        assert known.const_value is not None
        assert known.const_value.shape == tensor.shape, name
        return known
    value = ir.Value(
        name=name,
        shape=as_shape(tensor),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def derived_name(name: str | None, what: str) -> str:
    """Return the name of a tensor that is made from the weight `name`."""
    return f"{name}#{what}"


def source_name(name: str | None) -> str:
    """Return the name that the checkpoint has for a weight, or for the first of those packed."""
    return (name or "").partition("#")[0].removeprefix(f"{TRACED_PREFIX}.")


def as_shape(tensor: ir.TensorProtocol) -> ir.Shape:
    """Return a tensor's shape as a value may hold it."""
    return ir.Shape(tensor.shape.numpy())


def as_tensor(array: NDArray[Any], name: str | None = None) -> ir.Tensor[NDArray[Any]]:
    """Wrap an array (its memory is kept, not copied)."""
    return ir.Tensor(np.ascontiguousarray(array), name=name)
