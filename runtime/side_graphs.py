"""The small graphs that stand behind a model's on a device, written as ONNX files are.

In: sizes. Out: bytes that ONNX Runtime loads. Few enough ops that a library for writing graphs,
which the runtime does without, would be the larger part.
Source: onnx.proto (the numbers of the fields); operators `Identity`, `Slice`, `TopK`, `ReduceSum`.
"""

from collections.abc import Iterable, Sequence

_IR_VERSION, _OPSET = 8, 17
_FLOAT, _INT64 = 1, 7  # TensorProto.DataType


def copy_graph() -> bytes:
    """Return the graph from `logits` `[1, rows, width] float32` to the same `rows`."""
    return _model(
        [_node("Identity", ["logits"], ["rows"])],
        inputs=[_value("logits", _FLOAT, 3)],
        outputs=[_value("rows", _FLOAT, 3)],
    )


def best_graph(columns: int) -> bytes:
    """Return the graph from `logits` `[1, rows, width]` and `count` `[1]` to the best of each row.

    Its outputs are `values` `[1, rows, count] float32`, falling, their `ids`, and the `sums`
    `[1, rows]` of whole rows, all of the first `columns` logits.
    """
    return _model(
        [
            _node("Slice", ["logits", "first", "columns", "last_axis"], ["known"]),
            _node("TopK", ["known", "count"], ["values", "ids"]),
            _node("ReduceSum", ["known", "last_axis"], ["sums"], keepdims=0),
        ],
        inputs=[_value("logits", _FLOAT, 3), _value("count", _INT64, 1)],
        outputs=[
            _value("values", _FLOAT, 3),
            _value("ids", _INT64, 3),
            _value("sums", _FLOAT, 2),
        ],
        constants=[_constant("first", 0), _constant("columns", columns), _constant("last_axis", 2)],
    )


def _model(
    nodes: Sequence[bytes],
    *,
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    constants: Sequence[bytes] = (),
) -> bytes:
    graph = _fields(1, nodes) + _field(2, b"side")
    graph += _fields(5, constants) + _fields(11, inputs) + _fields(12, outputs)
    return _field(1, _IR_VERSION) + _field(7, graph) + _field(8, _field(2, _OPSET))


def _node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int) -> bytes:
    node = _fields(1, map(str.encode, inputs)) + _fields(2, map(str.encode, outputs))
    node += _field(4, op.encode())
    for name, number in attributes.items():
        node += _field(5, _field(1, name.encode()) + _field(3, number) + _field(20, 2))
    return node


def _value(name: str, kind: int, dimensions: int) -> bytes:
    sizes = _fields(1, [_field(2, f"{name}.{axis}".encode()) for axis in range(dimensions)])
    return _field(1, name.encode()) + _field(2, _field(1, _field(1, kind) + _field(2, sizes)))


def _constant(name: str, number: int) -> bytes:
    values = number.to_bytes(8, "little")
    return _field(1, 1) + _field(2, _INT64) + _field(8, name.encode()) + _field(9, values)


def _fields(number: int, contents: Iterable[bytes]) -> bytes:
    return b"".join(_field(number, content) for content in contents)


def _field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
