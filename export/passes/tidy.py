"""Remove what nothing reads and put nodes into running order.

Requires: nothing. Ensures: every node feeds an output, every initializer is read, and a node
stands after those that it reads from.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass


def tidy(model: ir.Model) -> int:
    """Tidy in place; return how many nodes went away."""
    before = model.graph.num_nodes()
    model.graph.sort()
    RemoveUnusedNodesPass()(model)
    return before - model.graph.num_nodes()
