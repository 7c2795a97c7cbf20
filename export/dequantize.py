"""Store linear layers in int4 blocks by standard ops, as TensorRT reads them.

Requires: linear layers in their one form (`passes/linear.py`). Ensures: each product reads a weight
`[K, N]` of int4 through DequantizeLinear-21 with one scale per block of K and no zero point; a
table of embeddings is float16, and cast where it is read. On CPUs, ONNX Runtime turns the two ops
into the kernel that `quantize.py` writes, with int8 activations.
Source: ONNX operator DequantizeLinear-21; TensorRT takes int4 in blocks of 64 or 128, symmetric.
"""

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .blocks import Blocks, quantize_matrix
from .importance import Importance
from .passes.linear import Linear, find_linears
from .passes.pattern import (
    add_weight,
    as_shape,
    as_tensor,
    derived_name,
    insert_node,
    is_weight,
    replace_value,
    source_name,
)
from .passes.tidy import tidy

_BLOCK_SIZES = (128, 64, 32, 16)  # TensorRT takes the first two; the others are for odd matrices


def dequantize_model(
    model: ir.Model, *, block_size: int, importance: Importance | None = None
) -> int:
    """Quantise in place; return how many nodes read weights in another form than before.

    `importance` says, by a weight's name in the checkpoint, how much each of its inputs matters.
    """
    graph = model.graph
    tables: dict[ir.Value, tuple[ir.Value, ir.Value, int]] = {}
    changed = 0
    for linear in list(find_linears(graph)):
        if linear.weight not in tables:
            tables[linear.weight] = _add_table(
                graph, linear.weight, block_size=block_size, importance=importance or {}
            )
        _replace_product(linear, *tables[linear.weight])
        changed += 1
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    for node in list(graph):
        if node.op_type == "Gather" and node.inputs[1] is ids and is_weight(node.inputs[0], rank=2):
            _halve_table(graph, node)
            changed += 1
    tidy(model)
    return changed


def divides(columns: int, block_size: int) -> int:
    """Return the largest block, at most `block_size`, of which `columns` are whole ones."""
    wholes = (n for n in _BLOCK_SIZES if n <= block_size and columns % n == 0)
    return next(wholes, _BLOCK_SIZES[-1])


def _add_table(
    graph: ir.Graph, weight: ir.Value, *, block_size: int, importance: Importance
) -> tuple[ir.Value, ir.Value, int]:
    """Return codes `[K, N]`, scales `[blocks, N]` and the block size; made when first written."""
    content = weight.const_value
    assert content is not None
    rows, columns = (int(n) for n in content.shape.numpy())
    size = divides(columns, block_size)
    made: list[Blocks] = []

    def blocks() -> Blocks:
        if not made:
            made.append(
                quantize_matrix(
                    content.numpy().astype(np.float32, copy=False),
                    bits=4,
                    block_size=size,
                    importance=importance.get(source_name(weight.name)),
                    is_symmetric=True,
                )
            )
        return made[0]

    def codes() -> ir.Tensor[NDArray[Any]]:
        halves = blocks().packed.reshape(rows, -1)
        whole = np.empty((rows, 2 * halves.shape[1]), np.int8)
        whole[:, 0::2], whole[:, 1::2] = halves & 15, halves >> 4
        turned = np.ascontiguousarray((whole[:, :columns] - 8).T)
        return ir.Tensor(turned.astype(ml_dtypes.int4), name=derived_name(weight.name, "codes"))

    def scales() -> ir.Tensor[NDArray[Any]]:
        array = blocks().scales.T
        made.clear()  # written last: let go
        return as_tensor(array, derived_name(weight.name, "scales"))

    parts = (
        ("codes", codes, ir.DataType.INT4, (columns, rows)),
        ("scales", scales, ir.DataType.FLOAT, (-(-columns // size), rows)),
    )
    values = []
    for name, make, dtype, shape in parts:
        full = derived_name(weight.name, name)
        values.append(
            add_weight(
                graph, full, ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(shape), name=full)
            )
        )
    return values[0], values[1], size


def _replace_product(linear: Linear, codes: ir.Value, scales: ir.Value, block_size: int) -> None:
    whole = insert_node(
        linear.product, "DequantizeLinear", [codes, scales], {"axis": 0, "block_size": block_size}
    )
    whole.outputs[0].type = scales.type
    whole.outputs[0].shape = codes.shape
    linear.product.replace_input_with(1, whole.outputs[0])


def _halve_table(graph: ir.Graph, gather: ir.Node) -> None:
    table = gather.inputs[0]
    assert table is not None
    content = table.const_value
    assert content is not None
    name = derived_name(table.name, "half")
    half = add_weight(
        graph,
        name,
        ir.LazyTensor(
            lambda: as_tensor(content.numpy().astype(np.float16), name),
            dtype=ir.DataType.FLOAT16,
            shape=as_shape(content),
            name=name,
        ),
    )
    rows = insert_node(gather, "Gather", [half, gather.inputs[1]])
    wide = insert_node(
        gather, "Cast", [rows.outputs[0]], {"to": ir.DataType.FLOAT.value}, like=gather.outputs[0]
    )
    rows.outputs[0].type, rows.outputs[0].shape = half.type, gather.outputs[0].shape
    replace_value(gather.outputs[0], wide.outputs[0])
