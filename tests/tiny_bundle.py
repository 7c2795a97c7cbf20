"""A tiny bundle made by hand: one attention layer over a vocabulary of a few letters.

Its graphs have the product's own signature, so that sessions, caches and rollback are the real ones
while a whole law can still be enumerated. Needs onnx and tokenizers, not torch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper

from runtime.manifest import (
    MANIFEST_NAME,
    CacheLayout,
    FileEntry,
    Manifest,
    ModelEntry,
    Tokenizer,
    dump_manifest,
)

LETTERS = "abcdefghijklmnop"
END = 3  # the token "d" ends a text


def make_graph(
    path: Path,
    *,
    seed: int,
    vocabulary: int,
    context: int,
    sharpness: float,
    distance: float,
    padding: int = 0,
    kept: Sequence[int] | None = None,
    flavour: str = "fused",
) -> None:
    """Write a one-layer decoder with random weights, `distance` away from those of its seed.

    `padding` more columns of logits stand for no token and are the largest of all; `kept` lists the
    only tokens that have a column.
    """
    heads, kv_heads, dim = 2, 1, 16  # the operator rotates multiples of 16
    width = heads * dim
    rng, other = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    shapes = {
        "embedding": (vocabulary, width),
        "to_query": (width, width),
        "to_key": (width, kv_heads * dim),
        "to_value": (width, kv_heads * dim),
        "to_output": (width, width),
        "head": (width, vocabulary),
    }
    weights = {}
    for name, shape in shapes.items():
        own = rng.standard_normal(shape) + distance * other.standard_normal(shape)
        scale = 1.0 if name == "embedding" else width**-0.5
        weights[name] = (own * scale).astype(np.float32)
    weights["head"] *= np.float32(sharpness)
    if kept is not None:
        weights["head"] = weights["head"][:, list(kept)]
    columns = weights["head"].shape[1]
    weights["head"] = np.pad(weights["head"], ((0, 0), (0, padding)))
    weights["shift"] = np.repeat(np.float32([0, 1e4]), [columns, padding])
    angles = np.outer(np.arange(context), 0.5 ** np.arange(dim // 2)).astype(np.float32)
    weights |= {"cos": np.cos(angles), "sin": np.sin(angles)}

    node, value = helper.make_node, helper.make_tensor_value_info
    if flavour == "fused":
        attention, places = _fused_attention(heads, kv_heads)
    else:
        attention, places, more = _portable_attention(
            heads, kv_heads, dim, has_mask=flavour == "trees"
        )
        weights |= more
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["hidden"]),
        node("MatMul", ["hidden", "to_query"], ["query"]),
        node("MatMul", ["hidden", "to_key"], ["key"]),
        node("MatMul", ["hidden", "to_value"], ["value"]),
        *attention,
        node("MatMul", ["mixed", "to_output"], ["added"]),
        node("Add", ["hidden", "added"], ["last"]),
        node("Reshape", ["last", "flat"], ["all"]),
        node("Gather", ["all", "logit_rows"], ["rows"], axis=1),
        node("MatMul", ["rows", "head"], ["scores"]),
        node("Add", ["scores", "shift"], ["logits"]),
    ]
    batch = 1 if flavour == "fused" else "batch"
    cache = [batch, kv_heads, "capacity", dim]
    weights["flat"] = np.array([1, -1, width])
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            value("input_ids", TensorProto.INT64, [batch, "sequence"]),
            *(value(*place) for place in places),
            value("logit_rows", TensorProto.INT64, ["rows"]),
            value("past.0.key", TensorProto.FLOAT, cache),
            value("past.0.value", TensorProto.FLOAT, cache),
        ],
        [
            value("logits", TensorProto.FLOAT, [1, "rows", columns + padding]),
            value("present.0.key", TensorProto.FLOAT, cache),
            value("present.0.value", TensorProto.FLOAT, cache),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [
        helper.make_opsetid("", 21 if flavour == "fused" else 24),
        helper.make_opsetid("com.microsoft", 1),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


Place = tuple[str, int, list[int | str]]


def _fused_attention(heads: int, kv_heads: int) -> tuple[list[onnx.NodeProto], list[Place]]:
    op = helper.make_node(
        "GroupQueryAttention",
        [
            *("query", "key", "value", "past.0.key", "past.0.value"),
            *("seqlens_k", "total_sequence_length", "cos", "sin"),
        ],
        ["mixed", "present.0.key", "present.0.value"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=1,
    )
    lengths = ("seqlens_k", "total_sequence_length")
    return [op], [(name, TensorProto.INT32, [1]) for name in lengths]


def _portable_attention(
    heads: int, kv_heads: int, dim: int, *, has_mask: bool
) -> tuple[list[onnx.NodeProto], list[Place], dict[str, np.ndarray]]:
    """Standard ops over a cache; constants of theirs come third."""
    node = helper.make_node
    nodes, constants = [], {"zero": np.array(0), "one": np.array(1), "second": np.array([1])}
    for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
        constants[f"{name}.split"] = np.array([0, 0, count, dim])
        nodes += [
            node("Reshape", [name, f"{name}.split"], [f"{name}.rows"]),
            node("Transpose", [f"{name}.rows"], [f"{name}.heads"], perm=[0, 2, 1, 3]),
        ]
    for name in ("query", "key"):
        inputs = [f"{name}.heads", "cos", "sin", "position_ids"]
        nodes.append(node("RotaryEmbedding", inputs, [f"{name}.turned"]))
    for name, new in (("key", "key.turned"), ("value", "value.heads")):
        inputs = [f"past.0.{name}", new, "write_indices"]
        nodes.append(node("TensorScatter", inputs, [f"present.0.{name}"], axis=2))
    places: list[Place] = [
        ("position_ids", TensorProto.INT64, ["batch", "sequence"]),
        ("write_indices", TensorProto.INT64, ["batch"]),
    ]
    if has_mask:
        places.append(("attention_mask", TensorProto.BOOL, ["batch", "sequence", "capacity"]))
        seen = "attention_mask"
    else:
        constants["third"] = np.array([2])
        nodes += [
            node("Shape", ["past.0.key"], ["size"], start=2, end=3),
            node("Squeeze", ["size"], ["capacity"]),
            node("Range", ["zero", "capacity", "one"], ["columns"]),
            node("Unsqueeze", ["position_ids", "third"], ["positions"]),
            node("LessOrEqual", ["columns", "positions"], ["seen"]),
        ]
        seen = "seen"
    constants["merged"] = np.array([0, 0, heads * dim])
    attended = ["query.turned", "present.0.key", "present.0.value", "mask"]
    nodes += [
        node("Unsqueeze", [seen, "second"], ["mask"]),
        node("Attention", attended, ["attended"]),
        node("Transpose", ["attended"], ["attended.rows"], perm=[0, 2, 1, 3]),
        node("Reshape", ["attended.rows", "merged"], ["mixed"]),
    ]
    return nodes, places, constants


def make_tokenizer(path: Path, *, vocabulary: int) -> None:
    """Write a tokenizer whose tokens are single letters."""
    letters = {letter: i for i, letter in enumerate(LETTERS[:vocabulary])}
    model = tokenizers.models.WordLevel(letters, unk_token=LETTERS[0])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(path))


def make_bundle(
    folder: Path,
    *,
    seed: int = 0,
    drafts: int = 1,
    vocabulary: int = 8,
    context: int = 64,
    sharpness: float = 1.0,
    end_ids: tuple[int, ...] = (END,),
    distance: float = 0.3,
    draft_context: int | None = None,
    padding: tuple[int, ...] = (0,),
    kept: Sequence[int] | None = None,
    flavour: str = "fused",
) -> Path:
    """Write a whole bundle and return its folder. Drafts resemble the target, each less.

    Args:
        folder: where to write.
        seed: of the weights.
        drafts: number of draft models.
        vocabulary: number of tokens.
        context: of the target, and of the drafts unless `draft_context` says otherwise.
        sharpness: factor of the logits.
        end_ids: tokens that end a text.
        distance: how far each draft is from the model above it; 0 makes them equal.
        draft_context: of the drafts.
        padding: columns of logits beyond the vocabulary, by model; the last holds for the rest.
        kept: the tokens to which the head of the draft nearest to the target is trimmed.
        flavour: of all graphs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder / "tokenizer.json", vocabulary=vocabulary)
    names = ["target", *[f"draft{i}" if i else "draft" for i in range(drafts)]]
    models = []
    for i, name in enumerate(names):
        own_context = (draft_context or context) if i else context
        own_padding = padding[min(i, len(padding) - 1)]
        own_kept = kept if i == 1 else None
        make_graph(
            folder / name / "model.onnx",
            seed=seed,
            distance=distance * i,
            vocabulary=vocabulary,
            context=own_context,
            sharpness=sharpness,
            padding=own_padding,
            kept=own_kept,
            flavour=flavour,
        )
        entry = make_entry(
            name,
            vocabulary=vocabulary,
            context=own_context,
            padding=own_padding,
            flavour=flavour,
        )
        if own_kept is not None:
            token_ids = f"{name}/token_ids.npy"
            np.save(folder / token_ids, np.array(own_kept, np.int32))
            entry = replace(entry, logits=len(own_kept), token_ids=token_ids)
        models.append(entry)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = Manifest(
        producer="tests",
        tokenizer=Tokenizer(file="tokenizer.json", fingerprint="0" * 64, vocabulary=vocabulary),
        models=tuple(models),
        files=tuple(_file_entry(folder, path) for path in files if path.name != MANIFEST_NAME),
        end_ids=end_ids,
    )
    (folder / MANIFEST_NAME).write_text(dump_manifest(manifest), encoding="utf-8")
    return folder


def make_entry(
    name: str, *, vocabulary: int, context: int, padding: int = 0, flavour: str = "fused"
) -> ModelEntry:
    """Return what the manifest says of a graph by `make_graph`."""
    return ModelEntry(
        name=name,
        role="target" if name == "target" else "draft",
        graph=f"{name}/model.onnx",
        flavour=flavour,
        precision="float32",
        architecture="tiny",
        logits=vocabulary + padding,
        embeddings=vocabulary,
        context=context,
        cache=CacheLayout(layers=1, kv_heads=1, head_dim=16, dtype="float32"),
        parameters=1,
        source="tests",
    )


def _file_entry(folder: Path, path: Path) -> FileEntry:
    data = path.read_bytes()
    return FileEntry(
        path=path.relative_to(folder).as_posix(),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
