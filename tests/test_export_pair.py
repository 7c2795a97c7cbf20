"""Which drafts go with a target: what ids mean decides, never how many there are."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tiny_models import tiny_tokenizer

from export.errors import PairMismatchError
from export.language import Language
from export.pair import check_languages, check_width
from runtime.vocabulary import tokenizer_fingerprint

CONTENT: dict[str, Any] = json.loads(tiny_tokenizer().to_str())
SIZE = tiny_tokenizer().get_vocab_size()


def language(content: dict[str, Any] = CONTENT, **changes: Any) -> Language:
    raw = json.dumps(content).encode("utf-8")
    ids = [*content["model"]["vocab"].values(), *(t["id"] for t in content["added_tokens"])]
    made = Language(
        tokenizer_json=raw,
        fingerprint=tokenizer_fingerprint(raw),
        vocabulary=1 + max(ids),
        end_ids=(1,),
        bos_token="<|begin|>",
        eos_token="<|end|>",
        bos_id=0,
        eos_id=1,
        adds_bos=False,
        chat_template=None,
    )
    return replace(made, **changes)


def changed(**places: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(CONTENT))
    return content | places


def with_added(*tokens: str) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    more = [{"id": SIZE + i, "content": t, **plain} for i, t in enumerate(tokens)]
    return changed(added_tokens=[*CONTENT["added_tokens"], *more])


def swapped(a: str, b: str) -> dict[str, Any]:
    content = changed()
    vocab = content["model"]["vocab"]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    return content


def test_the_same_words_written_otherwise_are_one_language() -> None:
    reordered = changed(truncation=None, padding=None)
    reordered["model"]["vocab"] = dict(reversed(CONTENT["model"]["vocab"].items()))
    check_languages(language(), language(reordered))


def test_two_swapped_tokens_are_refused_with_the_first() -> None:
    vocab = CONTENT["model"]["vocab"]
    first = min(vocab["er"], vocab["th"])
    with pytest.raises(PairMismatchError, match=rf'id {first} is "er" in the first, "th" in the'):
        check_languages(language(), language(swapped("er", "th")))


def test_a_draft_may_know_more_tokens_at_the_end_but_not_fewer() -> None:
    check_languages(language(), language(with_added("<a>", "<b>", "<c>")))
    with pytest.raises(PairMismatchError, match=rf"lacks 3 of the target's tokens, from id {SIZE}"):
        check_languages(language(with_added("<a>", "<b>", "<c>")), language())


def test_another_way_to_cut_text_is_refused_unless_it_was_rebuilt() -> None:
    other = language(changed(normalizer={"type": "Lowercase"}))
    with pytest.raises(PairMismatchError, match="normalizer"):
        check_languages(language(), other)
    check_languages(language(), replace(other, is_rebuilt=True))
    check_languages(language(is_rebuilt=True), other)


def test_other_beginnings_and_ends_are_refused() -> None:
    with pytest.raises(PairMismatchError, match=r"beginning-of-text token is id 0 .* 2 "):
        check_languages(language(), language(bos_id=2))
    check_languages(language(), language(bos_id=None))
    with pytest.raises(PairMismatchError, match=r"ends a text by id 2 .* none of .* \[1\]"):
        check_languages(language(), language(eos_id=2, eos_token="<|turn|>"))
    check_languages(language(end_ids=(1, 2)), language(eos_id=2))


@pytest.mark.parametrize("wide", [SIZE, SIZE + 1, SIZE + 64])
def test_padded_logits_are_legal(wide: int) -> None:
    check_width(language(), name="draft", embeddings=wide, logits=wide, is_draft=True)


def test_a_model_narrower_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(PairMismatchError, match=rf"draft can be fed only {SIZE - 1} ids"):
        check_width(language(), name="draft", embeddings=SIZE - 1, logits=SIZE, is_draft=True)
    with pytest.raises(PairMismatchError, match=r"target can score only 9 ids.* its own"):
        check_width(language(), name="target", embeddings=SIZE, logits=9, is_draft=False)
