"""Write a graph and its weights: `model.onnx` and one file of weights beside it.

In: an onnx_ir model whose large tensors may be made only when they are read. Out: two files, the
weights in the order of the graph's initializers, large ones on page borders so that they can be
mapped. Tensors are made, written and let go one at a time.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from .passes.pattern import as_shape
from .passes.weights import turned_name

_INLINE = 1 << 14  # bytes; smaller tensors stay in the graph's own file
_PAGE = 4096


def write_graph(
    model: ir.Model,
    graph_path: Path,
    weights_name: str,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, ir.ExternalTensor]:
    """Write `model` to `graph_path` and its weights to `weights_name` beside it.

    Returns the weights as they now lie on the disk, by name; `model` itself is not changed.
    `advance` is called with the bytes of each weight. Raises OSError when a file cannot be written.
    """
    external: dict[str, ir.ExternalTensor] = {}
    with (graph_path.parent / weights_name).open("wb") as file:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < _INLINE:
                continue
            external[name] = _write(file, name, tensor, weights_name)
            advance(tensor.nbytes)
    light = model.clone()
    for name, tensor in external.items():
        light.graph.initializers[name].const_value = tensor
    graph_path.write_bytes(_serialize(light))
    return {name: _located(tensor, graph_path.parent) for name, tensor in external.items()}


def read_weights_from(held: Mapping[str, ir.ExternalTensor], model: ir.Model) -> None:
    """Let `model` read its large weights from a file of the same model, not from memory.

    A weight that the file holds turned is turned back when it is read.
    """
    for name, value in model.graph.initializers.items():
        if name in held:
            value.const_value = held[name]
        elif (turned := held.get(turned_name(name))) is not None:
            value.const_value = _turned_back(turned, name)


def _write(
    file: BinaryIO, name: str, tensor: ir.TensorProtocol, location: str
) -> ir.ExternalTensor:
    file.write(b"\0" * (-file.tell() % _PAGE))
    offset = file.tell()
    if tensor.dtype.bitwidth < 8:  # arrays hold such numbers in a byte each
        file.write(tensor.tobytes())
    else:
        file.write(np.ascontiguousarray(tensor.numpy()).data.cast("B"))
    return ir.ExternalTensor(
        location,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=as_shape(tensor),
        name=name,
    )


def _located(tensor: ir.ExternalTensor, folder: Path) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=as_shape(tensor),
        name=tensor.name or "",
        base_dir=folder,
    )


def _turned_back(turned: ir.ExternalTensor, name: str) -> ir.LazyTensor:
    columns, rows = turned.shape.numpy()
    return ir.LazyTensor(
        lambda: ir.Tensor(turned.numpy().T),
        dtype=turned.dtype,
        shape=ir.Shape((rows, columns)),
        name=name,
    )


def _serialize(model: ir.Model) -> bytes:
    proto: onnx.ModelProto = ir.to_proto(model)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content
