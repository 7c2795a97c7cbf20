"""Read a decoder that another exporter wrote as ONNX, and tell whether it can be adopted.

In: a checkpoint whose form is `onnx`. Out: `Decoder`: the graph's files, caches, widths and
storage, all read from the graph; the weights are not loaded. Names are those that optimum,
onnxruntime-genai's builder and transformers.js agree on: `past_key_values.N.key`, `present.N.key`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx_ir as ir

from runtime.manifest import CacheLayout

from .checkpoint import GENAI_CONFIG, Checkpoint
from .errors import CheckpointError, PlanError, UnsupportedModelError, first_line
from .plan import ModelPlan

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_TOLD = {"input_ids", "attention_mask", "position_ids"}
_ATTENTION = "GroupQueryAttention"
_PAST_PLACES = {"key": 3, "value": 4}  # inputs of that op; the presents are outputs 1 and 2
_TYPES = {ir.DataType.FLOAT: "float32", ir.DataType.FLOAT16: "float16"}
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_UNBOUNDED_CONTEXT = 4096


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder as its graph and the files around it describe it.

    Attributes:
        files: the graph's own file first, then those of its weights.
        layout: its caches.
        logits: the width of its logits; it can be fed as many ids.
        precision: how its weights are stored, the lowest of `int4`, `int8`, `float16`, `float32`.
        block_size: weights that share a scale, where they are integers.
        parameters: how many weights it has.
        shares: its attention can update caches in place.
        context: the most tokens that its caches may hold.
        architecture: the family, as the files around it call it.
        notes: what is worth telling.
    """

    files: tuple[Path, ...]
    layout: CacheLayout
    logits: int
    precision: str
    block_size: int | None
    parameters: int
    shares: bool
    context: int
    architecture: str
    notes: tuple[str, ...] = ()


def read_decoder(checkpoint: Checkpoint) -> Decoder:
    """Read the decoder that `checkpoint` holds.

    Raises:
        CheckpointError: a file is missing or damaged.
        UnsupportedModelError: it is no decoder that can be adopted; the text says why.
    """
    path = checkpoint.graph
    assert path is not None  # of this form
    try:
        graph = ir.load(path).graph
    except Exception as error:  # the library raises many unrelated types
        raise CheckpointError(f"{path} cannot be read as ONNX ({first_line(error)})") from None
    config, genai = (_read_json(checkpoint.path / n) for n in ("config.json", GENAI_CONFIG))
    layout = _read_layout(graph, path, _known_shape(config, genai))
    context, notes = _find_context(config, genai)
    bits, block_size = _read_blocks(graph)
    return Decoder(
        files=(path, *_weight_files(graph, path)),
        layout=layout,
        logits=_read_width(graph, path, config, genai),
        precision=f"int{bits}" if bits else _float_type(graph),
        block_size=block_size,
        parameters=_count_parameters(graph),
        shares=_shares(graph),
        context=context,
        architecture=str(config.get("model_type") or genai.get("type") or "unknown"),
        notes=tuple(notes),
    )


def _read_layout(graph: ir.Graph, path: Path, known: tuple[int | None, int | None]) -> CacheLayout:
    inputs = {str(value.name): value for value in graph.inputs}
    outputs = {str(value.name) for value in graph.outputs}
    past = {name: value for name, value in inputs.items() if _PAST.fullmatch(name)}
    _check_kind(path, set(inputs), bool(past))
    layers = 1 + max(int(_PAST.fullmatch(name)[1]) for name in past)  # type: ignore[index]
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    needed = {f"past_key_values.{name}" for name in names} | {"input_ids"}
    made = {f"present.{name}" for name in names} | {"logits"}
    for what, odd in (
        ("lacks the input", needed - set(inputs)),
        ("has the input", set(inputs) - needed - _TOLD),
        ("lacks the output", made - outputs),
        ("has the output", outputs - made),
    ):
        if odd:
            raise UnsupportedModelError(
                f"{path} {what} {min(odd)}, unlike a decoder with past_key_values.N.key, "
                "present.N.key, input_ids, attention_mask and position_ids: it cannot be adopted"
            )
    shapes = [_read_shape(past[f"past_key_values.{name}"], path, known) for name in names]
    pairs = list(zip(shapes[::2], shapes[1::2], strict=True))
    for key, value in pairs:
        if key != value:
            raise UnsupportedModelError(
                f"{path} has keys of {key[0]} heads by {key[1]}, but values of {value[0]} by "
                f"{value[1]}: caches of two shapes in one layer cannot be adopted"
            )
    types = {_TYPES.get(value.dtype) if value.dtype else None for value in past.values()}
    dtype = types.pop()
    if types or dtype is None:
        raise UnsupportedModelError(
            f"{path} has caches that are not all float32 or all float16, and cannot be adopted"
        )
    keys = [key for key, _ in pairs]
    return CacheLayout(
        layers=layers,
        kv_heads=max(heads for heads, _ in keys),
        head_dim=max(width for _, width in keys),
        dtype=dtype,
        shapes=tuple(keys) if len(set(keys)) > 1 else (),
    )


def _check_kind(path: Path, inputs: set[str], has_past: bool) -> None:  # noqa: FBT001 - one caller
    reason = None
    if any("encoder" in name for name in inputs):
        reason = "belongs to an encoder-decoder model; forerun runs decoder-only language models"
    elif "use_cache_branch" in inputs:
        reason = (
            "holds two graphs behind the input use_cache_branch: export it again with a version of "
            "optimum that writes one (task text-generation-with-past)"
        )
    elif "inputs_embeds" in inputs:
        reason = "takes embeddings (inputs_embeds) in place of input_ids"
    elif not has_past:
        reason = (
            "takes no cache (past_key_values.N.key): export it with one, such as optimum's task "
            "text-generation-with-past"
        )
    if reason:
        raise UnsupportedModelError(f"{path} {reason}")


def _read_shape(
    value: ir.Value, path: Path, known: tuple[int | None, int | None]
) -> tuple[int, int]:
    """Return `(kv_heads, head_dim)` of a cache `[B, kv_heads, past, head_dim]`."""
    sizes = list(value.shape) if value.shape is not None else []
    if len(sizes) == 4:
        fixed = [
            size if isinstance(size, int) else told
            for size, told in zip(sizes[1::2], known, strict=True)
        ]
        if fixed[0] is not None and fixed[1] is not None:
            return fixed[0], fixed[1]
    spelled = ", ".join(map(str, sizes))
    raise UnsupportedModelError(
        f"{path} has the cache {value.name} of the shape [{spelled}], but one that can be "
        "adopted has [batch, heads, past, width] with fixed heads and width"
    )


def _known_shape(
    config: Mapping[str, Any], genai: Mapping[str, Any]
) -> tuple[int | None, int | None]:
    """Return `(kv_heads, head_dim)` as the files around a graph say it."""
    decoder = genai.get("decoder")
    told = decoder if isinstance(decoder, Mapping) else config
    found = (told.get("num_key_value_heads"), told.get("head_size", told.get("head_dim")))
    heads, width = (size if isinstance(size, int) else None for size in found)
    return heads, width


def _read_width(
    graph: ir.Graph, path: Path, config: Mapping[str, Any], genai: Mapping[str, Any]
) -> int:
    logits = next(value for value in graph.outputs if value.name == "logits")
    sizes = list(logits.shape) if logits.shape is not None else [None]
    width = sizes[-1] if isinstance(sizes[-1], int) else None
    width = width or config.get("vocab_size") or genai.get("vocab_size")
    if not isinstance(width, int):
        raise UnsupportedModelError(
            f"{path} does not say how wide its logits are, and no vocab_size in a config.json "
            "beside it does"
        )
    return width


def _shares(graph: ir.Graph) -> bool:
    """Whether every cache is read and written by an op that does so in place."""
    outputs = set(graph.outputs)
    for value in graph.inputs:
        if found := _PAST.fullmatch(str(value.name)):
            place = _PAST_PLACES[found[2]]
            for node, index in value.uses():
                if (node.op_type, index) != (_ATTENTION, place):
                    return False
                if node.outputs[place - 2] not in outputs:
                    return False
    return True


def _read_blocks(graph: ir.Graph) -> tuple[int | None, int | None]:
    """Return the fewest bits and the block size of weights that are stored as integers."""
    nodes = [node for node in graph.all_nodes() if node.op_type == "MatMulNBits"]
    found = [(_whole(node, "bits") or 4, _whole(node, "block_size")) for node in nodes]
    bits, block_size = min(found, default=(None, None), key=lambda pair: pair[0])
    if bits is None and any(n.op_type == "MatMulInteger" for n in graph.all_nodes()):
        bits = 8
    return (bits if bits in (None, 4) else 8), block_size


def _whole(node: ir.Node, name: str) -> int | None:
    attribute = node.attributes.get(name)
    return None if attribute is None else int(attribute.as_int())


def _float_type(graph: ir.Graph) -> str:
    held = [value.dtype for value in graph.initializers.values() if value.dtype in _TYPES]
    return "float16" if held.count(ir.DataType.FLOAT16) * 2 > len(held) else "float32"


def _count_parameters(graph: ir.Graph) -> int:
    total = 0
    packed: set[str | None] = set()
    for node in graph.all_nodes():
        if node.op_type == "MatMulNBits":
            total += (_whole(node, "K") or 0) * (_whole(node, "N") or 0)
            packed |= {value.name for value in node.inputs[1:] if value is not None}
    for name, value in graph.initializers.items():
        if name not in packed and value.const_value is not None:
            total += int(value.const_value.size)
    return max(total, 1)


def _weight_files(graph: ir.Graph, path: Path) -> list[Path]:
    tensors = (value.const_value for value in graph.initializers.values())
    names = sorted({str(t.location) for t in tensors if isinstance(t, ir.ExternalTensor)})
    for name in names:
        if PurePosixPath(name).name != name:
            raise UnsupportedModelError(
                f"{path} keeps weights in {name}; they must lie beside the graph to be adopted"
            )
        if not (path.parent / name).is_file():
            raise CheckpointError(f"{path} needs its weights {name} beside it, which is missing")
    return [path.parent / name for name in names]


def _find_context(config: Mapping[str, Any], genai: Mapping[str, Any]) -> tuple[int, Sequence[str]]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    shortest = [genai.get("context_length"), *_original_lengths(config, rope)]
    found = [n for n in (*shortest, _first_of(config)) if isinstance(n, int) and n > 0]
    if not found:
        note = f"no file beside the graph names a context limit: {_UNBOUNDED_CONTEXT} are assumed"
        return _UNBOUNDED_CONTEXT, [note]
    return min(found), []


def _original_lengths(config: Mapping[str, Any], rope: Mapping[str, Any]) -> Iterator[Any]:
    """Yield where rotary frequencies change with the length of the text."""
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        yield rope.get("original_max_position_embeddings")
        yield config.get("original_max_position_embeddings")


def _first_of(config: Mapping[str, Any]) -> Any:
    return next((config[name] for name in _CONTEXTS if config.get(name)), None)


def _read_json(file: Path) -> Mapping[str, Any]:
    """Return the settings in `file`; those of the model where a generator's are around them."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    model = content.get("model")
    return model if file.name == GENAI_CONFIG and isinstance(model, dict) else content


def count_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the graph's files."""
    return sum(file.stat().st_size for file in read_decoder(checkpoint).files)


def check_wishes(models: Sequence[ModelPlan], checkpoints: Sequence[Checkpoint]) -> None:
    """Check that no option asks for what a graph that stays as it is cannot be given.

    An option stands if there is a model that it can be kept for.
    Raises PlanError that names the option.
    """
    pairs = list(zip(models, checkpoints, strict=True))
    made = {wish for model, found in pairs if found.form != "onnx" for wish in model.wishes}
    for model, found in pairs:
        vain = sorted(set(model.wishes) - made)
        if found.form == "onnx" and vain:
            raise PlanError(
                f"{vain[0]} does not go with {found.reference}, whose ONNX graph is adopted as it "
                "is: leave it out"
            )
