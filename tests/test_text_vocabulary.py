"""Two tokenizer files are one language exactly when ids and rules mean the same."""

import json

import pytest
from tokenizer_samples import KINDS, added, byte_level_json

from runtime.errors import BundleError
from runtime.vocabulary import (
    compare_vocabularies,
    first_difference,
    read_vocabulary,
    tokenizer_fingerprint,
)


def written(content, **how):
    return json.dumps(content, **how).encode()


def changed(change, kind="byte-level"):
    content = json.loads(KINDS[kind])
    change(content)
    return written(content)


BASE = byte_level_json().encode()


def reformat(content):
    content["version"] = "2.0"
    content["truncation"] = {"max_length": 5}
    content["padding"] = {"pad_id": 0}
    content["post_processor"] = None
    content["model"]["unk_token"] = ""
    content["model"]["ignore_merges"] = False
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    content["model"]["vocab"] = dict(reversed(content["model"]["vocab"].items()))
    content["added_tokens"][0]["lstrip"] = True
    content["decoder"]["note"] = None


def test_writing_is_not_content():
    other = written(json.loads(changed(reformat)), indent=3, ensure_ascii=True)
    assert tokenizer_fingerprint(other) == tokenizer_fingerprint(BASE)
    assert first_difference(BASE, other) is None


def swap(content):
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def swap_added(content):
    first, second = content["added_tokens"][1:3]
    first["content"], second["content"] = second["content"], first["content"]


def id_of(token):
    return json.loads(BASE)["model"]["vocab"][token]


def drop_token(content):
    del content["model"]["vocab"]["!"]


def swap_merges(content):
    merges = content["model"]["merges"]
    merges[4], merges[5] = merges[5], merges[4]


CHANGES = {
    "token": (swap, f'id {id_of("a")} is "a" in the first, "b" in the second'),
    "added": (swap_added, 'id 1 is "<|im_start|>" in the first, "<|im_end|>" in the second'),
    "hole": (drop_token, f'id {id_of("!")} is "!" in the first, absent in the second'),
    "merge": (swap_merges, "merge or score 4 is "),
    "fewer merges": (lambda c: c["model"]["merges"].pop(), "the number of merges is "),
    "normalizer": (
        lambda c: c.update(normalizer={"type": "NFC"}),
        'normalizer is absent in the first, {"type":"NFC"} in the second',
    ),
    "pre-tokenizer": (
        lambda c: c["pre_tokenizer"].update(add_prefix_space=True),
        "pre_tokenizer.add_prefix_space is false in the first, true in the second",
    ),
    "decoder": (
        lambda c: c.update(decoder={"type": "Sequence", "decoders": [c["decoder"]]}),
        "decoder.add_prefix_space is true in the first, absent in the second",
    ),
    "model": (
        lambda c: c["model"].update(ignore_merges=True),
        "model.ignore_merges is absent in the first, true in the second",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_first_difference_is_named(name):
    change, sentence = CHANGES[name]
    other = changed(change)
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(BASE)
    assert (first_difference(BASE, other) or "").startswith(sentence)
    assert first_difference(other, BASE) is not None


def test_difference_inside_a_long_rule_is_shown_at_its_place():
    def long_rule(content):
        steps = [{"type": "Digits"}] * 5 + [{"type": "Split", "pattern": {"Regex": "\\d" * 99}}]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    def longer_rule(content):
        long_rule(content)
        content["pre_tokenizer"]["pretokenizers"][5]["pattern"]["Regex"] = "x"

    sentence = first_difference(changed(long_rule), changed(longer_rule))
    assert sentence.startswith("pre_tokenizer.pretokenizers[5].pattern.Regex is ")
    assert len(sentence) < 200


def test_scores_are_content():
    base = KINDS["unigram"].encode()
    other = changed(lambda c: c["model"]["vocab"][7].__setitem__(1, -99.0), "unigram")
    assert first_difference(base, base) is None
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(base)
    assert first_difference(base, other).startswith("merge or score 7 is ")


def add_two(content):
    size = content["added_tokens"][-1]["id"] + 1
    content["added_tokens"] += [added(size + i, f"<new{i}>", special=True) for i in (0, 1)]


def test_extra_tokens_at_the_end_are_counted_and_legal():
    larger = changed(add_two)
    comparison = compare_vocabularies(read_vocabulary(BASE), read_vocabulary(larger))
    assert comparison.first_difference is None
    assert (comparison.only_in_first, comparison.only_in_second) == (0, 2)
    comparison = compare_vocabularies(read_vocabulary(larger), read_vocabulary(BASE))
    assert (comparison.only_in_first, comparison.only_in_second) == (2, 0)
    assert tokenizer_fingerprint(larger) != tokenizer_fingerprint(BASE)


def test_a_differing_token_is_told_apart_from_a_differing_rule():
    other = changed(lambda c: (swap(c), swap_merges(c)))
    comparison = compare_vocabularies(read_vocabulary(BASE), read_vocabulary(other))
    assert comparison.differing_token == comparison.first_difference
    assert comparison.differing_rule.startswith("merge or score 4")


def test_path_and_bytes_are_the_same(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(BASE)
    assert (
        tokenizer_fingerprint(path)
        == tokenizer_fingerprint(str(path))
        == tokenizer_fingerprint(BASE)
    )


def test_the_fingerprint_is_pinned():
    tiny = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}
    assert tokenizer_fingerprint(written(tiny)) == PINNED


PINNED = "fe5fee2531266f2ae9d92dd6e8bcaa8a8c21e1ba7d82c6a8d916ff8a11839e2e"


def test_missing_file_is_named(tmp_path):
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read: No such file"):
        tokenizer_fingerprint(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b"{}", b'{"model": 1}', b'{"model": {"vocab": 1}}']
)
def test_other_content_is_refused(raw):
    with pytest.raises(BundleError, match=r"the tokenizer is not a tokenizer\.json"):
        read_vocabulary(raw)
