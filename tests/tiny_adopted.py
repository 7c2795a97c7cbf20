"""A tiny decoder as other exporters write it, in two ways: with caches in place, and growing ones.

Both have the same weights, so that they score texts alike. Needs onnx, not torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_models import VOCABULARY, write_tokenizer

HEADS, KV_HEADS, DIM, CONTEXT = 2, 1, 16, 128
Kind = Literal["shared", "growing"]
_PASTS = ("past_key_values.0.key", "past_key_values.0.value")
_node, _value = helper.make_node, helper.make_tensor_value_info


def write_decoder(
    folder: Path,
    kind: Kind,
    *,
    seed: int = 0,
    distance: float = 0.0,
    is_external: bool = False,
    is_blind: bool = False,
) -> Path:
    """Write a decoder with its tokenizer into `folder`; return the graph's path.

    Its weights are `distance` away from those of the seed. A blind one cannot take several tokens
    behind a cache: each of them sees all others.
    """
    write_tokenizer(folder)
    config = {
        "model_type": "llama",
        "max_position_embeddings": CONTEXT,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    path = folder / "model.onnx"
    weights = _make_weights(seed, distance)
    attention, places = _shared() if kind == "shared" else _growing(is_blind=is_blind)
    nodes = [
        _node("Gather", ["embedding", "input_ids"], ["hidden"]),
        _node("MatMul", ["hidden", "to_query"], ["query"]),
        _node("MatMul", ["hidden", "to_key"], ["key"]),
        _node("MatMul", ["hidden", "to_value"], ["value"]),
        *attention,
        _node("MatMul", ["mixed", "to_output"], ["added"]),
        _node("Add", ["hidden", "added"], ["last"]),
        _node("MatMul", ["last", "head"], ["logits"]),
    ]
    sizes = {"past_key_values": "past_sequence", "present": "total_sequence"}
    caches = {
        side: [
            _value(f"{side}.0.{part}", TensorProto.FLOAT, ["batch", KV_HEADS, size, DIM])
            for part in ("key", "value")
        ]
        for side, size in sizes.items()
    }
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            _value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            *(_value(name, TensorProto.INT64, ["batch", size]) for name, size in places.items()),
            *caches["past_key_values"],
        ],
        [
            _value("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY]),
            *caches["present"],
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    settings: dict[str, Any] = (
        {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 64}
        if is_external
        else {}
    )
    onnx.save(model, path, **settings)
    return path


def change_graph(path: Path, **names: str) -> None:
    """Give inputs and outputs of a graph other names."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name.replace(".", "_"), value.name)
    onnx.save(model, path)


def _make_weights(seed: int, distance: float) -> Mapping[str, np.ndarray[Any, Any]]:
    rng, other = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    width = HEADS * DIM
    shapes = {
        "embedding": (VOCABULARY, width),
        "to_query": (width, width),
        "to_key": (width, KV_HEADS * DIM),
        "to_value": (width, KV_HEADS * DIM),
        "to_output": (width, width),
        "head": (width, VOCABULARY),
    }
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for name, shape in shapes.items():
        own = rng.standard_normal(shape) + distance * other.standard_normal(shape)
        weights[name] = (own * (1.0 if name == "embedding" else width**-0.5)).astype(np.float32)
    return weights | {"one": np.array(1), "axis": np.array([1]), "last_axis": np.array([2])}


def _shared() -> tuple[list[onnx.NodeProto], dict[str, str]]:
    """As onnxruntime-genai's builder: the mask says how many tokens there are."""
    attention = _node(
        "GroupQueryAttention",
        [*("query", "key", "value"), *_PASTS, "seqlens_k", "total"],
        ["mixed", "present.0.key", "present.0.value"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
    )
    nodes = [
        _node("ReduceSum", ["attention_mask", "axis"], ["counted"], keepdims=1),
        _node("Sub", ["counted", "one"], ["before"]),
        _node("Cast", ["before"], ["seqlens_k"], to=TensorProto.INT32),
        _node("Shape", ["attention_mask"], ["length"], start=1, end=2),
        _node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        attention,
    ]
    return nodes, {"attention_mask": "total_sequence"}


def _growing(*, is_blind: bool) -> tuple[list[onnx.NodeProto], dict[str, str]]:
    """As optimum: keys and values are put behind the past ones, and positions are told."""
    columns = [
        _node("Shape", ["attention_mask"], ["length"], start=1, end=2),
        _node("Squeeze", ["length"], ["stop"]),
        _node("Sub", ["one", "one"], ["zero"]),
        _node("Range", ["zero", "stop", "one"], ["columns"]),
        _node("Unsqueeze", ["position_ids", "last_axis"], ["rows"]),  # [B, S, 1]
        _node("LessOrEqual", ["columns", "rows"], ["seen"]),  # [B, S, total]
        _node("Or" if is_blind else "And", ["seen", "any"], ["visible"]),
        _node("Unsqueeze", ["visible", "axis"], ["mask"]),
        _node("GreaterOrEqual", ["columns", "zero"], ["any"]),
    ]
    columns.insert(6, columns.pop())
    attention = _node(
        "Attention",
        ["query", "key", "value", "mask", *_PASTS],
        ["mixed", "present.0.key", "present.0.value"],
        q_num_heads=HEADS,
        kv_num_heads=KV_HEADS,
    )
    return [*columns, attention], {"attention_mask": "total_sequence", "position_ids": "sequence"}
