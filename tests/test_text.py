"""Streams of tokens become the same text as decoding them whole, and stop where they should."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_samples import KINDS, added, byte_level_json, make_inner, make_tokenizer
from tokenizers import Tokenizer as Inner

from runtime.errors import RequestError
from runtime.text import Piece, StopMatcher, StreamDecoder, TextStream
from runtime.tokenizer import Tokenizer

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
PIECES = st.sampled_from([FAMILY, "🎉", "한", "글", " ", "é", "\ufffd", "a", "the", "<0x41>", "\n"])
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=12).map("".join)
kinds = pytest.mark.parametrize("kind", KINDS)


def cut(ids, sizes):
    at, pieces = 0, []
    for size in [*sizes, len(ids)]:
        pieces.append(ids[at : at + size])
        at += size
    return pieces


@kinds
@given(data=st.data())
def test_joined_stream_is_the_decoding_of_any_ids(kind, data):
    tokenizer = make_tokenizer(kind)
    # Random ids are mostly invalid bytes; those of a text are mostly valid.
    some = st.integers(0, tokenizer.vocab_size + 3)
    low = st.integers(0, 260)  # specials and bytes
    ids = data.draw(st.one_of(st.lists(some), st.lists(low), TEXTS.map(tokenizer.encode)))
    ids += data.draw(st.one_of(st.just([]), TEXTS.map(tokenizer.encode)))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=5))
    for skip_special in (True, False):
        decoder = StreamDecoder(tokenizer, skip_special=skip_special)
        joined = "".join(decoder.push(piece) for piece in cut(ids, sizes)) + decoder.flush()
        known = [i for i in ids if i < tokenizer.vocab_size]
        assert joined == make_inner(kind).decode(known, skip_special_tokens=skip_special)
        assert joined == tokenizer.decode(ids, skip_special=skip_special)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "llama-legacy"])
@given(text=TEXTS)
def test_no_replacement_mark_is_shown_for_valid_text(kind, text):
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode(text, allow_special=False)
    decoder = StreamDecoder(tokenizer)
    shown = "".join(decoder.push([i]) for i in ids) + decoder.flush()
    assert shown.count("\ufffd") == text.count("\ufffd")
    assert shown == text or shown.startswith(" ") or text.startswith(" ")


@pytest.mark.parametrize("kind", ["byte-level", "llama"])
@pytest.mark.parametrize("text", ["🎉", "한글", FAMILY])
def test_token_limit_inside_a_character_flushes_its_tail_once(kind, text):
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode(text)
    for limit in range(len(ids)):
        decoder = StreamDecoder(tokenizer)
        shown = "".join(decoder.push([i]) for i in ids[:limit])
        assert "\ufffd" not in shown
        assert shown + decoder.flush() == tokenizer.decode(ids[:limit])
        assert decoder.flush() == ""


def test_a_character_is_shown_with_the_token_that_completes_it():
    tokenizer = make_tokenizer("byte-level")
    ids = tokenizer.encode("🎉")
    decoder = StreamDecoder(tokenizer)
    assert [decoder.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["🎉"]


@pytest.mark.parametrize("kind", KINDS)
def test_work_per_token_does_not_grow_with_the_text(kind):
    tokenizer = make_tokenizer(kind)
    bad = tokenizer.token_to_id("<0x80>") or tokenizer.token_to_id("Ģ") or 5  # U+0122 is byte 0x80
    for ids in (tokenizer.encode("The lazy dog 한글 🎉 sleeps. ") * 300, [bad] * 5000):
        ids = ids[:5000]
        decoder = StreamDecoder(tokenizer)
        start = time.process_time()
        shown = "".join(decoder.push([i]) for i in ids) + decoder.flush()
        assert time.process_time() - start < 2.0  # re-decoding everything takes far longer
        assert shown == tokenizer.decode(ids)


def test_decoding_the_window_reads_few_tokens(monkeypatch):
    tokenizer = make_tokenizer("llama")
    ids = tokenizer.encode("The lazy dog 한글 🎉 sleeps. ") * 30
    longest, decode = [], tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda i, **kw: longest.append(len(i)) or decode(i, **kw)
    )
    decoder = StreamDecoder(tokenizer)
    for token_id in ids:
        decoder.push([token_id])
    assert max(longest) <= 10


# Stop strings


@given(
    text=st.text("ab", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(0, 3), max_size=12),
)
def test_matcher_cuts_at_the_first_completed_stop(text, stops, sizes):
    matcher, shown, seen = StopMatcher(stops), "", ""
    for piece in cut(text, sizes):
        seen += piece
        visible, stopped = matcher.push(piece)
        shown += visible
        found = [seen.find(stop) for stop in stops if stop in seen]
        assert stopped == bool(found)
        if stopped:
            assert shown == seen[: min(found)]
            return
        endings = [seen[at:] for at in range(len(seen))]
        growing = [ending for ending in endings if any(s.startswith(ending) for s in stops)]
        assert seen == shown + max(growing, key=len, default="")
    assert shown + matcher.flush() == text


def test_a_piece_of_a_stop_is_held_until_decided():
    matcher = StopMatcher(["END."])
    assert matcher.push("the EN") == ("the ", False)
    assert matcher.push("D") == ("", False)
    assert matcher.push("S. E") == ("ENDS. ", False)
    assert matcher.push("ND.and more") == ("", True)


def test_the_match_that_begins_first_wins():
    assert StopMatcher(["bc", "abcd"]).push("xabcdy") == ("x", True)


def test_a_single_text_is_one_stop():
    assert StopMatcher("ab").push("xa") == ("x", False)


@pytest.mark.parametrize("stops", [[""], ["a", ""], [None]])
def test_empty_stop_is_refused(stops):
    with pytest.raises(RequestError, match=rf"stop\[{len(stops) - 1}\] must be a non-empty text"):
        TextStream(make_tokenizer("byte-level"), stops)


@kinds
@given(data=st.data())
def test_stream_stops_with_the_token_whose_decoding_first_holds_a_stop(kind, data):
    tokenizer = make_tokenizer(kind)
    ids = data.draw(
        st.one_of(TEXTS.map(tokenizer.encode), st.lists(st.integers(0, tokenizer.vocab_size)))
    )
    whole = tokenizer.decode(ids).replace("\ufffd", "")
    part = st.sampled_from([whole[a:b] for a, b in pairwise(range(0, len(whole) + 2, 2))] or ["x"])
    stops = data.draw(st.lists(part.filter(bool), max_size=2))
    stream = TextStream(tokenizer, stops)
    shown = ""
    for count, token_id in enumerate(ids, 1):
        seen = tokenizer.decode(ids[:count])
        found = [seen.find(stop) for stop in stops if stop in seen]
        piece = stream.push(token_id)
        shown += piece.text
        assert (piece.stopped, piece.tokens) == (bool(found), 1)
        if piece.stopped:
            assert shown == seen[: min(found)]
            assert stream.push(token_id) == Piece("", stopped=True, tokens=0)
            assert stream.flush() == ""
            return
    assert shown + stream.flush() == tokenizer.decode(ids)


def test_a_round_is_taken_up_to_the_token_that_completes_a_stop():
    tokenizer = make_tokenizer("byte-level")
    ids = [tokenizer.token_to_id(c) for c in "abENDcd"]
    stream = TextStream(tokenizer, ["END"])
    pieces = [stream.push(token_id) for token_id in ids]
    assert "".join(piece.text for piece in pieces) == "ab"
    assert [piece.tokens for piece in pieces] == [1, 1, 1, 1, 1, 0, 0]
    assert [piece.stopped for piece in pieces] == [False] * 4 + [True] * 3


def test_a_held_beginning_of_a_stop_is_flushed_once():
    tokenizer = make_tokenizer("byte-level")
    stream = TextStream(tokenizer, ["ENDING"])
    shown = [stream.push(tokenizer.token_to_id(c)).text for c in "abEND"]
    assert "".join(shown) == "ab"
    assert stream.flush() == "END"
    assert stream.flush() == ""


def test_half_a_character_behind_a_stop_is_dropped():
    content = json.loads(byte_level_json())
    content["added_tokens"] = []
    last = len(content["model"]["vocab"])
    content["model"]["vocab"]["Dð"] = last  # "D" and the first byte of an emoji
    tokenizer = Tokenizer(Inner.from_str(json.dumps(content)))
    stream = TextStream(tokenizer, ["D"])
    assert stream.push(last) == Piece("", stopped=True, tokens=1)
    assert stream.flush() == ""


def test_added_tokens_outside_the_byte_alphabet_are_decoded_as_they_read():
    content = json.loads(byte_level_json())
    last = content["added_tokens"][-1]["id"] + 1
    content["added_tokens"].append(added(last, "한 글", special=False))
    tokenizer = Tokenizer(Inner.from_str(json.dumps(content)))
    assert StreamDecoder(tokenizer).push([last, *tokenizer.encode("dog")]) == "한 글dog"


def test_a_stop_made_of_byte_tokens_is_seen_with_its_last_byte():
    tokenizer = make_tokenizer("llama")
    ids = [
        *tokenizer.encode("dog"),
        *(tokenizer.token_to_id(f"<0x{b:02X}>") for b in "한글".encode()),
    ]
    stream = TextStream(tokenizer, ["한"])
    pieces = [stream.push(token_id) for token_id in ids]
    assert "".join(piece.text for piece in pieces) == "dog"
    assert [piece.stopped for piece in pieces].index(True) == len(ids) - 4


def test_special_tokens_are_silent():
    tokenizer = make_tokenizer("byte-level")
    stream = TextStream(tokenizer, ["<|im_end|>"])
    shown = "".join(stream.push(token_id).text for token_id in tokenizer.encode("dog<|im_end|>"))
    assert shown + stream.flush() == "dog"
    assert not stream.stopped
