"""Store linear layers, experts and the token embedding in int4 or int8 blocks.

Requires: linear layers in their one form (`passes/linear.py`). Ensures: each is a MatMulNBits with
accuracy level 4 (activations in int8, one scale per block and row, so a row's result does not
depend on other rows); a layer's experts are a QMoE, and the small layer that chooses among them
stays as it is; the token embedding is a GatherBlockQuantized; one table that serves as both
embedding and head is stored once.
Source: ONNX Runtime contrib operators of these names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .blocks import Blocks, quantize_matrix
from .importance import Importance
from .passes import experts
from .passes.linear import Linear, find_linears
from .passes.pattern import (
    add_weight,
    as_tensor,
    derived_name,
    insert_node,
    is_weight,
    replace_value,
    source_name,
)
from .passes.tidy import tidy

ACCURACY_LEVEL = 4
_STEADY_BLOCK = 32


@dataclass(frozen=True)
class Storage:
    """How linear layers are stored: weights that share a scale, and which kinds get int8 anyway.

    Kinds are `head`, and `contracting` for layers that make at most half as many features as they
    read: measured one by one on a 135M Llama, these lose most in int4.
    """

    block_size: int
    finer: frozenset[str] = frozenset()

    @property
    def is_steady(self) -> bool:
        """Whether CPU kernels give a row the same bits whatever rows come with it (measured)."""
        return self.block_size <= _STEADY_BLOCK


_FINER = frozenset({"contracting", "head"})
# From the fastest to the most faithful; the first that keeps within the gate's measure is taken.
INT4_LADDER = (Storage(128), Storage(32), Storage(32, _FINER))


# TensorRT reads int4 in these blocks, and no blocks of int8.
STANDARD_LADDER = (Storage(128), Storage(64))


def make_ladder(
    precision: str, block_size: int | None, *, is_standard: bool = False
) -> tuple[Storage, ...]:
    """Return the storages to try in turn, for a block size that the user named or `None`."""
    if is_standard:
        return STANDARD_LADDER if block_size is None else (Storage(block_size),)
    if precision == "int8":
        return (Storage(block_size or 32),)
    if block_size is None:
        return INT4_LADDER
    return (Storage(block_size), Storage(block_size, _FINER))


class _Table:
    """The initializers of one quantised matrix; its bytes are made when they are first written."""

    def __init__(
        self,
        graph: ir.Graph,
        weight: ir.Value,
        *,
        bits: int,
        block_size: int,
        importance: Importance,
    ) -> None:
        assert weight.const_value is not None
        self._content = weight.const_value
        self._importance = importance.get(source_name(weight.name))
        self.bits = bits
        self._block_size = block_size
        *self._rows, self.columns = (int(n) for n in self._content.shape.numpy())
        self.blocks = -(-self.columns // block_size)
        name = weight.name or "weight"
        self.name = name
        width = block_size * bits // 8
        is_flat = len(self._rows) > 1  # as the op for experts reads it
        packed = (self.blocks * width,) if is_flat else (self.blocks, width)
        self.packed = self._add(graph, "packed", np.uint8, packed)
        self.scales = self._add(graph, "scales", np.float32, (self.blocks,))
        self.zeros = None
        if bits == 4:
            self.zeros = self._add(graph, "zeros", np.uint8, (-(-self.blocks // 2),))
        self._made: Blocks | None = None
        self._unread = {"packed", "scales"} | ({"zeros"} if bits == 4 else set())

    @property
    def rows(self) -> int:
        """The number of rows, over all experts."""
        return math.prod(self._rows)

    def _add(self, graph: ir.Graph, part: str, dtype: type, width: tuple[int, ...]) -> ir.Value:
        name = derived_name(self.name, part)
        shape = (*self._rows, *width)
        lazy = ir.LazyTensor(
            lambda: as_tensor(self._part(part).reshape(shape), name),
            dtype=ir.DataType.from_numpy(np.dtype(dtype)),
            shape=ir.Shape(shape),
            name=name,
        )
        return add_weight(graph, name, lazy)

    def _part(self, part: str) -> NDArray[Any]:
        # Parts are written one after the other: quantise once, let go after the last.
        if self._made is None:
            weight = self._content.numpy().astype(np.float32, copy=False)
            weight = weight.reshape(self.rows, self.columns)
            self._made = quantize_matrix(
                weight,
                bits=self.bits,
                block_size=self._block_size,
                importance=self._importance,
            )
        array: NDArray[Any] = getattr(self._made, part)
        self._unread.discard(part)
        if not self._unread:
            self._made = None
        return array


def quantize_model(
    model: ir.Model, *, bits: int, storage: Storage, importance: Importance | None = None
) -> int:
    """Quantise in place; return how many nodes read quantised weights.

    `importance` says, by a weight's name in the checkpoint, how much each of its inputs matters.
    """
    graph, block_size = model.graph, storage.block_size
    tables: dict[ir.Value, _Table] = {}

    def table_of(weight: ir.Value, kind: str = "") -> _Table:
        if weight not in tables:
            own = 8 if kind in storage.finer else bits
            tables[weight] = _Table(
                graph, weight, bits=own, block_size=block_size, importance=importance or {}
            )
        return tables[weight]

    changed = 0
    choosing = _find_choosing(graph)
    linears = [linear for linear in find_linears(graph) if linear.product not in choosing]
    for linear in linears:
        _replace_linear(linear, table_of(linear.weight, _kind(linear, linears)), block_size)
        changed += 1
    for node in list(graph):
        if node.op_type == experts.OP:
            changed += _replace_experts(graph, node, bits, block_size, importance or {})
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    for node in list(graph):
        if node.op_type == "Gather" and node.inputs[1] is ids and is_weight(node.inputs[0], rank=2):
            assert node.inputs[0] is not None
            _replace_gather(graph, node, table_of(node.inputs[0]), block_size)
            changed += 1
    model.opset_imports.setdefault("com.microsoft", 1)
    tidy(model)
    return changed


def _kind(linear: Linear, linears: Sequence[Linear]) -> str:
    """Return what sort of layer this is, by its place and shape alone."""
    if linear is linears[-1]:
        return "head"
    assert linear.weight.const_value is not None
    rows, columns = (int(n) for n in linear.weight.const_value.shape.numpy())
    return "contracting" if columns >= 2 * rows else ""


def _find_choosing(graph: ir.Graph) -> set[ir.Node]:
    """Return the products whose results are ranked: a wrong choice costs more than a wrong sum."""
    found: set[ir.Node] = set()
    values = [node.inputs[0] for node in graph if node.op_type == "TopK"]
    seen: set[ir.Value] = set()
    while values:
        value = values.pop()
        node = value.producer() if value is not None and value not in seen else None
        if value is None or node is None:
            continue
        seen.add(value)
        if node.op_type == "MatMul":
            found.add(node)
        else:
            values.extend(node.inputs)
    return found


def _replace_linear(linear: Linear, table: _Table, block_size: int) -> None:
    product = insert_node(
        linear.last,
        "MatMulNBits",
        [linear.source, table.packed, table.scales, table.zeros, None, linear.bias],
        {
            "K": table.columns,
            "N": table.rows,
            "bits": table.bits,
            "block_size": block_size,
            "accuracy_level": ACCURACY_LEVEL,
        },
        domain="com.microsoft",
        like=linear.output,
    )
    replace_value(linear.output, product.outputs[0])


def _replace_experts(
    graph: ir.Graph, node: ir.Node, bits: int, block_size: int, importance: Importance
) -> bool:
    """Quantise the experts of one layer, unless their widths are no multiple of a block.

    Blocks stay within what CPU kernels round alike in any company: how many rows an expert gets is
    not for us to choose.
    """
    hidden, scores, up, up_bias, down, down_bias = (*node.inputs, None)[:6]
    assert up is not None
    assert down is not None
    block_size = min(block_size, _STEADY_BLOCK)
    if any(value.shape is None or value.shape[2] % block_size for value in (up, down)):
        return False
    first, second = (
        _Table(graph, value, bits=bits, block_size=block_size, importance=importance)
        for value in (up, down)
    )
    mixed = insert_node(
        node,
        "QMoE",
        [
            *(hidden, scores),
            *(first.packed, first.scales, up_bias),
            *(second.packed, second.scales, down_bias),
            *(None, None, None),
            *(first.zeros, second.zeros),
        ],
        {
            **{name: attribute.value for name, attribute in node.attributes.items()},
            "expert_weight_bits": bits,
            "block_size": block_size,
            "accuracy_level": ACCURACY_LEVEL,
            "weights_prepacked": 0,
        },
        domain="com.microsoft",
        like=node.outputs[0],
    )
    replace_value(node.outputs[0], mixed.outputs[0])
    return True


def _replace_gather(graph: ir.Graph, gather: ir.Node, table: _Table, block_size: int) -> None:
    """Read rows of the packed table; the last block's padding is cut off again."""
    width = table.blocks * block_size * table.bits // 8
    flat = add_weight(
        graph, derived_name(table.name, "flat"), as_tensor(np.array([table.rows, width]))
    )
    data = insert_node(gather, "Reshape", [table.packed, flat])
    rows = insert_node(
        gather,
        "GatherBlockQuantized",
        [data.outputs[0], gather.inputs[1], table.scales, table.zeros],
        {"bits": table.bits, "block_size": block_size, "gather_axis": 0, "quantize_axis": 1},
        domain="com.microsoft",
        like=gather.outputs[0],
    )
    result = rows
    if table.blocks * block_size != table.columns:
        cuts = [
            add_weight(graph, derived_name(table.name, name), as_tensor(np.array([value])))
            for name, value in (("start", 0), ("end", table.columns), ("axis", 2))
        ]
        rows.outputs[0].shape = None
        result = insert_node(gather, "Slice", [rows.outputs[0], *cuts], like=gather.outputs[0])
    replace_value(gather.outputs[0], result.outputs[0])
