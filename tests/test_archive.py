"""The archive of past sequences against a slow search, and the suffix drafter that reads it."""

import random

import numpy as np
import pytest

from runtime.drafters import Archive, SuffixDrafter
from runtime.drafters import archive as archive_module
from runtime.noise import Noise

NOISE = Noise(0)


def slow_recall(sequences, context, k, *, beyond):
    """Try every place of every sequence, one after the other."""
    found = []  # (how many match, sequence, place that follows)
    for number, sequence in enumerate(sequences):
        for place in range(1, len(sequence)):
            length = 0
            while (
                length < min(place, len(context), archive_module._LONGEST)
                and sequence[place - 1 - length] == context[-1 - length]
            ):
                length += 1
            found.append((length, number, place))
    matched = max((length for length, _, _ in found), default=0)
    if matched <= beyond or matched < 3:
        return [], 0
    places = [(number, place) for length, number, place in found if length == matched]
    places = sorted(places)[-archive_module._NEWEST :]
    following = [sequences[number][place] for number, place in places]
    most = max(
        following, key=lambda t: (following.count(t), len(following) - 1 - following[::-1].index(t))
    )
    number, place = [at for at, token in zip(places, following, strict=True) if token == most][-1]
    return list(sequences[number][place : place + min(k, matched)]), matched


@pytest.mark.parametrize("seed", range(30))
def test_recall_is_the_slow_search(seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = rng.choice([2, 3, 6])
    sequences = [
        [rng.randrange(vocabulary) for _ in range(rng.randrange(12))]
        for _ in range(rng.randrange(9))
    ]
    first = rng.randrange(len(sequences) + 1)
    archive = Archive(sequences[:first], capacity=1000)
    for sequence in sequences[first:]:
        archive.add(sequence)
    for _ in range(60):
        context = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 9))]
        k, beyond = rng.randrange(1, 6), rng.choice([0, 0, 3, 5])
        expected = slow_recall(sequences, context, k, beyond=beyond)
        assert archive.recall(context, k, beyond=beyond) == expected


def test_the_most_frequent_continuation_counts_then_the_newest() -> None:
    frequent = [[1, 2, 3, 7], [1, 2, 3, 8], [1, 2, 3, 7], [1, 2, 3, 9]]
    assert Archive(frequent, capacity=99).recall([1, 2, 3], 1, beyond=0) == ([7], 3)
    assert Archive(frequent[:2], capacity=99).recall([1, 2, 3], 1, beyond=0) == ([8], 3)


def test_of_many_places_the_newest_are_compared() -> None:
    archive = Archive([*[[1, 2, 3, 7]] * 100, *[[1, 2, 3, 8]] * 40], capacity=999)
    assert archive.recall([1, 2, 3], 1, beyond=0) == ([8], 3)


def test_no_match_or_continuation_crosses_from_one_sequence_to_the_next() -> None:
    archive = Archive([[1, 2], [3, 4, 5], [6]], capacity=99)
    assert archive.recall([1, 2, 3], 2, beyond=0) == ([], 0)
    assert archive.recall([3, 4, 5], 2, beyond=0) == ([], 0)
    assert Archive([[3, 4, 5, 9], [6]], capacity=99).recall([3, 4, 5], 3, beyond=0) == ([9], 3)


def test_of_more_than_fits_the_newest_half_stays() -> None:
    archive = Archive(capacity=400)
    for start in range(0, 4000, 20):
        archive.add(range(start, start + 20))
        assert len(archive) <= 400
        assert archive.recall([start, start + 1, start + 2], 1, beyond=0) == ([start + 3], 3)
    assert len(archive) >= 200
    assert archive.recall([3000, 3001, 3002], 1, beyond=0) == ([], 0)
    all_at_once = Archive([np.arange(4000)], capacity=400)
    assert len(all_at_once) <= 400
    assert all_at_once.recall([3990, 3991, 3992], 1, beyond=0) == ([3993], 3)


def test_the_drafter_takes_the_longer_match_its_own_on_ties() -> None:
    def tokens(archived: list[int], context: list[int], **options: int) -> list[int]:
        drafter = SuffixDrafter(archive=Archive([archived], capacity=99), **options)
        return drafter.propose(context, 4, noise=NOISE).tokens

    assert tokens([1, 2, 3, 4, 5], [1, 2, 3]) == [4, 5]
    assert tokens([1, 2, 3, 9], [1, 2, 3, 4, 1, 2, 3]) == [4, 1, 2]
    assert tokens([0, 1, 2, 3, 9], [1, 2, 3, 4, 0, 1, 2, 3]) == [9]
    assert tokens([1, 2, 3, 9], [1, 2, 3], shortest=4) == []


def test_signals_say_how_many_tokens_match() -> None:
    drafter = SuffixDrafter(archive=Archive([[1, 2, 3, 4, 5]], capacity=99))
    proposal = drafter.propose([9, 1, 2, 3], 4, noise=NOISE)
    assert np.exp(proposal.signals) == pytest.approx([3, 4])
    assert [law.token_at(0) for law in proposal.laws] == [4, 5]
