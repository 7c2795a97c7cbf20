"""Check a checkpoint's files before anything is loaded or written.

In: a `Checkpoint`. Out: nothing, or an error that names the file, the tensor or the setting that
is wrong and what to do about it. A file that is missing or cut short is found here, not as random
weights in a finished bundle.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint
from .decoder import read_decoder
from .errors import CheckpointError, UnsupportedModelError
from .gguf_file import read_gguf

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# llama.cpp keeps rotary factors that vary with the position's wave length in these tensors, which
# transformers does not read: the model would be silently wrong.
_ROTARY_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Check files, form and family.

    Raises:
        CheckpointError: something is missing, cut short or not a checkpoint.
        UnsupportedModelError: it is sound, but nothing that can be exported.
    """
    if checkpoint.form == "onnx":
        read_decoder(checkpoint)
    elif checkpoint.form == "gguf":
        _check_gguf(checkpoint.path)
    else:
        config = _read_config(checkpoint.path)
        _check_family(checkpoint.path, config)
        _check_weights(checkpoint.path, config)


def count_parameters(checkpoint: Checkpoint) -> int:
    """Return the number of weights that the files hold (buffers included), from their heads."""
    if checkpoint.form == "onnx":
        return read_decoder(checkpoint).parameters
    if checkpoint.form == "gguf":
        return read_gguf(checkpoint.path).parameters
    total = 0
    for file in _weight_files(checkpoint.path):
        for entry in _read_safetensors_head(file).values():
            size = 1
            for length in entry["shape"]:
                size *= length
            total += size
    return total


def _check_gguf(path: Path) -> None:
    head = read_gguf(path)
    names = {tensor.name for tensor in head.tensors}
    if head.metadata.get("general.type") == "adapter":
        raise UnsupportedModelError(f"{path} holds an adapter, not a model: merge it first")
    if "token_embd.weight" not in names:
        raise CheckpointError(f"{path} lacks the tensor token_embd.weight; fetch it again")
    for name in _ROTARY_FACTORS:
        if name in names:
            raise UnsupportedModelError(
                f"{path} scales its rotary embedding by a tensor ({name}) that cannot be read from "
                "a GGUF file: export the original safetensors checkpoint instead"
            )


def _read_config(folder: Path) -> Mapping[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json{_what_it_is_instead(folder)}")
    config = _parse_json(file)
    if (folder / "adapter_config.json").is_file() and not list(_candidates(folder)):
        raise UnsupportedModelError(_adapter_sentence(folder))
    return config


def _what_it_is_instead(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        raise UnsupportedModelError(_adapter_sentence(folder))
    gguf_files = sorted(folder.glob("*.gguf"))
    if gguf_files:
        return f", but GGUF files: name the file itself, such as {gguf_files[0]}"
    if (folder / "manifest.json").is_file():
        return ", but a manifest.json: it is a finished bundle, not a checkpoint"
    return ": a checkpoint is a folder with config.json, tokenizer.json and *.safetensors"


def _adapter_sentence(folder: Path) -> str:
    return (
        f"{folder} holds an adapter (adapter_config.json) without its base model: merge the two "
        "first (peft: merge_and_unload, then save_pretrained)"
    )


def _check_family(folder: Path, config: Mapping[str, Any]) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    family = config.get("model_type")
    if not isinstance(family, str):
        raise CheckpointError(f"{folder / 'config.json'} names no model_type")
    if isinstance(quantization := config.get("quantization_config"), Mapping):
        method = quantization.get("quant_method", "unknown method")
        raise UnsupportedModelError(
            f"{folder} is already quantised ({method}): export the original checkpoint, which is "
            "quantised here (--precision int4)"
        )
    if config.get("is_encoder_decoder"):
        raise UnsupportedModelError(
            f"{folder} is an encoder-decoder model ({family}); forerun runs decoder-only language "
            "models"
        )
    if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        reason = "needs code of its own, which is never run" if "auto_map" in config else "unknown"
        raise UnsupportedModelError(
            f"{folder} is of the model type {family!r}, which transformers does not know as a "
            f"causal language model ({reason})"
        )
    named = [str(name) for name in config.get("architectures") or []]
    if named and not _causal_classes().intersection(named):
        raise UnsupportedModelError(
            f"{folder} holds a {', '.join(named)}, which does not predict the next token; forerun "
            "runs causal language models (…ForCausalLM)"
        )


def _causal_classes() -> set[str]:
    """Return the names of all classes that transformers loads as causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return {name for names in values for name in ([names] if isinstance(names, str) else names)}


def _check_weights(folder: Path, config: Mapping[str, Any]) -> None:
    files = _weight_files(folder)
    held: set[str] = set()
    for file in files:
        held |= _read_safetensors_head(file).keys()
    if (folder / _INDEX).is_file():
        for name, shard in sorted(_weight_map(folder).items()):
            if name not in held:
                raise CheckpointError(
                    f"{folder / shard} lacks the tensor {name} that {_INDEX} promises there; "
                    "fetch the checkpoint again"
                )
    if config.get("tie_word_embeddings") is False and not any(
        "head" in n or "out" in n for n in held
    ):
        raise CheckpointError(
            f"{folder} says tie_word_embeddings = false, but no shard holds an output head "
            "(lm_head.weight): the checkpoint is incomplete, or the setting should be true"
        )


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        shards = sorted(set(_weight_map(folder).values()))
        for shard in shards:
            if not (folder / shard).is_file():
                raise CheckpointError(
                    f"{folder} lacks the shard {shard} that {_INDEX} names; fetch it again"
                )
        return [folder / shard for shard in shards]
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    others = [*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")]
    if others:
        raise UnsupportedModelError(
            f"{folder} has its weights as {sorted(others)[0].name} only; loading that format runs "
            "code from the file: convert it to safetensors (model.save_pretrained(folder))"
        )
    raise CheckpointError(f"{folder} holds no weights: {_SINGLE} or {_INDEX} is missing")


def _candidates(folder: Path) -> list[Path]:
    return [f for f in folder.glob("*.safetensors") if not f.name.startswith("adapter_")]


def _weight_map(folder: Path) -> Mapping[str, str]:
    mapping = _parse_json(folder / _INDEX).get("weight_map")
    if not isinstance(mapping, Mapping) or not mapping:
        raise CheckpointError(f"{folder / _INDEX} has no weight_map; fetch it again")
    return mapping


def _read_safetensors_head(file: Path) -> dict[str, Any]:
    """Read a shard's tensor table and check that the file is as long as it says.

    Source: the safetensors format (8 bytes of length, a JSON table, the data).
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise CheckpointError(
                f"{file} is cut short: its {size} bytes end inside the tensor table"
            )
        try:
            table = json.loads(stream.read(length))
        except ValueError as error:
            raise CheckpointError(
                f"{file} is damaged: its tensor table is no JSON ({error})"
            ) from None
    table.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in table.values()), default=0)
    if size != end:
        raise CheckpointError(
            f"{file} is cut short or damaged: its tensor table needs {end} bytes, but the file has "
            f"{size}; fetch it again"
        )
    return dict(table)


def _parse_json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON ({error})") from None
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{file} must hold a JSON object")
    return content
