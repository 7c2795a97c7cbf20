"""Lower the marked positions to standard ops.

Requires: at most one `forerun::Positions` node, its inputs `input_ids` and `seqlens_k`.
Ensures: none; readers get `seqlens_k + 1 - S + arange(S)` as `[1, S] int64`.
"""

import numpy as np
import onnx_ir as ir

from .pattern import add_weight, as_tensor, insert_node, replace_value


def lower_positions(model: ir.Model) -> int:
    """Lower in place; return how many nodes were replaced."""
    marks = [node for node in model.graph if node.op_type == "Positions"]
    for mark in marks:
        _lower(model.graph, mark)
    if marks:
        model.opset_imports.pop("forerun", None)
    return len(marks)


def _lower(graph: ir.Graph, mark: ir.Node) -> None:
    ids, last = mark.inputs
    zero, one, axis = (
        add_weight(graph, f"positions.{name}", as_tensor(np.array(value, np.int64)))
        for name, value in (("zero", 0), ("one", 1), ("axis", [0]))
    )
    count = insert_node(mark, "Shape", [ids], {"start": 1, "end": 2})
    scalar = insert_node(mark, "Squeeze", [count.outputs[0]])
    steps = insert_node(mark, "Range", [zero, scalar.outputs[0], one])
    wide = insert_node(mark, "Cast", [last], {"to": ir.DataType.INT64.value})
    total = insert_node(mark, "Add", [wide.outputs[0], one])
    past = insert_node(mark, "Sub", [total.outputs[0], count.outputs[0]])
    row = insert_node(mark, "Add", [past.outputs[0], steps.outputs[0]])
    lowered = insert_node(mark, "Unsqueeze", [row.outputs[0], axis], like=mark.outputs[0])
    replace_value(mark.outputs[0], lowered.outputs[0])
    graph.remove(mark, safe=True)
