"""A tiny random checkpoint of any model type, on disk as a real one would be.

In: a model type. Out: a folder with config, weights and a byte-level tokenizer, or `ToolError` when
transformers makes no running model of that type. Weights are far from zero, norms, biases and sinks
included: with small ones every law is flat, and a wrong graph would look right.
"""

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel

from export.errors import first_line
from export.quiet import quiet_transformers

from ..errors import ToolError
from .shrink import shrink_config

SPECIAL = ("<|begin|>", "<|end|>")
_MATRIX_SPREAD = 0.15  # times a width of 64: products keep the size of what goes in
_VECTOR_SPREAD = 0.1


def write_specimen(model_type: str, folder: Path) -> None:
    """Write the checkpoint of a tiny random model of `model_type` into `folder`.

    Raises ToolError: no model of the type can be built or run by itself; the text says why.
    """
    with quiet_transformers():
        try:
            model = make_model(model_type)
            with torch.no_grad():
                model(input_ids=torch.arange(3, 8)[None], use_cache=False)
            model.save_pretrained(folder)
        except Exception as error:  # a library's own checks, of any type
            raise ToolError(
                f"transformers makes no running model of the type's own config: {first_line(error)}"
            ) from None
    write_tokenizer(folder)


def make_model(model_type: str) -> PreTrainedModel:
    """Return a tiny random model of the type."""
    torch.manual_seed(0)
    config = shrink_config(model_type)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    kept = {name for name, _ in model.named_buffers()} & set(model.state_dict())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in kept or isinstance(tensor, torch.nn.Parameter):
            _scatter(tensor)
    model.train(mode=False)
    return model


def _scatter(tensor: torch.Tensor) -> None:
    if not tensor.is_floating_point():
        return
    with torch.no_grad():
        if tensor.dim() > 1:
            tensor.normal_(0, _MATRIX_SPREAD)
        else:
            tensor.add_(torch.randn_like(tensor) * _VECTOR_SPREAD)


@functools.cache
def make_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of single bytes and two special tokens."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files into `folder`."""
    (folder / "tokenizer.json").write_text(make_tokenizer().to_str(), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
