"""A checkpoint's language: its tokenizer, chat template and the ids that end a text.

In: a checked checkpoint, or a bundle. Out: `Language`; its `tokenizer_json` is the bundle's file.
End-of-text ids are the union of all sources (tokenizer, config, generation config, GGUF, the chat
template's own end of turn): one source replacing another is how a model runs on past its answer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from runtime.bundle import Bundle
from runtime.vocabulary import tokenizer_fingerprint

from .checkpoint import GENAI_CONFIG, Checkpoint
from .errors import CheckpointError, first_line
from .gguf_file import read_gguf
from .quiet import quiet_loader

# How vocabularies of these kinds (`tokenizer.ggml.pre`) cut text, where transformers does not say:
# every digit by itself, then as GPT-2 does. Source: llama.cpp, `llm_tokenizer_bpe`.
_DIGIT_BY_DIGIT = {
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
}
_AS_GPT2 = {"default", "gpt-2", "phi-2", "olmo", "jais", "mpt"}
_END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endofturn|>", "<|end_of_turn|>",
    "<|return|>", "<turn|>",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Language:
    """What two models must share to be a pair, and what the runtime needs to speak it.

    `vocabulary` is the highest token id + 1.
    """

    tokenizer_json: bytes
    fingerprint: str
    vocabulary: int
    end_ids: tuple[int, ...]
    bos_token: str | None
    eos_token: str | None
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    chat_template: str | None
    is_rebuilt: bool = False  # from a GGUF file, which does not hold the rules that cut text
    notes: tuple[str, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without the beginning-of-text token."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.tokenizer_json.decode("utf-8"))


def read_language(checkpoint: Checkpoint) -> Language:
    """Read the tokenizer and everything around it.

    Raises CheckpointError: there is no tokenizer, or an end-of-text id is outside its vocabulary.
    """
    declared = {name: _as_list(value, name) for name, value in _end_sources(checkpoint)}
    tokenizer = _load_tokenizer(checkpoint)
    inner = tokenizer.backend_tokenizer
    notes: list[str] = []
    if checkpoint.form == "gguf":
        notes += _mend_pre_tokenizer(inner, checkpoint)
    inner.no_truncation()
    inner.no_padding()
    content = _raw_tokenizer(checkpoint) or inner.to_str().encode("utf-8")
    vocab = inner.get_vocab(with_added_tokens=True)
    template = _chat_template(tokenizer)
    declared["tokenizer"] = _as_list(tokenizer.eos_token_id, "tokenizer")
    end_ids, more = _unite(checkpoint, declared, vocab, template)
    return Language(
        tokenizer_json=content,
        fingerprint=tokenizer_fingerprint(content),
        vocabulary=1 + max(vocab.values()),
        end_ids=end_ids,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        bos_id=tokenizer.bos_token_id,
        eos_id=tokenizer.eos_token_id,
        adds_bos=tokenizer.bos_token_id is not None
        and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id],
        chat_template=template,
        is_rebuilt=checkpoint.form == "gguf",
        notes=tuple(notes + more),
    )


def language_of(bundle: Bundle) -> Language:
    """Return the language that a bundle speaks, without its target's checkpoint."""
    words = bundle.manifest.tokenizer
    return Language(
        tokenizer_json=bundle.tokenizer.read_bytes(),
        fingerprint=words.fingerprint,
        vocabulary=words.vocabulary,
        end_ids=bundle.manifest.end_ids,
        bos_token=words.bos_token,
        eos_token=words.eos_token,
        bos_id=words.bos_id,
        eos_id=None,
        adds_bos=words.adds_bos,
        chat_template=bundle.chat_template(),
        is_rebuilt=words.is_rebuilt,
    )


def _load_tokenizer(checkpoint: Checkpoint) -> Any:
    folder, arguments = checkpoint.for_transformers()
    try:
        with quiet_loader():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **arguments)
    except Exception as error:  # the library raises many unrelated types
        raise CheckpointError(
            f"{checkpoint.path} has no usable tokenizer ({first_line(error)}): "
            "tokenizer.json must lie beside the weights"
        ) from None
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise CheckpointError(
            f"{checkpoint.path} has a tokenizer that only Python can run "
            f"({type(tokenizer).__name__}); the bundle needs one that tokenizer.json can hold"
        )
    return tokenizer


def _raw_tokenizer(checkpoint: Checkpoint) -> bytes | None:
    """Return the checkpoint's own tokenizer.json, which says more than what is rebuilt from it."""
    file = checkpoint.path / "tokenizer.json"
    return file.read_bytes() if checkpoint.form != "gguf" and file.is_file() else None


def _mend_pre_tokenizer(inner: tokenizers.Tokenizer, checkpoint: Checkpoint) -> list[str]:
    metadata = read_gguf(checkpoint.path).metadata
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return []
    kind = metadata.get("tokenizer.ggml.pre", "default")
    is_plain = isinstance(inner.pre_tokenizer, pre_tokenizers.ByteLevel)
    if kind in _DIGIT_BY_DIGIT and is_plain:
        digits = pre_tokenizers.Digits(individual_digits=True)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, inner.pre_tokenizer])
    elif kind not in _AS_GPT2 and is_plain:
        return [f"the GGUF cuts text as {kind!r}, which is not known here: it is cut as by GPT-2"]
    return []


def _chat_template(tokenizer: Any) -> str | None:
    template = tokenizer.chat_template
    if isinstance(template, Mapping):  # several named ones
        template = template.get("default") or next(iter(template.values()), None)
    return template or None


def _unite(
    checkpoint: Checkpoint,
    declared: Mapping[str, Sequence[int]],
    vocab: Mapping[str, int],
    template: str | None,
) -> tuple[tuple[int, ...], list[str]]:
    """Return the union of all end-of-text ids, and what was added to it, in words."""
    found: set[int] = set()
    top = max(vocab.values())
    for name, tokens in declared.items():
        for token in tokens:
            if not 0 <= token <= top:
                raise CheckpointError(
                    f"{checkpoint.path}: end-of-text id {token} in the {name} lies outside the "
                    f"vocabulary (0 to {top}): correct eos_token_id there"
                )
            found.add(token)
    turn = [t for t in _END_OF_TURN if t in vocab and template is not None and t in template]
    added = {vocab[t] for t in turn} - found
    notes = [f"the chat template ends turns by {', '.join(turn)}: added to the end-of-text ids"]
    return tuple(sorted(found | added)), notes if added else []


def _end_sources(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    if checkpoint.form == "gguf":
        metadata = read_gguf(checkpoint.path).metadata
        for name in ("eos", "eot", "eom"):
            yield f"GGUF ({name})", metadata.get(f"tokenizer.ggml.{name}_token_id")
        return
    genai = _read_json(checkpoint.path / GENAI_CONFIG).get("model")
    if isinstance(genai, Mapping):
        yield GENAI_CONFIG, genai.get("eos_token_id")
    for name in ("config.json", "generation_config.json"):
        content = _read_json(checkpoint.path / name)
        yield name, content.get("eos_token_id")
        nested = content.get("text_config")
        if isinstance(nested, Mapping):
            yield f"{name} (text_config)", nested.get("eos_token_id")


def _as_list(value: Any, source: str) -> Sequence[int]:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if any(not isinstance(item, int) or isinstance(item, bool) for item in values):
        raise CheckpointError(
            f"eos_token_id in the {source} must be an id or a list, not {value!r}"
        )
    return values


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON ({error})") from None
    return content if isinstance(content, Mapping) else {}
