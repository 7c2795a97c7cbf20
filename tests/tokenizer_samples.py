"""Small tokenizers of the kinds that language models use, built here in milliseconds."""

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from runtime.tokenizer import Tokenizer

TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps.",
    "You are a helpful assistant. Hello there! What is the weather today?",
    "system user assistant tool end start im over and over again < | > /s",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 안녕하세요 세계",
]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def added(
    token_id: int, content: str, *, special: bool, normalized: bool = False
) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    return flags | {
        "id": token_id,
        "content": content,
        "special": special,
        "normalized": normalized,
    }


def bos_processor(token: str, token_id: int) -> dict[str, Any]:
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    opening = {"SpecialToken": {"id": token, "type_id": 0}}
    known = {token: {"id": token, "ids": [token_id], "tokens": [token]}}
    pair = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [opening, piece],
        "pair": [opening, piece, pair],
        "special_tokens": known,
    }


@cache
def byte_level_json(*, normalized: bool = False) -> str:
    """Like GPT-2, SmolLM, Qwen and Llama 3; chat markup of three specials and two that are not."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=CHATML,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXT, trainer)
    content = json.loads(inner.to_str())
    size = len(content["model"]["vocab"])
    specials = [added(i, t, special=True, normalized=normalized) for i, t in enumerate(CHATML)]
    ordinary = [added(size, "<think>", special=False), added(size + 1, "<|fim|>", special=False)]
    content["added_tokens"] = specials + ordinary
    return json.dumps(content)


@cache
def llama_json(*, legacy: bool = False) -> str:
    """Like Llama 2: byte fallback and a word mark; `legacy` marks by normalizer, else Metaspace."""
    trained = Inner(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    trained.train_from_iterator(TEXT[:3], trainer)
    model = json.loads(trained.to_str())["model"]
    specials = ["<unk>", "<s>", "</s>"]
    words = sorted(model["vocab"], key=model["vocab"].get)
    tokens = specials + [f"<0x{b:02X}>" for b in range(256)] + words
    model["vocab"] = {token: i for i, token in enumerate(tokens)}
    model |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    inner = Inner.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    if legacy:
        marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        inner.normalizer = normalizers.Sequence(marks)
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    content = json.loads(inner.to_str())
    content["added_tokens"] = [added(i, t, special=True) for i, t in enumerate(specials)]
    content["post_processor"] = bos_processor("<s>", 1)
    return json.dumps(content)


@cache
def wordpiece_json() -> str:
    inner = Inner(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=False)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=250, special_tokens=specials, show_progress=False
    )
    inner.train_from_iterator(TEXT, trainer)
    return str(inner.to_str())


@cache
def unigram_json() -> str:
    """A score per token, and a control token in the same table, like sentencepiece models."""
    inner = Inner(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator(TEXT, trainer)
    return str(inner.to_str())


KINDS = {
    "byte-level": byte_level_json(),
    "gpt-2": byte_level_json(normalized=True),
    "llama": llama_json(),
    "llama-legacy": llama_json(legacy=True),
    "wordpiece": wordpiece_json(),
    "unigram": unigram_json(),
}


@cache
def make_tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(Inner.from_str(KINDS[kind]))


@cache
def make_inner(kind: str) -> Inner:
    return Inner.from_str(KINDS[kind])
