"""The suffix automaton against slow references, and the drafter on top of it."""

import random

import pytest

from runtime.drafters.automaton import ROOT, SuffixAutomaton
from runtime.drafters.suffix import SuffixDrafter
from runtime.noise import Noise

NOISE = Noise(0)


def longest_earlier(tokens: list[int]) -> int:
    """Length of the longest suffix that also ended earlier, by trying all."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        if any(tokens[end - length : end] == suffix for end in range(length, len(tokens))):
            return length
    return 0


@pytest.mark.parametrize("seed", range(40))
def test_the_match_is_the_longest_earlier_suffix_also_after_taking_back(seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = rng.choice([2, 3, 5])
    index, tokens = SuffixAutomaton(), []
    for _ in range(50):
        token = rng.randrange(vocabulary)
        tokens.append(token)
        index.append(token)
        for _ in range(rng.choice([0, 0, 1, 4])):
            if tokens:
                tokens.pop()
                index.take_back()
        assert index.longest[index.match] == longest_earlier(tokens)


@pytest.mark.parametrize("seed", range(20))
def test_taking_back_leaves_no_trace(seed: int) -> None:
    rng = random.Random(seed)
    index, fresh, tokens = SuffixAutomaton(), SuffixAutomaton(), []
    for _ in range(60):
        if tokens and rng.random() < 0.4:
            tokens.pop()
            index.take_back()
        else:
            tokens.append(rng.randrange(3))
            index.append(tokens[-1])
    for token in tokens:
        fresh.append(token)
    assert vars(index).keys() == vars(fresh).keys()
    for name in ("tokens", "after", "count", "longest", "_link", "_last"):
        assert getattr(index, name) == getattr(fresh, name)


def test_the_likeliest_continuation_is_the_most_frequent_then_the_newest() -> None:
    drafter = SuffixDrafter()
    frequent = [1, 2, 7, 20, 1, 2, 8, 21, 1, 2, 7, 22, 1, 2, 8, 23, 1, 2, 7, 24, 1, 2]
    assert drafter.propose(frequent, 1, noise=NOISE).tokens == [7]
    newest = SuffixDrafter()
    assert newest.propose([1, 2, 7, 0, 1, 2, 8, 5, 1, 2], 1, noise=NOISE).tokens == [8]


def test_the_proposal_is_as_long_as_the_match_and_at_most_k() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    drafter = SuffixDrafter()
    assert drafter.propose([*text, 9, 1], 8, noise=NOISE).tokens == []
    assert drafter.propose([*text, 9, 1, 2], 8, noise=NOISE).tokens == [3, 4]
    assert drafter.propose([*text, 9, 1, 2, 3], 8, noise=NOISE).tokens == [4, 5, 6]
    assert drafter.propose([*text, 9, 1, 2, 3], 2, noise=NOISE).tokens == [4, 5]


def test_repetition_is_continued_beyond_the_present() -> None:
    drafter = SuffixDrafter()
    assert drafter.propose([1, 2] * 6, 7, noise=NOISE).tokens == [1, 2, 1, 2, 1, 2, 1]


def test_a_full_index_keeps_the_newest_half_and_goes_on() -> None:
    rng = random.Random(0)
    drafter = SuffixDrafter(capacity=64)
    tokens: list[int] = []
    for _ in range(500):
        tokens.append(rng.randrange(1000))
        drafter.propose(tokens, 4, noise=NOISE)
        assert len(drafter._index.tokens) <= 64
    tokens += tokens[-20:-10]
    assert drafter.propose(tokens, 4, noise=NOISE).tokens == tokens[-20:-16]


def test_deep_rewinds_index_anew() -> None:
    drafter = SuffixDrafter()
    tokens = [i % 7 for i in range(2000)]
    drafter.propose(tokens, 4, noise=NOISE)
    drafter.rewind(to=100)
    fresh = SuffixDrafter()
    expected = fresh.propose(tokens[:100], 4, noise=NOISE).tokens
    assert drafter.propose(tokens[:100], 4, noise=NOISE).tokens == expected
    assert drafter._index.longest[drafter._index.match] == longest_earlier(tokens[:100])


def test_an_empty_index_matches_nothing() -> None:
    assert SuffixAutomaton().match == ROOT
    assert SuffixDrafter().propose([5], 3, noise=NOISE).tokens == []
