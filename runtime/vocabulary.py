"""What a `tokenizer.json` says, apart from how it is written: do two models speak one language?

In: the file's path or bytes. Out: a content hash, and the first difference between two files in
plain words. The language is the id → token map (added tokens included), the merges or scores,
and the normalizer, pre-tokenizer and decoder. Formatting, truncation, padding, the post-processor
(which BOS a prompt gets) and the flags of added tokens are not part of it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BundleError

_TEXT_RULES = ("normalizer", "pre_tokenizer", "decoder")
_SHORT = 60  # characters of a rule or token shown in a sentence


@dataclass(frozen=True)
class Vocabulary:
    """The content of one tokenizer: its tokens by id, and the rules that cut text into them."""

    tokens: Mapping[int, str]
    pieces: Sequence[object]  # merges as pairs, or the score of each token, in rank order
    rules: Mapping[str, object]  # plain JSON, without what is not used


@dataclass(frozen=True)
class Comparison:
    """How two vocabularies relate; they speak one language when `first_difference` is `None`.

    Tokens with ids beyond the other's last id are counted, not held against either: a checkpoint
    may add tokens of its own at the end.
    """

    differing_token: str | None  # an id that means two things
    differing_rule: str | None  # ids mean the same, but text is cut or joined differently
    only_in_first: int
    only_in_second: int

    @property
    def first_difference(self) -> str | None:
        """The differing token, else the differing rule, in plain words."""
        return self.differing_token or self.differing_rule


def read_vocabulary(source: Path | str | bytes) -> Vocabulary:
    """Read a `tokenizer.json` from a path or from its bytes.

    Raises `BundleError` when it cannot be read or is not the JSON of a tokenizer.
    """
    name = "the tokenizer" if isinstance(source, bytes) else str(source)
    try:
        raw = source if isinstance(source, bytes) else Path(source).read_bytes()
        return _parse(json.loads(raw))
    except OSError as error:
        raise BundleError(f"{name} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{name} is not a tokenizer.json: {error!r}") from error


def tokenizer_fingerprint(source: Path | str | bytes) -> str:
    """SHA-256 (64 hex digits) of what a `tokenizer.json` means; equal for equal languages."""
    vocabulary = read_vocabulary(source)
    content = (sorted(vocabulary.tokens.items()), vocabulary.pieces, vocabulary.rules)
    return hashlib.sha256(_canonical(content).encode("utf-8", "surrogatepass")).hexdigest()


def first_difference(a: Path | str | bytes, b: Path | str | bytes) -> str | None:
    """Say where two tokenizers first differ, or `None` when they speak one language."""
    return compare_vocabularies(read_vocabulary(a), read_vocabulary(b)).first_difference


def compare_vocabularies(a: Vocabulary, b: Vocabulary) -> Comparison:
    """Compare token by token up to the smaller last id, then the merges, then the rules."""
    end = 1 + min(max(a.tokens, default=-1), max(b.tokens, default=-1))
    return Comparison(
        differing_token=_differing_token(a, b, end),
        differing_rule=_differing_piece(a, b) or _differing_rule(a, b),
        only_in_first=sum(token_id >= end for token_id in a.tokens),
        only_in_second=sum(token_id >= end for token_id in b.tokens),
    )


def _parse(content: Mapping[str, Any]) -> Vocabulary:
    model = dict(content["model"])
    vocab = model.pop("vocab")
    pieces: Sequence[object]
    if isinstance(vocab, Mapping):
        tokens = {int(token_id): str(token) for token, token_id in vocab.items()}
        pieces = [_merge_pair(merge) for merge in model.pop("merges", [])]
    else:  # unigram: [token, score] by id
        tokens = {token_id: str(token) for token_id, (token, _) in enumerate(vocab)}
        pieces = [float(score) for _, score in vocab]
    tokens |= {int(added["id"]): str(added["content"]) for added in content.get("added_tokens", [])}
    rules: dict[str, object] = {name: _without_nulls(content.get(name)) for name in _TEXT_RULES}
    return Vocabulary(tokens, pieces, rules | {"model": _used_settings(model)})


def _used_settings(model: Mapping[str, Any]) -> dict[str, object]:
    # Writers of different age leave a setting out, or write null, "" or false for "not used".
    present: dict[str, object] = _without_nulls(model)
    return {name: v for name, v in present.items() if v is not False and v != ""}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _merge_pair(merge: str | Sequence[str]) -> list[str]:
    # "a b" was the form before tokens could hold spaces.
    return merge.split(" ", 1) if isinstance(merge, str) else list(merge)


def _differing_token(a: Vocabulary, b: Vocabulary, end: int) -> str | None:
    for token_id in sorted(a.tokens.keys() | b.tokens.keys()):
        first, second = a.tokens.get(token_id), b.tokens.get(token_id)
        if token_id < end and first != second:
            return _sentence(f"id {token_id}", first, second)
    return None


def _differing_piece(a: Vocabulary, b: Vocabulary) -> str | None:
    # Scores beyond the other's end belong to the extra tokens; extra merges change the language.
    for rank, (first, second) in enumerate(zip(a.pieces, b.pieces, strict=False)):
        if first != second:
            return _sentence(f"merge or score {rank}", first, second)
    counts = [len(v.pieces) for v in (a, b)]
    if isinstance(next(iter(a.pieces), None), float) or counts[0] == counts[1]:
        return None
    return _sentence("the number of merges", *counts)


def _differing_rule(a: Vocabulary, b: Vocabulary) -> str | None:
    for name in (*_TEXT_RULES, "model"):
        if found := _differing_place(name, a.rules.get(name), b.rules.get(name)):
            return _sentence(*found)
    return None


def _differing_place(place: str, first: Any, second: Any) -> tuple[str, object, object] | None:
    """Walk two JSON values to the innermost place where they first differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        keys = sorted(first.keys() | second.keys())
        inner = [(f"{place}.{key}", first.get(key), second.get(key)) for key in keys]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        inner = [(f"{place}[{i}]", *both) for i, both in enumerate(zip(first, second, strict=True))]
    else:
        same = _canonical(first) == _canonical(second)
        return None if same else (place, first, second)
    return next((found for step in inner if (found := _differing_place(*step))), None)


def _sentence(place: str, first: object, second: object) -> str:
    return f"{place} is {_shown(first)} in the first, {_shown(second)} in the second"


def _shown(value: object) -> str:
    text = "absent" if value is None else _canonical(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
