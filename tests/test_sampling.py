"""From logits to laws and draws, against dense and slow references of the documented steps."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.errors import ForerunError, RequestError
from runtime.law import Law, draw, race
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling, make_law

V = 12
LEVELS = st.sampled_from([-np.inf, -3.0, 0.0, 1.0, 2.5])  # many ties
ROWS = st.one_of(
    st.lists(LEVELS, min_size=1, max_size=V),
    # Steps of 1/64, so that unequal logits are unequal shares at every temperature.
    st.lists(st.integers(-2000, 2000).map(lambda n: n / 64), min_size=1, max_size=V),
).map(lambda row: np.array(row, np.float32))
TEMPERATURES = st.sampled_from([1e-9, 0.3, 1.0, 1.7, 1e6])
TOP_KS = st.sampled_from([0, 1, 2, 3, 5, V, 10 * V])
TOP_PS = st.sampled_from([0.0, 1e-9, 0.31, 0.77, 0.951, 1.0])  # no sum of equal shares
MIN_PS = st.sampled_from([0.0, 1e-9, 0.0837, 0.5111, 1.0])


def make_sampler(settings, *, prompt_length=0, end_ids=(), vocabulary=V, seed=0):
    return Sampler(
        settings,
        vocabulary=vocabulary,
        prompt_length=prompt_length,
        end_ids=end_ids,
        noise=Noise(seed),
    )


def dense(law, size):
    return law.over(Law(np.zeros(size)))


def reference_law(row, *, temperature, top_k, top_p, min_p):
    row = [float(logit) for logit in row]
    peak = max(row)
    shares = [math.exp((logit - peak) / temperature) for logit in row]
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept = order[: top_k or len(row)]
    total = sum(shares[token] for token in kept)
    law = {token: shares[token] / total for token in kept}
    if top_p < 1:
        mass = 0.0
        for count, token in enumerate(kept, 1):
            mass += law[token]
            if mass >= top_p:
                kept = kept[:count]
                break
    total = sum(law[token] for token in kept)
    law = {token: law[token] / total for token in kept}
    law = {token: share for token, share in law.items() if share >= min_p * max(law.values())}
    total = sum(law.values())
    return [law.get(token, 0.0) / total for token in range(len(row))]


# --- values at the edge ---------------------------------------------------------------------------

ROW_KINDS = {
    "random": np.random.default_rng(0).standard_normal(V).astype(np.float32),
    "all equal": np.full(V, 3.0, np.float32),
    "one infinite": np.array([0, np.inf, *range(V - 2)], np.float32),
    "two infinite": np.array([np.inf, 0, np.inf, *range(V - 3)], np.float32),
    "all filtered but one": np.array([-np.inf] * (V - 1) + [-5.0], np.float32),
    "huge": np.array([3e38, -3e38, *range(V - 2)], np.float32),
}


@pytest.mark.parametrize("kind", ROW_KINDS)
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-9, 1, 1e6, 1e308])
def test_something_survives_every_edge_value(kind, coupled, temperature):
    row = ROW_KINDS[kind]
    for top_p in (0, 1e-9, 1):
        for top_k in (0, 1, V, 10 * V):
            for min_p in (0, 1e-300, 1):
                settings = Sampling(
                    temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, coupled=coupled
                )
                (law,) = make_sampler(settings).laws(row[None], [0])
                weights = dense(law, V)
                assert weights.sum() == pytest.approx(1)
                assert (weights >= 0).all()  # false for NaN
                assert not weights[np.isneginf(row)].any()
                if np.isposinf(row).any():
                    assert not weights[~np.isposinf(row)].any()
                # At the last temperature the shares are equal to the last bit.
                if temperature == 0 or top_k == 1 or (top_p == 0 and temperature < 1e308):
                    assert weights[row.argmax()] == 1


NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
SHIFTS = ("presence_penalty", "frequency_penalty")
NO_NUMBER = (math.nan, math.inf, -math.inf, "0.7", None, True, [1.0], 1j)
OUT_OF_RANGE = [
    *[(name, value) for name in (*NUMBERS, *SHIFTS) for value in NO_NUMBER],
    *[(name, -1) for name in NUMBERS],
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 1e300),
    ("top_p", 1.5),
    ("min_p", 1.5),
    *[(name, value) for name in SHIFTS for value in (-101, 101)],
    *[(name, value) for name in ("top_k", "min_tokens") for value in (-1, 1.0, "3", None, True)],
    *[("logit_bias", value) for value in (None, [1.0], "3", 5)],
    *[("logit_bias", {0: value}) for value in (math.nan, math.inf, "1", None, True, 1e39)],
    *[("logit_bias", {token: 1.0}) for token in (-1, "0", 1.0, True, None)],
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=f"^{name}"):
        Sampling(**{name: value})


def test_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match=f"^logit_bias names token {V}"):
        make_sampler(Sampling(logit_bias={V: 1.0}))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_k": 4},
        {"top_k": 20},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 0.5, "top_k": 6, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_a_law_lists_only_the_tokens_that_few_logits_leave(settings):
    kept = np.array([2, 3, 7, 11, 20, 21, 22, 30, 39])
    narrow = np.random.default_rng(3).standard_normal(len(kept)).astype(np.float32)
    wide = np.full(40, -np.inf, np.float32)
    wide[kept] = narrow
    wanted, found = (make_law(row, Sampling(**settings)) for row in (narrow, wide))
    assert set(found.ids) <= set(kept)
    for place, token in enumerate(kept):
        assert found.probability(token) == wanted.probability(place)


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_without_a_number_are_an_error(temperature):
    sampler = make_sampler(Sampling(temperature=temperature, top_k=2, top_p=0.5))
    one_nan = np.zeros((1, V), np.float32)
    one_nan[0, 5] = np.nan
    for rows in (one_nan, np.full((1, V), np.nan, np.float32), np.full((1, V), -np.inf)):
        with pytest.raises(ForerunError, match="no usable number"):
            sampler.laws(rows, [0])


def test_banning_every_token_is_an_error():
    sampler = make_sampler(Sampling(logit_bias=dict.fromkeys(range(V), -math.inf)))
    with pytest.raises(ForerunError, match="logit_bias"):
        sampler.laws(np.zeros((1, V), np.float32), [0])


# --- truncation -----------------------------------------------------------------------------------


@given(row=ROWS, temperature=TEMPERATURES, top_k=TOP_KS, top_p=TOP_PS, min_p=MIN_PS)
def test_laws_follow_the_reference(row, temperature, top_k, top_p, min_p):
    assume(row.max() > -np.inf)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    law = make_law(row, Sampling(**settings))
    assert law.ids is None or (np.diff(law.ids) > 0).all()
    assert dense(law, len(row)) == pytest.approx(reference_law(row, **settings), abs=1e-12)


@pytest.mark.parametrize("size", [127, 128, 129, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("levels", [1, 7, 100_000])
def test_top_p_over_many_tokens_is_the_full_sort(size, levels):
    rng = np.random.default_rng(size)
    row = (rng.integers(0, levels, size) * (4 / levels)).astype(np.float32)
    for top_p in (1e-9, 0.0313, 0.3377, 0.9111, 1 - 1e-7):
        weights = make_law(row, Sampling()).weights
        order = sorted(range(size), key=lambda token: (-weights[token], token))
        mass = np.cumsum(weights[order])
        kept = sorted(order[: int((mass < top_p).sum()) + 1])
        law = make_law(row, Sampling(top_p=top_p))
        assert law.ids.tolist() == kept


def test_rows_are_left_as_they_were():
    rows = np.random.default_rng(0).standard_normal((2, V)).astype(np.float32)
    before = rows.copy()
    settings = Sampling(repetition_penalty=2, logit_bias={1: 5.0}, min_tokens=4, top_k=3, top_p=0.7)
    for temperature in (0, 1):
        settings = Sampling(**{**vars(settings), "temperature": temperature})
        make_sampler(settings, end_ids=(0,)).laws(rows, [1, 2])
    assert np.array_equal(rows, before)


# --- penalties, bias, end tokens ------------------------------------------------------------------


def reference_row(row, prefix, *, settings, prompt_length, end_ids):
    """The documented steps, each token by itself, counted afresh from the prefix."""
    out = []
    seen, output = Counter(prefix), Counter(prefix[prompt_length:])
    for token, logit in enumerate(float(value) for value in row):
        logit += settings.logit_bias.get(token, 0.0)
        if token in end_ids and len(prefix) - prompt_length < settings.min_tokens:
            logit = -math.inf
        if seen[token]:
            factor = settings.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        if output[token]:
            logit -= settings.presence_penalty + settings.frequency_penalty * output[token]
        out.append(logit)
    return out


PENALTIES = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-0.7, 0.0, 0.5]),
        "frequency_penalty": st.sampled_from([-0.2, 0.0, 0.5]),
        "logit_bias": st.dictionaries(st.integers(0, 5), st.sampled_from([-2.0, 1.5, -math.inf])),
        "min_tokens": st.integers(0, 4),
    }
)


@given(data=st.data(), options=PENALTIES, prompt_length=st.integers(1, 5))
def test_each_row_is_penalised_by_its_own_prefix(data, options, prompt_length):
    settings = Sampling(**options)
    sampler = make_sampler(settings, prompt_length=prompt_length, end_ids=(2, 7))
    tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=6)
    prompt = data.draw(st.lists(st.integers(0, V - 1), min_size=prompt_length, max_size=9))
    prompt = prompt[:prompt_length]
    sequence = prompt
    for _ in range(3):  # rounds, after each of which any part of the output is rejected
        drafted = data.draw(tokens)
        sequence = [*sequence, *drafted]
        count = data.draw(st.integers(1, len(drafted) + 1))
        rows = np.random.default_rng(len(sequence)).standard_normal((count, V)).astype(np.float32)
        laws = sampler.laws(rows, sequence)
        for i, law in enumerate(laws):
            prefix = sequence[: len(sequence) - count + 1 + i]
            row = reference_row(
                rows[i], prefix, settings=settings, prompt_length=prompt_length, end_ids=(2, 7)
            )
            plain = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
            assert dense(law, V) == pytest.approx(reference_law(row, **plain), abs=1e-5)
        sequence = sequence[: data.draw(st.integers(prompt_length, len(sequence)))]


@given(
    data=st.data(),
    options=PENALTIES,
    temperature=st.sampled_from([0, 0.7, 1]),
    top_k=TOP_KS,
    top_p=TOP_PS,
    coupled=st.booleans(),
)
def test_a_sparse_law_is_the_dense_one_where_nothing_else_is_possible(
    data, options, temperature, top_k, top_p, coupled
):
    settings = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, coupled=coupled, **options
    )
    ids = data.draw(st.sets(st.integers(0, V - 1), min_size=1).map(sorted).map(np.array))
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(ids), max_size=len(ids)))
    weights = np.array(weights) / sum(weights)
    prefix = data.draw(st.lists(st.integers(0, V - 1), min_size=4, max_size=9))
    row = np.full(V, -np.inf, np.float32)
    row[ids] = np.log(weights)
    length = len(prefix) - data.draw(st.integers(0, 2))
    sampler = make_sampler(settings, prompt_length=2, end_ids=(1, 3), seed=len(prefix))
    sparse_law = sampler.sparse_law(ids, weights, prefix, length)
    other = make_sampler(settings, prompt_length=2, end_ids=(1, 3), seed=len(prefix))
    if sparse_law is None:
        with pytest.raises(ForerunError, match="no usable number"):
            other.law(row, prefix, length)
        return
    expected = other.law(row, prefix, length)
    assert dense(sparse_law, V) == pytest.approx(dense(expected, V), abs=1e-12)
    assert abs(sparse_law.weights.sum() - 1) < 1e-12
    assert sparse_law.ids is not None
    assert set(sparse_law.ids.tolist()) <= set(ids.tolist())


def test_end_tokens_are_impossible_before_min_tokens():
    sampler = make_sampler(
        Sampling(min_tokens=2, logit_bias={3: 90.0}), prompt_length=1, end_ids=(3,)
    )
    laws = sampler.laws(np.zeros((4, V), np.float32), [0, 1, 2, 4])
    chances = [law.probability(3) for law in laws]
    assert chances[:2] == [0, 0]
    assert chances[2:] == pytest.approx([1, 1])


def test_greedy_takes_the_lowest_of_equal_maxima_after_the_penalties():
    row = np.array([[1.0, 2.0, 2.0, 2.0]], np.float32)
    settings = Sampling(temperature=0, frequency_penalty=0.5, top_k=3, top_p=0.1)
    sampler = make_sampler(settings, vocabulary=4)
    assert sampler.laws(row, [0])[0].token_at(0) == 1
    assert sampler.laws(row, [1])[0].token_at(0) == 2
    assert sampler.laws(row, [1, 1, 2, 2, 3, 3])[0].token_at(0) == 0


# --- drawing --------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 3, 255, 256, 257, 511, 512, 513, 1000])
UNIFORMS = st.one_of(
    st.sampled_from([0.0, 2**-53, 0.5, 1 - 2**-53]),
    st.integers(0, 2**53 - 1).map(lambda n: n * 2**-53),
)


@st.composite
def laws(draw_value):
    """Laws with zeros, tiny weights and whole empty blocks."""
    size = draw_value(SIZES)
    rng = np.random.default_rng(draw_value(st.integers(0, 2**32)))
    weights = rng.random(size) * (rng.random(size) < draw_value(st.sampled_from([0.01, 0.3, 1])))
    weights **= draw_value(st.sampled_from([1, 40]))
    weights[: draw_value(st.integers(0, size))] *= draw_value(st.sampled_from([0, 1e-300, 1]))
    assume(weights.sum() > 0)
    return Law(weights / weights.sum())


def sparse(law):
    ids = np.flatnonzero(law.weights)
    return Law(law.weights[ids], ids)


@given(law=laws(), uniform=UNIFORMS)
def test_draw_is_the_inversion_of_the_law(law, uniform):
    token = draw(law, uniform)
    assert law.probability(token) > 0
    before = sum(map(Fraction, law.weights[:token].tolist()), Fraction(0))
    total = sum(map(Fraction, law.weights.tolist()), Fraction(0))
    slack = Fraction(1, 10**12)
    goal = Fraction(uniform) * total
    assert before - slack <= goal <= before + Fraction(float(law.weights[token])) + slack


@pytest.mark.parametrize("size", [256, 257, 700])
def test_draw_at_the_edge_of_a_block_skips_what_is_impossible(size):
    rng = np.random.default_rng(size)
    for case in range(300):
        weights = rng.random(size) * (rng.random(size) < 0.5)
        weights[rng.integers(0, 256) : 256] = 0  # the block ends in, or is all of, zeros
        weights[case % 3 :: 3] **= 9
        if not weights.any():
            continue
        edge = weights[:256].sum() / weights.sum()
        for uniform in (0.0, np.nextafter(edge, 0), edge, np.nextafter(edge, 1), 1 - 2**-53):
            assert weights[draw(Law(weights), min(float(uniform), 1 - 2**-53))] > 0


def test_draw_passes_over_an_empty_block():
    weights = np.zeros(800)
    weights[[300, 700]] = 0.5
    assert [draw(Law(weights), uniform) for uniform in (0.0, 0.4, 0.5, 0.9)] == [300, 300, 700, 700]


@given(law=laws(), uniform=UNIFORMS)
def test_draw_from_a_sparse_law_is_the_draw_from_the_dense_one(law, uniform):
    token, other = draw(law, uniform), draw(sparse(law), uniform)
    # The blocks of a sparse law end elsewhere, so that sums differ in the last bits.
    low, high = sorted((token, other))
    assert law.weights[low + 1 : high].sum() < 1e-12
    assert low == high or min(abs(np.cumsum(law.weights)[low : high + 1] - uniform)) < 1e-12


@given(law=laws(), seed=st.integers(0, 2**32))
def test_race_is_the_same_sparse_and_dense_and_never_impossible(law, seed):
    exponentials = Noise(seed).exponentials(0, len(law.weights))
    token = race(law, exponentials)
    assert law.probability(token) > 0
    assert race(sparse(law), exponentials) == token
    possible = np.flatnonzero(law.weights)
    assert token == min(possible, key=lambda x: (float(exponentials[x]) / float(law.weights[x]), x))


def test_race_gives_equal_times_to_the_lowest_id():
    assert race(Law(np.array([0.0, 0.5, 0.5])), np.array([1e-9, 1.0, 1.0])) == 1


@pytest.mark.parametrize("size", [1, 5, 256, 257, 700])
def test_a_lattice_of_uniforms_meets_each_token_as_often_as_its_share(size):
    weights = np.random.default_rng(size).random(size) ** 3
    law = Law(weights / weights.sum())
    points = 4000
    counts = Counter(draw(law, (i + 0.5) / points) for i in range(points))
    for token in range(size):
        assert abs(counts[token] - points * law.weights[token]) <= 1 + 1e-6


def test_race_wins_are_roughly_as_frequent_as_the_law_says():
    law = Law(np.array([0.5, 0.0, 0.3, 0.15, 0.05]))
    rounds = 4000
    noise = Noise(3)
    wins = Counter(race(law, noise.exponentials(i, 5)) for i in range(rounds))
    for token, share in enumerate(law.weights):
        spread = math.sqrt(rounds * share * (1 - share))
        assert abs(wins[token] - rounds * share) <= 6 * spread  # and the seed is fixed
