"""Compute a row of attention to the same bits, however many rows come with it.

Requires: attention ops as traced: fused ones that read q, k and v from `[1, S, width]` values and
the lengths from the graph's inputs, or standard ones over `[B, heads, S, head_dim]` queries.
Ensures: each op gets one scratch row behind the new tokens', which is cut from its output. For the
fused op the row is a token: lengths count it, and the caches need one position beyond the last. For
the standard op it is a query that sees everything. Experts in float get every row twice (those in
int4 or int8 need no help in blocks of up to 32).

Why: on CPUs the ops take another path for a single row than for several, and their last bits
differ. Activations in int8 turn a last bit into a step of 1/127, and thirty layers make that a
whole logit (measured), so that a token scored alone and the same token scored in a block could
choose differently. With this pass a plain step and a verified block agree to the last bit, where
the linear layers do (int4 and int8 in blocks of 32, float32).
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from . import experts
from .pattern import add_weight, as_tensor, insert_node

_ROWS = slice(0, 3)  # q, k, v; packed ones come as the first
_LENGTHS = (5, 6)  # seqlens_k and total_sequence_length
_MASK = 3


def steady_attention(model: ir.Model) -> int:
    """Add the scratch row in place; return how many ops were changed."""
    graph = model.graph
    fused = [node for node in graph if node.op_type == "GroupQueryAttention"]
    standard = [node for node in graph if node.op_type == "Attention"]
    if fused:
        _pad_tokens(graph, fused)
    if standard:
        _pad_queries(graph, standard)
    return len(fused) + len(standard)


def _pad_tokens(graph: ir.Graph, ops: Sequence[ir.Node]) -> None:
    one = add_weight(graph, "scratch.one", as_tensor(np.array([1], np.int32)))
    behind = add_weight(graph, "scratch.behind", as_tensor(np.array([0, 0, 0, 0, 1, 0], np.int64)))
    cut = _cut(graph, axis=1)
    lengths = {
        index: insert_node(ops[0], "Add", [ops[0].inputs[index], one], like=ops[0].inputs[index])
        for index in _LENGTHS
    }
    for node in ops:
        for index, value in enumerate(node.inputs[_ROWS]):
            if value is not None:
                _pad(node, index, behind)
        for index in _LENGTHS:
            node.replace_input_with(index, lengths[index].outputs[0])
        _cut_row(graph, node, cut)


def _pad_queries(graph: ir.Graph, ops: Sequence[ir.Node]) -> None:
    behind = add_weight(
        graph, "scratch.behind", as_tensor(np.array([0, 0, 0, 0, 0, 0, 1, 0], np.int64))
    )
    seen = add_weight(graph, "scratch.seen", as_tensor(np.ones((), np.bool_)))
    cut = _cut(graph, axis=2)
    masks: dict[ir.Value | None, ir.Value] = {}
    for node in ops:
        _pad(node, 0, behind)
        mask = node.inputs[_MASK]
        if mask not in masks:
            masks[mask] = insert_node(node, "Pad", [mask, behind, seen]).outputs[0]
        node.replace_input_with(_MASK, masks[mask])
        _cut_row(graph, node, cut)


def _pad(node: ir.Node, index: int, behind: ir.Value) -> None:
    value = node.inputs[index]
    assert value is not None
    padded = insert_node(node, "Pad", [value, behind])
    padded.outputs[0].type = value.type
    node.replace_input_with(index, padded.outputs[0])


def _cut(graph: ir.Graph, *, axis: int) -> list[ir.Value]:
    return [
        add_weight(graph, f"scratch.{name}", as_tensor(np.array([value], np.int64)))
        for name, value in (("from", 0), ("to", -1), ("axis", axis))
    ]


def steady_experts(model: ir.Model) -> int:
    """Feed float experts every row twice, in place: none sees a single one; return how many."""
    ops = [node for node in model.graph if node.op_type == experts.OP]
    for node in ops:
        for index, value in enumerate(node.inputs[:2]):
            twice = insert_node(node, "Concat", [value, value], {"axis": 0})
            node.replace_input_with(index, twice.outputs[0])
        mixed = node.outputs[0]
        halves = ir.node("Split", [mixed], {"axis": 0, "num_outputs": 2}, num_outputs=2)
        halves.outputs[0].type, halves.outputs[0].shape = mixed.type, mixed.shape
        mixed.shape = None
        ir.convenience.replace_all_uses_with(mixed, halves.outputs[0])
        halves.replace_input_with(0, mixed)
        model.graph.insert_after(node, halves)
    return len(ops)


def _cut_row(graph: ir.Graph, node: ir.Node, cut: list[ir.Value]) -> None:
    mixed = node.outputs[0]
    slicing = ir.node("Slice", [mixed, *cut])
    slicing.outputs[0].type = mixed.type
    slicing.outputs[0].shape = mixed.shape
    mixed.shape = None  # one row more than it had
    ir.convenience.replace_all_uses_with(mixed, slicing.outputs[0])
    slicing.replace_input_with(0, mixed)
    graph.insert_after(node, slicing)
