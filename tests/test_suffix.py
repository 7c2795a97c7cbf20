"""The suffix automaton against slow references, and the drafter on top of it."""

import random
from collections import Counter

import pytest

from runtime.drafters import automaton
from runtime.drafters import suffix as suffix_module
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
    for name in ("tokens", "longest", "_after", "_best", "_count", "_link", "_last"):
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


def most_followed(tokens: list[int], length: int) -> int:
    """What followed the last `length` tokens most often, the newest on ties, by counting."""
    suffix = tokens[-length:]
    ends = [end for end in range(length, len(tokens)) if tokens[end - length : end] == suffix]
    counts = Counter(tokens[end] for end in ends)
    return tokens[max(ends, key=lambda end: (counts[tokens[end]], end))]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_continuation_is_the_counted_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automaton, "_COUNTED", 10**6)
    rng = random.Random(seed)
    index, tokens = SuffixAutomaton(), []
    for _ in range(80):
        tokens.append(rng.randrange(3))
        index.append(tokens[-1])
        for _ in range(rng.choice([0, 0, 1, 4])):
            if tokens:
                tokens.pop()
                index.take_back()
        if index.match != ROOT:
            step = index.continuation(index.match)
            assert step is not None
            assert step[0] == most_followed(tokens, index.longest[index.match])


@pytest.mark.parametrize("step", [1, 7])
def test_memory_is_bounded_and_the_newest_half_is_searched(step: int) -> None:
    rng = random.Random(0)
    drafter = SuffixDrafter(capacity=400)
    tokens: list[int] = []
    while len(tokens) < 3000:
        tokens += [rng.randrange(1000) for _ in range(step)]
        drafter.propose(tokens, 4, noise=NOISE)
        drafter.rewind(to=len(tokens))
        assert len(drafter._older.automaton.tokens) <= 400
        assert len(drafter._younger.automaton.tokens) <= 200
        back = min(len(tokens), 200) - 10
        asked = [*tokens, *tokens[-back : -back + 5]]
        assert back < 10 or drafter.propose(asked, 4, noise=NOISE).tokens == tokens[-back + 5 :][:4]
        drafter.rewind(to=len(tokens))


def test_of_a_prompt_longer_than_the_capacity_only_the_newest_tokens_are_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    appended = []
    append = SuffixAutomaton.append
    monkeypatch.setattr(
        SuffixAutomaton, "append", lambda self, token: (appended.append(token), append(self, token))
    )
    SuffixDrafter(capacity=400).propose(list(range(10_050)), 4, noise=NOISE)
    assert len(appended) <= 400
    assert appended[-1] == 10_049


def test_no_single_token_pays_for_a_full_index(monkeypatch: pytest.MonkeyPatch) -> None:
    work = []
    append = SuffixAutomaton.append
    monkeypatch.setattr(
        SuffixAutomaton, "append", lambda self, token: (work.append(token), append(self, token))
    )
    drafter = SuffixDrafter(capacity=1000)
    tokens: list[int] = []
    for i in range(4000):
        tokens.append(i % 97)
        before = len(work)
        drafter.propose(tokens, 4, noise=NOISE)
        assert len(work) - before <= 2 + suffix_module._LAG


@pytest.mark.parametrize("to", [100, 1200, 1990, 0])
def test_deep_rewinds_index_anew(to: int) -> None:
    drafter = SuffixDrafter(capacity=1000)
    tokens = [i % 7 for i in range(2000)]
    drafter.propose(tokens, 4, noise=NOISE)
    drafter.rewind(to=to)
    shorter = [*tokens[:to], 9, 1, 2]
    expected = SuffixDrafter(capacity=1000).propose(shorter, 4, noise=NOISE).tokens
    assert drafter.propose(shorter, 4, noise=NOISE).tokens == expected == [3, 4][: to and 2]


def test_an_empty_index_matches_nothing() -> None:
    assert SuffixAutomaton().match == ROOT
    assert SuffixDrafter().propose([5], 3, noise=NOISE).tokens == []
