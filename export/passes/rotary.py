"""Let one op rotate queries and keys: the attention op itself, or RotaryEmbedding-23.

Requires: attention ops as traced, their queries and keys rotated by halves in standard ops
(`x*cos + concat(-x2, x1)*sin`) with cos and sin computed from the positions alone.
Ensures: such a rotation is done by the fused attention op (`do_rotary=1`), or in the portable
flavour by an op of its own, from two tables `[context, head_dim/2]` that all layers with the same
frequencies share; a layer that rotates in another way, or not at all, is unchanged.
"""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from .pattern import (
    add_weight,
    as_tensor,
    constant,
    inputs_either_way,
    insert_node,
    made_by,
    only_use,
    replace_value,
)

_HALF = 2**62  # slices to the end carry huge numbers


Angles = tuple[ir.Value, ir.Value]  # cosine and sine, as traced or as tables


def rotate_in_attention(model: ir.Model, *, context: int) -> int:
    """Move rotation into the attention ops, in place; return how many layers were changed."""
    tables: dict[Angles, Angles | None] = {}
    changed = 0
    for node in list(model.graph):
        if node.op_type != "GroupQueryAttention":
            continue
        rotated = [_find_rotated(node, index) for index in (0, 1)]
        if rotated[0] is None or rotated[1] is None or rotated[0].angles != rotated[1].angles:
            continue
        table = _tables_of(model, tables, rotated[0].angles, context)
        if table is None:
            continue
        for found in rotated:
            assert found is not None
            replace_value(found.output, found.source)
        node.resize_inputs(max(9, len(node.inputs)))
        node.replace_input_with(7, table[0])
        node.replace_input_with(8, table[1])
        node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
        changed += 1
    return changed


def rotate_by_op(model: ir.Model, *, context: int) -> int:
    """Rotate by RotaryEmbedding-23, in place; return how many queries and keys were changed."""
    positions = _positions(model)
    tables: dict[Angles, Angles | None] = {}
    changed = 0
    for node in list(model.graph):
        place = {"Attention": 0, "TensorScatter": 1}.get(node.op_type)
        found = None if place is None else _find_rotated(node, place)
        table = None if found is None else _tables_of(model, tables, found.angles, context)
        if found is None or table is None:
            continue
        last = found.output.producer()
        assert last is not None
        op = insert_node(
            last, "RotaryEmbedding", [found.source, *table, positions], like=found.output
        )
        replace_value(found.output, op.outputs[0])
        changed += 1
    return changed


class _Rotated:
    """`output = source` rotated by the angles whose cosine and sine are `angles`."""

    def __init__(self, output: ir.Value, source: ir.Value, cos: ir.Value, sin: ir.Value) -> None:
        self.output = output
        self.source = source
        self.angles = (cos, sin)


def _find_rotated(attention: ir.Node, index: int) -> _Rotated | None:
    """Walk from an input of the op up through reshapes to where it is rotated."""
    value = attention.inputs[index]
    while value is not None:
        if only_use(value) is None:
            return None
        node = value.producer()
        if node is None:
            return None
        if node.op_type == "Add":
            return _match_rotation(node)
        if node.op_type not in ("Reshape", "Transpose"):
            return None
        value = node.inputs[0]
    return None


def _match_rotation(total: ir.Node) -> _Rotated | None:
    for straight, turned in inputs_either_way(total):
        first, second = made_by(straight, "Mul"), made_by(turned, "Mul")
        if first is None or second is None:
            continue
        for source, cos in inputs_either_way(first):
            for half, sin in inputs_either_way(second):
                if source is None or cos is None or sin is None:
                    continue
                if _is_half_turn(half, source):
                    return _Rotated(total.outputs[0], source, cos, sin)
    return None


def _is_half_turn(value: ir.Value | None, source: ir.Value) -> bool:
    """Whether `value` is `concat(-source[d/2:], source[:d/2])` along the last axis."""
    joined = made_by(value, "Concat")
    if joined is None or len(joined.inputs) != 2 or source.shape is None:
        return False
    width = source.shape[-1]
    rank = len(source.shape)
    axis = joined.attributes["axis"].value
    if not isinstance(width, int) or axis not in (-1, rank - 1):
        return False
    negated = made_by(joined.inputs[0], "Neg")
    upper = _slice_range(negated.inputs[0] if negated is not None else None, source, rank)
    lower = _slice_range(joined.inputs[1], source, rank)
    return lower == (0, width // 2) and upper in ((width // 2, width), (width // 2, _HALF))


def _slice_range(value: ir.Value | None, source: ir.Value, rank: int) -> tuple[int, int] | None:
    node = made_by(value, "Slice")
    if node is None or node.inputs[0] is not source or len(node.inputs) < 4:
        return None
    bounds = [constant(item) for item in node.inputs[1:]]
    if any(bound is None or bound.size != 1 for bound in bounds):
        return None
    start, end, axis, *step = (int(bound.item()) for bound in bounds if bound is not None)
    if axis not in (-1, rank - 1) or step not in ([], [1]):
        return None
    return start, min(end, _HALF)


def _positions(model: ir.Model) -> ir.Value:
    """Return the value that says where the fed tokens stand: an input, or the marked node."""
    given = [value for value in model.graph.inputs if value.name == "position_ids"]
    marked = [node.outputs[0] for node in model.graph if node.op_type == "Positions"]
    return (given + marked)[0]


def _tables_of(
    model: ir.Model, tables: dict[Angles, Angles | None], angles: Angles, context: int
) -> Angles | None:
    if angles not in tables:
        tables[angles] = _make_tables(model, angles, context, number=len(tables))
    return tables[angles]


def _make_tables(model: ir.Model, angles: Angles, context: int, *, number: int) -> Angles | None:
    """Compute cos and sin for all positions by running the graph's own ops; None if impossible."""
    tables = []
    for value in angles:
        table = _evaluate(model, _positions(model), value, context)  # [context, width]
        half = table.shape[-1] // 2 if table is not None else 0
        if table is None or not np.array_equal(table[:, :half], table[:, half:]):
            return None
        tables.append(np.ascontiguousarray(table[:, :half], dtype=np.float32))
    suffix = f".{number}" if number else ""
    cos, sin = (
        add_weight(
            model.graph, f"rotary{suffix}.{name}", as_tensor(table, f"rotary{suffix}.{name}")
        )
        for name, table in zip(("cos", "sin"), tables, strict=True)
    )
    return cos, sin


def _evaluate(
    model: ir.Model, positions: ir.Value, value: ir.Value, context: int
) -> NDArray[np.float32] | None:
    """Evaluate `value` for positions 0 … context - 1; None when it depends on more than them."""
    try:
        part = ir.convenience.extract(model.graph, [positions], [value])
    except ValueError:
        return None
    part_model = ir.Model(part, ir_version=model.ir_version)
    evaluator = ReferenceEvaluator(
        onnx.ModelProto.FromString(ir.to_proto(part_model).SerializeToString())
    )
    feeds: dict[str, Any] = {positions.name or "": np.arange(context, dtype=np.int64)[None]}
    results: list[NDArray[np.float32]] = evaluator.run(None, feeds)  # type: ignore[assignment]
    table = results[0]
    return table.reshape(context, -1) if table.size % context == 0 else None
