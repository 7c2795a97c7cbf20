"""Tiny random checkpoints in Hugging Face form, of any family, with a tokenizer of our own.

Two layers and a vocabulary of 300 ids: written, traced and run in seconds.
"""

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 300  # rows of the embedding; the tokenizer has a few less, as in real checkpoints
SPECIAL = ("<|begin|>", "<|end|>", "<|turn|>")
TEMPLATE = "{% for message in messages %}<|begin|>{{ message.content }}<|turn|>{% endfor %}"

# What a generic small decoder looks like, by whatever name a family's config knows it.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "n_embd": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "word_embed_proj_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@functools.cache
def tiny_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level tokenizer: 256 bytes, a few merges, three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("e", "r"), ("t", "h"), ("i", "n"), ("Ġ", "t"), ("Ġt", "h"), ("o", "n"), ("a", "n")]
    tokens = [*SPECIAL, *alphabet, *(a + b for a, b in pairs if a + b != "Ġth")]
    tokens.append("Ġth")
    made = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def tiny_model(family: str, *, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """Build a tiny random model of a family; `settings` go over the generic sizes."""
    known = AutoConfig.for_model(family).to_dict()
    sizes = {name: size for name, size in _SIZES.items() if name in known or name in settings}
    config = AutoConfig.for_model(family, **(sizes | settings))
    torch.manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # Far from zero, or every law is flat and every error small; norms stay near one.
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.15)
    return model.eval()


def write_checkpoint(folder: Path, model: PreTrainedModel, **save: Any) -> Path:
    """Save `model` with the tiny tokenizer as a checkpoint folder."""
    model.save_pretrained(folder, **save)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE, **settings: Any) -> None:
    """Write the tokenizer's files; `settings` go into tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str(), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "chat_template": template,
    }
    text = json.dumps(config | settings, indent=2)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
