"""Cancel transposes and reshapes that undo each other.

Requires: values with the shapes that tracing gave them. Ensures: no Transpose follows a Transpose,
no Reshape follows a Reshape, and none of them returns what it was given.
"""

import onnx_ir as ir

from .pattern import made_by, replace_value, same_shape
from .tidy import tidy


def cancel_layout(model: ir.Model) -> int:
    """Cancel in place; return how many nodes went away."""
    before = model.graph.num_nodes()
    while _sweep(model.graph):
        pass
    tidy(model)
    return before - model.graph.num_nodes()


def _sweep(graph: ir.Graph) -> bool:
    changed = False
    for node in list(graph):
        if node.op_type == "Transpose":
            changed |= _shorten_transpose(node)
        elif node.op_type == "Reshape":
            changed |= _shorten_reshape(node)
    return changed


def _shorten_transpose(node: ir.Node) -> bool:
    inner = made_by(node.inputs[0], "Transpose")
    if inner is None or not list(node.outputs[0].uses()):
        return False
    first, second = (list(n.attributes["perm"].value) for n in (inner, node))
    order = [first[axis] for axis in second]
    if order == sorted(order):
        return _bypass(node, inner.inputs[0])
    node.replace_input_with(0, inner.inputs[0])
    node.attributes["perm"] = ir.AttrInt64s("perm", order)
    return True


def _shorten_reshape(node: ir.Node) -> bool:
    output = node.outputs[0]
    if same_shape(node.inputs[0], output) and list(output.uses()):
        return _bypass(node, node.inputs[0])
    inner = made_by(node.inputs[0], "Reshape")
    if inner is None:
        return False
    node.replace_input_with(0, inner.inputs[0])
    return True


def _bypass(node: ir.Node, source: ir.Value | None) -> bool:
    output = node.outputs[0]
    if source is None or output.is_graph_output():
        return False
    replace_value(output, source)
    return True
