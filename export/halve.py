"""Turn a float32 graph into float16, for devices whose kernels want it.

Requires: a graph with its weights placed or quantised. Ensures: float weights, scales, activations
and caches are float16; what depends on the positions alone (rotary angles) is still computed in
float32, since float16 cannot tell far positions apart; `logits` stay float32.
"""

import numpy as np
import onnx_ir as ir

from .passes.pattern import as_shape, insert_node

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT


def halve_model(model: ir.Model) -> None:
    """Turn `model` into float16 in place."""
    graph = model.graph
    exact = _values_of_positions(graph)
    for weight in graph.initializers.values():
        if weight.dtype == _FLOAT and not _is_read_exactly(weight, exact):
            _halve_weight(weight)
    for given in graph.inputs:
        if given.dtype == _FLOAT:
            given.type = ir.TensorType(_HALF)
    for node in list(graph):
        if node.outputs[0] in exact:
            continue
        if node.op_type == "Cast" and node.attributes["to"].value == _FLOAT.value:
            node.attributes["to"] = ir.AttrInt64("to", _HALF.value)
        for index, value in enumerate(node.inputs):
            if value is not None and value in exact and value.dtype == _FLOAT:
                cast = insert_node(node, "Cast", [value], {"to": _HALF.value})
                cast.outputs[0].type = ir.TensorType(_HALF)
                node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            if output.dtype == _FLOAT:
                output.type = ir.TensorType(_HALF)
    _widen_logits(graph)


def _values_of_positions(graph: ir.Graph) -> set[ir.Value]:
    """Return all values that are computed from lengths and shapes, not from what tokens mean."""
    exact: set[ir.Value] = {value for value in graph.inputs if value.dtype not in (_FLOAT, _HALF)}
    for node in graph:
        if node.op_type in ("Gather", "GatherBlockQuantized"):
            continue
        inputs = [value for value in node.inputs if value is not None]
        if any(value in exact for value in inputs) or not inputs:
            if all(value in exact or value.is_initializer() for value in inputs):
                exact.update(node.outputs)
        elif node.op_type == "Shape":
            exact.update(node.outputs)
    return exact


def _is_read_exactly(weight: ir.Value, exact: set[ir.Value]) -> bool:
    readers = [use.node for use in weight.uses()]
    return bool(readers) and all(node.outputs[0] in exact for node in readers)


def _halve_weight(value: ir.Value) -> None:
    content = value.const_value
    assert content is not None
    value.const_value = ir.LazyTensor(
        lambda: ir.Tensor(content.numpy().astype(np.float16)),
        dtype=_HALF,
        shape=as_shape(content),
        name=value.name,
    )
    value.type = ir.TensorType(_HALF)


def _widen_logits(graph: ir.Graph) -> None:
    logits = graph.outputs[0]
    last = logits.producer()
    assert last is not None
    logits.name = "logits.half"
    cast = ir.node("Cast", [logits], {"to": _FLOAT.value})
    graph.insert_after(last, cast)
    wide = cast.outputs[0]
    wide.name, wide.shape, wide.type = "logits", logits.shape, ir.TensorType(_FLOAT)
    graph.outputs[0] = wide
