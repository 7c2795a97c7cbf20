"""Text to ids: special tokens are honoured where asked, and never in what a user typed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_samples import KINDS, added, byte_level_json, make_inner, make_tokenizer
from tokenizers import Tokenizer as Inner

from runtime.errors import BundleError, RequestError
from runtime.tokenizer import Tokenizer

kinds = pytest.mark.parametrize("kind", KINDS)
CONTROL = ["<|im_end|>", "<|im_start|>", "<|fim|>", "<s>", "</s>", "[SEP]", "<|im_", "end|>", "<"]
TYPED = st.lists(st.one_of(st.sampled_from(CONTROL), st.text(max_size=4)), max_size=8).map("".join)


def control_ids(tokenizer):
    names = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|fim|>", "<s>", "</s>", "[SEP]"]
    return {i for name in names if (i := tokenizer.token_to_id(name)) is not None}


@kinds
@given(text=st.text())
def test_text_without_control_tokens_is_encoded_as_the_library_does(kind, text):
    tokenizer, expected = (
        make_tokenizer(kind),
        make_inner(kind).encode(text, add_special_tokens=False),
    )
    assert tokenizer.encode(text) == expected.ids
    assert tokenizer.encode(text, allow_special=False) == expected.ids


@pytest.mark.parametrize("kind", ["byte-level", "gpt-2", "llama", "llama-legacy", "wordpiece"])
@given(text=TYPED)
def test_typed_control_tokens_are_plain_text(kind, text):
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode(text, allow_special=False)
    assert not control_ids(tokenizer) & set(ids)
    plain = Inner.from_str(KINDS[kind])
    plain.encode_special_tokens = True  # the library's own way, for specials alone
    if "<|fim|>" not in text:
        assert ids == plain.encode(text, add_special_tokens=False).ids
    if kind in ("byte-level", "gpt-2"):
        assert tokenizer.decode(ids) == text


def test_raw_prompts_honour_control_tokens():
    tokenizer = make_tokenizer("byte-level")
    ids = tokenizer.encode("<|im_start|>user")
    assert ids[0] == tokenizer.token_to_id("<|im_start|>")
    assert tokenizer.encode("<|fim|>") == [tokenizer.token_to_id("<|fim|>")]


def test_ordinary_added_tokens_are_matched_in_every_text():
    tokenizer = make_tokenizer("byte-level")
    think = tokenizer.token_to_id("<think>")
    assert tokenizer.encode("<think><|im_end|>", allow_special=False)[0] == think


def test_overlapping_spellings_leave_no_control_token():
    content = json.loads(byte_level_json())
    size = content["added_tokens"][-1]["id"] + 1
    more = ["<<", "<a", "a>"]
    content["added_tokens"] += [added(size + i, t, special=True) for i, t in enumerate(more)]
    tokenizer = Tokenizer(Inner.from_str(json.dumps(content)))
    for text in ("<<|im_end|>", "<<a>", "<|im_<|im_end|>end|>"):
        ids = tokenizer.encode(text, allow_special=False)
        assert max(ids) < size
        assert tokenizer.decode(ids) == text


def test_a_special_token_of_one_character_is_ordinary_text():
    content = json.loads(byte_level_json())
    bang = content["model"]["vocab"]["!"]
    content["added_tokens"].append(added(bang, "!", special=True))
    tokenizer = Tokenizer(Inner.from_str(json.dumps(content)))
    assert tokenizer.encode("dog!", allow_special=False) == tokenizer.encode("dog!")


def unguard(tokenizer, text):
    return text.translate({ord(mark): first for first, mark in tokenizer._stand_in.items()})


def test_guarded_halves_do_not_join_to_a_control_token():
    tokenizer = make_tokenizer("byte-level")
    text = tokenizer.guard("dog <|im_") + tokenizer.guard("end|> sleeps")
    ids = tokenizer.encode_guarded(text)
    assert not control_ids(tokenizer) & set(ids)
    assert tokenizer.decode(ids) == "dog <|im_end|> sleeps" == unguard(tokenizer, text)


@given(text=TYPED)
def test_guarding_is_undone_and_idempotent(text):
    tokenizer = make_tokenizer("byte-level")
    guarded = tokenizer.guard(text)
    assert unguard(tokenizer, guarded) == text.replace("\ufdd0", "\ufffd")
    assert unguard(tokenizer, tokenizer.guard(unguard(tokenizer, guarded))) == unguard(
        tokenizer, guarded
    )


def test_marks_typed_by_a_user_are_replaced():
    assert make_tokenizer("byte-level").guard("a\ufdd0|im_end|>") == "a\ufffd|im_end|>"


def test_spelling_folded_by_a_normalizer_stays_text():
    content = json.loads(byte_level_json(normalized=True)) | {"normalizer": {"type": "NFKC"}}
    tokenizer = Tokenizer(Inner.from_str(json.dumps(content)))
    wide = "＜|im_end|＞"  # noqa: RUF001
    assert tokenizer.encode(wide) == [tokenizer.token_to_id("<|im_end|>")]
    assert not control_ids(tokenizer) & set(tokenizer.encode(wide, allow_special=False))


def test_a_control_token_that_has_no_other_writing_is_refused():
    tokenizer = make_tokenizer("unigram")
    with pytest.raises(RequestError, match=r"the text holds '</s>', which this model cannot read"):
        tokenizer.encode("a</s>", allow_special=False)


@pytest.mark.parametrize("kind", ["llama", "llama-legacy"])
def test_exactly_one_bos(kind):
    tokenizer = make_tokenizer(kind)
    bos = tokenizer.token_to_id("<s>")
    for text in ("dog", "<s>dog", ""):
        ids = tokenizer.encode(text, add_special=True)
        assert ids[0] == bos
        assert ids.count(bos) == 1
    assert tokenizer.encode("dog").count(bos) == 0
    assert tokenizer.encode("<s>dog").count(bos) == 1


def test_typed_bos_does_not_count_as_the_opening():
    tokenizer = make_tokenizer("llama")
    ids = tokenizer.encode("<s>dog", add_special=True, allow_special=False)
    assert ids == [1, *tokenizer.encode("<s>dog", allow_special=False)]


def test_nothing_is_appended_to_a_text_that_goes_on():
    content = json.loads(KINDS["llama"])
    closing = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    content["post_processor"]["single"].append(closing)
    known = content["post_processor"]["special_tokens"]
    known["</s>"] = {"id": "</s>", "ids": [2], "tokens": ["</s>"]}
    tokenizer = Tokenizer(Inner.from_str(json.dumps(content)))
    assert tokenizer.encode("dog", add_special=True) == [1, *tokenizer.encode("dog")]


def test_stored_truncation_and_padding_are_dropped():
    inner = Inner.from_str(byte_level_json())
    inner.enable_truncation(2)
    inner.enable_padding(length=9)
    assert Tokenizer(inner).encode("the lazy dog") == make_tokenizer("byte-level").encode(
        "the lazy dog"
    )


def test_lookups():
    tokenizer = make_tokenizer("byte-level")
    last = json.loads(byte_level_json())["added_tokens"][-1]
    assert tokenizer.vocab_size == last["id"] + 1
    assert tokenizer.token_to_id("<|fim|>") == last["id"]
    assert tokenizer.id_to_token(last["id"]) == "<|fim|>"
    assert [tokenizer.is_special(i) for i in (0, 1, 2, 3, last["id"])] == [True] * 3 + [False] * 2
    assert tokenizer.token_to_id("no such token") is None
    assert tokenizer.id_to_token(tokenizer.vocab_size) is None
    assert tokenizer.id_to_token(-1) is None


def test_decoding_skips_special_and_unknown_ids():
    tokenizer = make_tokenizer("byte-level")
    ids = [1, *tokenizer.encode("dog"), 2, 10**6, -1]
    assert tokenizer.decode(ids) == "dog"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>dog<|im_end|>"


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(RequestError, match="half a surrogate pair"):
        make_tokenizer("byte-level").encode("a\ud83d")


def test_load(tmp_path):
    path = tmp_path / "mö dèl 模型 #1.json"
    path.write_text(byte_level_json(), encoding="utf-8")
    assert Tokenizer.load(path).encode("dog") == make_tokenizer("byte-level").encode("dog")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read: No such file"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": 3}'])
def test_broken_file_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json is not a usable tokenizer\.json"):
        Tokenizer.load(path)


def test_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BundleError, match=r"is not a usable tokenizer\.json"):
        Tokenizer.load(path)


def test_too_many_first_characters_are_refused():
    content = json.loads(byte_level_json())
    size = content["added_tokens"][-1]["id"] + 1
    content["added_tokens"] += [
        added(size + i, chr(0x4E00 + i) + ">", special=True) for i in range(70)
    ]
    with pytest.raises(BundleError, match="71 different first characters"):
        Tokenizer(Inner.from_str(json.dumps(content)))
