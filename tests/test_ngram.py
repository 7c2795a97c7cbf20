"""N-gram tables: counting, pruning, the law they give, their file, and the drafter over them."""

import random
from collections import Counter
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from runtime import ngram as ngram_module
from runtime.drafters import NgramDrafter
from runtime.errors import BundleError
from runtime.law import Law
from runtime.ngram import NgramTable
from runtime.ngram_file import read_table, write_table
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling
from tools.counting import count_ngrams, prune
from tools.errors import ToolError

FINGERPRINT = "ab" * 32


def random_sequences(seed: int, *, vocabulary: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(vocabulary) for _ in range(rng.randrange(30))]
        for _ in range(rng.randrange(1, 9))
    ]


def listed(table: NgramTable) -> list[dict[tuple[int, ...], int]]:
    """The n-grams of each order with their counts."""
    above: list[tuple[int, ...]] = [()]
    orders = []
    for tokens, counts, starts in zip(table.tokens, table.counts, table.starts, strict=True):
        grams = [
            (*gram, int(token))
            for gram, start, end in zip(above, starts[:-1], starts[1:], strict=True)
            for token in tokens[start:end]
        ]
        orders.append(dict(zip(grams, counts.tolist(), strict=True)))
        above = grams
    return orders


def counted(sequences: list[list[int]], order: int) -> list[dict[tuple[int, ...], int]]:
    return [
        Counter(
            tuple(sequence[i : i + n])
            for sequence in sequences
            for i in range(len(sequence) - n + 1)
        )
        for n in range(1, order + 1)
    ]


def slow_law(
    grams: list[dict[tuple[int, ...], int]], context: list[int], vocabulary: int
) -> dict[int, Fraction]:
    """The probabilities by their formula, token by token, in rationals."""

    def probability(token: int, history: tuple[int, ...]) -> Fraction:
        following = {x: grams[len(history)].get((*history, x), 0) for x in range(vocabulary)}
        seen, kinds = sum(following.values()), sum(n > 0 for n in following.values())
        lower = probability(token, history[1:]) if len(history) > 1 else Fraction(0)
        return (following[token] + kinds * lower) / (seen + kinds) if seen else lower

    longest = tuple(context[-len(grams) + 1 :])
    seen_before = any(gram[0] == longest[-1] for gram in grams[1]) if longest else False
    law = {x: probability(x, longest) for x in range(vocabulary)} if seen_before else {}
    return {x: p for x, p in law.items() if p > 0}


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_ngrams_are_counted_within_sequences(seed: int, order: int) -> None:
    sequences = random_sequences(seed, vocabulary=4)
    table = count_ngrams(sequences, order=order, vocabulary=4)
    assert listed(table) == counted(sequences, order)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_law_is_witten_and_bells(seed: int, order: int) -> None:
    sequences = random_sequences(seed, vocabulary=5)
    table = count_ngrams(sequences, order=order, vocabulary=5)
    grams = counted(sequences, order)
    rng = random.Random(seed)
    for _ in range(40):
        context = [rng.randrange(6) for _ in range(rng.randrange(6))]
        expected = slow_law(grams, context, 5)
        found = table.follow(context)
        if not expected:
            assert found is None
            continue
        assert found is not None
        ids, weights, share = found
        assert ids.tolist() == sorted(expected)
        assert weights.dtype == np.float64
        assert share == pytest.approx(float(sum(expected.values())), abs=1e-15)
        expected = [float(expected[x] / sum(expected.values())) for x in ids.tolist()]
        assert weights == pytest.approx(expected, abs=1e-15)
        assert abs(weights.sum() - 1) < 1e-12


def test_of_many_followers_the_most_frequent_and_those_of_longer_contexts_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ngram_module, "_WIDEST", 3)
    often = [[1, token] for token in (10, 11, 12, 13) for _ in range(5)]
    table = count_ngrams([*often, [1, 14], [0, 1, 15]], order=3, vocabulary=16)
    for _ in range(2):  # computed, then kept
        found = table.follow([9, 1])
        assert found is not None
        assert found[0].tolist() == [11, 12, 13]
        assert found[1] == pytest.approx([1 / 3] * 3)
        assert found[2] == pytest.approx(15 / (22 + 6))
        found = table.follow([0, 1])
        assert found is not None
        assert found[0].tolist() == [11, 12, 13, 15]
        assert found[2] * found[1] == pytest.approx([5 / 28 / 2] * 3 + [1 / 2])


def test_counts_do_not_overflow() -> None:
    table = count_ngrams([[1] * 70_000, [1, 2]], order=2, vocabulary=3)
    found = table.follow([1])
    assert found is not None
    assert found[1].sum() == pytest.approx(1)
    assert found[1][0] > 0.9999


@pytest.mark.parametrize("seed", range(5))
def test_pruning_drops_the_rarest_until_it_fits(seed: int) -> None:
    sequences = random_sequences(seed, vocabulary=3) * 2 + random_sequences(seed + 50, vocabulary=3)
    table = count_ngrams(sequences, order=3, vocabulary=3)
    whole = listed(table)
    sizes = [8 * n for n in range(sum(map(len, whole)), 3, -1)]
    for most_bytes in sizes:
        try:
            kept = prune(table, most_bytes=most_bytes)
        except ToolError:
            break
        orders = listed(kept)
        assert 8 * sum(map(len, orders)) <= most_bytes
        assert orders[0] == whole[0]
        for order, grams in enumerate(orders):
            assert grams == {
                g: n for g, n in whole[order].items() if n >= min(grams.values(), default=99)
            }
            for gram in grams:
                assert not order or gram[:-1] in orders[order - 1]
                assert not order or gram[1:] in orders[order - 1]
    assert most_bytes < sizes[0]


def test_a_table_of_nothing_is_refused() -> None:
    table = count_ngrams([[1, 2, 3]], order=3, vocabulary=4)
    with pytest.raises(ToolError, match="--max-size"):
        prune(table, most_bytes=25)


# --- the drafter ---------------------------------------------------------------------------------


def make_drafter(sequences: list[list[int]], **settings: object) -> NgramDrafter:
    sampler = Sampler(
        Sampling(**{"temperature": 1.0} | settings),
        vocabulary=9,
        prompt_length=1,
        end_ids=(8,),
        noise=Noise(5),
    )
    return NgramDrafter(count_ngrams(sequences, order=3, vocabulary=9), sampler)


TEXT = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 5], [2, 3, 6]]


def test_it_drafts_until_a_token_that_nothing_followed() -> None:
    drafter = make_drafter(TEXT, temperature=0)
    assert drafter.propose([1], 9, noise=Noise(0)).tokens[:2] == [2, 3]
    assert drafter.propose([0, 7], 9, noise=Noise(0)).tokens == []
    proposal = make_drafter([[1, 2, 3, 4]]).propose([1], 9, noise=Noise(0))
    assert proposal.tokens == [2, 3, 4]
    assert proposal.drafter == "ngram"


def test_tokens_come_as_often_as_their_laws_say() -> None:
    drafter = make_drafter(TEXT)
    law = drafter.propose([1, 2], 1, noise=Noise(0)).laws[0]
    drawn = Counter(drafter.propose([1, 2], 1, noise=Noise(i)).tokens[0] for i in range(3000))
    for token in (3, 4):
        assert drawn[token] / 3000 == pytest.approx(law.probability(token), abs=0.04)


def test_the_settings_shape_its_laws_as_a_models() -> None:
    def law(**settings: object) -> Law:
        return make_drafter(TEXT, **settings).propose([1, 2], 1, noise=Noise(0)).laws[0]

    plain = law()
    shares = np.array([plain.probability(3), plain.probability(4)])
    cold = shares**2 / (shares**2).sum()
    assert law(temperature=0.5).probability(3) == pytest.approx(cold[0], rel=1e-6)
    assert law(top_k=1).probability(3) == 1
    assert law(logit_bias={3: -np.inf}).probability(4) == 1
    assert law(temperature=0).token_at(0) == 3
    banned = {3: -np.inf, 4: -np.inf}
    assert make_drafter(TEXT, logit_bias=banned).propose([1, 2], 1, noise=Noise(0)).tokens == []


def test_coupled_it_takes_the_noise_that_a_model_would_take() -> None:
    for seed in range(20):
        noise = Noise(seed)
        sampler = Sampler(
            Sampling(coupled=True), vocabulary=9, prompt_length=1, end_ids=(), noise=noise
        )
        drafter = NgramDrafter(count_ngrams(TEXT, order=3, vocabulary=9), sampler)
        found = count_ngrams(TEXT, order=3, vocabulary=9).follow([1, 2])
        assert found is not None
        row = np.full(9, -np.inf, np.float32)
        row[found[0]] = np.log(found[1])
        chosen = sampler.law(row, [0, 1, 2], 3).token_at(0)
        assert drafter.propose([0, 1, 2], 1, noise=noise).tokens == [chosen]


def test_a_signal_is_the_laws_and_not_the_tokens() -> None:
    proposals = [make_drafter(TEXT).propose([1, 2], 1, noise=Noise(i)) for i in range(20)]
    assert {proposal.tokens[0] for proposal in proposals} == {3, 4}
    assert len({proposal.signals[0] for proposal in proposals}) == 1
    # 1 2 was followed by 3 twice and by 4 once; 2 alone by 3 three times and by 4 once.
    share = (2 + 2 * 3 / 6) / 5
    assert proposals[0].signals[0] == pytest.approx(np.log(share / (1 - share)))


# --- its file -------------------------------------------------------------------------------------


@pytest.fixture
def table() -> NgramTable:
    return count_ngrams(random_sequences(1, vocabulary=5), order=3, vocabulary=5)


def write(path: Path, table: NgramTable) -> Path:
    write_table(path, table, fingerprint=FINGERPRINT, vocabulary=5)
    return path


def test_a_table_comes_back_as_it_was_written(tmp_path: Path, table: NgramTable) -> None:
    first, second = write(tmp_path / "a.npz", table), write(tmp_path / "b.npz", table)
    assert first.read_bytes() == second.read_bytes()
    assert listed(read_table(first, fingerprint=FINGERPRINT, vocabulary=5)) == listed(table)


@pytest.mark.parametrize(
    ("fingerprint", "vocabulary"), [("cd" * 32, 5), (FINGERPRINT, 4), (FINGERPRINT, 6)]
)
def test_another_tokenizers_table_is_refused(
    tmp_path: Path, table: NgramTable, fingerprint: str, vocabulary: int
) -> None:
    path = write(tmp_path / "table.npz", table)
    with pytest.raises(BundleError, match=r"another tokenizer: build it again"):
        read_table(path, fingerprint=fingerprint, vocabulary=vocabulary)


def test_damage_is_refused(tmp_path: Path, table: NgramTable) -> None:
    data = write(tmp_path / "table.npz", table).read_bytes()
    path = tmp_path / "damaged.npz"
    for place in range(0, len(data), 41):
        path.write_bytes(data[:place])
        with pytest.raises(BundleError, match="build it again"):
            read_table(path, fingerprint=FINGERPRINT, vocabulary=5)
        path.write_bytes(data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :])
        with suppress(BundleError):  # some bytes of the archive mean nothing
            assert listed(read_table(path, fingerprint=FINGERPRINT, vocabulary=5)) == listed(table)


def shortened(name):
    return lambda arrays: arrays | {name: arrays[name][:-1]}


def changed(name, place, value):
    def change(arrays):
        array = arrays[name].copy()
        array[place] = value
        return arrays | {name: array}

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {k: v for k, v in arrays.items() if not k.endswith(("_2", "_3"))},
        lambda arrays: {k: v for k, v in arrays.items() if k != "counts_2"},
        lambda arrays: arrays | {"format": np.int64(2)},
        lambda arrays: arrays | {"order": np.int64(2)},
        lambda arrays: arrays | {"order": np.int64(9)},
        lambda arrays: arrays | {"counts_2": arrays["counts_2"].astype(np.float64)},
        lambda arrays: arrays | {"tokens_2": arrays["tokens_2"][None]},
        shortened("tokens_2"),
        shortened("starts_3"),
        shortened("counts_3"),
        changed("starts_2", 0, 1),
        changed("starts_2", -1, 2),
        changed("starts_2", 1, 200),
        changed("counts_1", 0, 0),
        changed("tokens_3", 0, 5),
        changed("tokens_2", slice(None), 1),
        changed("tokens_1", -1, 3),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, table: NgramTable, change) -> None:
    path = write(tmp_path / "table.npz", table)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    with pytest.raises(BundleError, match=r"table\.npz .*python -m tools\.ngram"):
        read_table(path, fingerprint=FINGERPRINT, vocabulary=5)


def test_no_pickle_is_read(tmp_path: Path, table: NgramTable) -> None:
    path = write(tmp_path / "table.npz", table)
    np.savez(path, format=np.array([{"a": 1}], object))
    with pytest.raises(BundleError, match="cannot be read"):
        read_table(path, fingerprint=FINGERPRINT, vocabulary=5)
