"""Lower a layer's experts to com.microsoft.MoE.

Requires: `forerun::Experts` nodes as traced (`export/experts.py`). Ensures: each is one MoE op with
weights `[experts, 2 * inner, width]` (gate and up rows taking turns) and `[experts, width, inner]`,
made when they are read. Each row goes to one expert, whole: the op's scores are its place among
all, one-hot, of which its softmax is 1.
Source: ONNX Runtime contrib operator MoE-1 (docs/ContribOperators.md).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .pattern import add_weight, as_tensor, derived_name, insert_node, replace_value

OP = "MoE"
_SCORES = np.array([-1e4, 0], np.float32)  # of the others and of the chosen: its softmax is 1

_Change = Callable[[NDArray[Any]], NDArray[Any]]


def lower_experts(model: ir.Model) -> int:
    """Lower in place; return how many layers were lowered."""
    marks = [node for node in model.graph if node.domain == "forerun" and node.op_type == "Experts"]
    for mark in marks:
        _lower(model.graph, mark)
    if marks:
        model.opset_imports.setdefault("com.microsoft", 1)
    return len(marks)


def _lower(graph: ir.Graph, mark: ir.Node) -> None:
    rows, index, up, down, *biases = mark.inputs
    assert up is not None
    number = {name: attribute.value for name, attribute in mark.attributes.items()}
    turns, mixes = bool(number["is_transposed"]), bool(number["is_concatenated"])
    up_bias, down_bias = biases or (None, None)
    experts = [
        _stored(graph, up, [_turn] * turns + [_take_turns] * mixes),
        _stored(graph, up_bias, [_take_turns] * mixes),
        _stored(graph, down, [_turn] * turns),
        _stored(graph, down_bias, []),
    ]
    attributes: dict[str, Any] = {
        "k": 1,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": number["alpha"],
        "activation_beta": number["beta"],
    }
    if "limit" in number:
        attributes["swiglu_limit"] = number["limit"]
    depth = add_weight(
        graph, derived_name(up.name, "count"), as_tensor(np.array(_sizes(up)[0], np.int64))
    )
    pair = add_weight(graph, derived_name(up.name, "scores"), as_tensor(_SCORES))
    scores = insert_node(mark, "OneHot", [index, depth, pair])
    mixed = insert_node(
        mark,
        OP,
        [rows, scores.outputs[0], *experts],
        attributes,
        domain="com.microsoft",
        like=mark.outputs[0],
    )
    replace_value(mark.outputs[0], mixed.outputs[0])
    graph.remove(mark, safe=True)


def _stored(graph: ir.Graph, value: ir.Value | None, changes: Sequence[_Change]) -> ir.Value | None:
    """Return a weight changed in the order of `changes`, made when it is read."""
    if value is None or not changes:
        return value
    content = value.const_value
    assert content is not None  # experts are weights
    rows = _sizes(value)
    name = derived_name(value.name, "experts")
    lazy = ir.LazyTensor(
        lambda: as_tensor(functools.reduce(lambda a, change: change(a), changes, content.numpy())),
        dtype=content.dtype,
        shape=ir.Shape((rows[0], *reversed(rows[1:])) if _turn in changes else rows),
        name=name,
    )
    return add_weight(graph, name, lazy)


def _turn(array: NDArray[Any]) -> NDArray[Any]:
    return array.swapaxes(1, 2)


def _take_turns(array: NDArray[Any]) -> NDArray[Any]:
    """Let gates and ups, the two halves along axis 1, take turns."""
    gates, ups = np.split(array, 2, axis=1)
    return np.stack((gates, ups), axis=2).reshape(array.shape)


def _sizes(value: ir.Value | None) -> tuple[int, ...]:
    assert value is not None
    assert value.const_value is not None
    return tuple(int(n) for n in value.const_value.shape.numpy())
