"""Leave nothing in the graph that depends on where and when it was made.

Requires: a graph that is otherwise done. Ensures: no traces of source code or of this machine, low
pinned format versions, nodes and the values between them named by their order, declared operator
sets that are used.
"""

import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedOpsetsPass

IR_VERSION = 8  # the version of opset 18; older runtimes load it
_IR_VERSION_OF_INT4 = 10  # from opset 21 on, graphs may hold int4 tensors


def finish(model: ir.Model, *, name: str) -> None:
    """Finish in place; `name` is the graph's name."""
    ClearMetadataAndDocStringPass()(model)
    RemoveUnusedOpsetsPass()(model)
    has_int4 = (model.opset_imports.get("") or 0) >= 21
    model.ir_version = _IR_VERSION_OF_INT4 if has_int4 else IR_VERSION
    model.producer_name = "forerun"
    model.producer_version = None
    model.graph.name = name
    for number, node in enumerate(model.graph):
        node.name = f"{node.op_type}_{number}"
        for place, value in enumerate(node.outputs):
            if not value.is_graph_output() and value.name:
                value.name = f"{node.name}.{place}"
