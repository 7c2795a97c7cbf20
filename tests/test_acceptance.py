"""The rules in floating point: shapes, supports, ties, underflow, and nearness to the rationals."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.acceptance import RULES, left_over, residual
from runtime.law import Law

V = 6
NAMES = st.sampled_from(["token", "block"])
SHARES = st.lists(st.integers(0, 5), min_size=V, max_size=V).filter(any)
# Shares down to the smallest double, where a quotient of two of them overflows.
TINY = st.lists(st.sampled_from([0.0, 5e-324, 1e-310, 1e-30, 0.1, 1.0]), min_size=V, max_size=V)


def law(shares):
    shares = np.array(shares, np.float64)
    return Law(shares / shares.sum())


def exact_law(shares):
    return Law(np.array([Fraction(share, sum(shares)) for share in shares]))


def sparse(dense):
    ids = np.flatnonzero(dense.weights)
    return Law(dense.weights[ids], ids)


def full(any_law):
    return any_law.over(Law(np.zeros(V)))


@st.composite
def rounds(draw, shares=SHARES):
    """Return the shares of p₁…p_k₊₁ and q₁…q_k, and tokens that q can have drawn."""
    k = draw(st.integers(0, 4))
    q = [draw(shares.filter(any)) for _ in range(k)]
    # Equal laws, and laws that differ in one place, are where rounding could matter.
    p = [draw(st.one_of(shares.filter(any), st.just(q[i]))) for i in range(k)]
    p.append(draw(shares.filter(any)))
    tokens = [draw(st.sampled_from([x for x in range(V) if np.float64(row[x]) > 0])) for row in q]
    return p, q, tokens


@given(name=NAMES, round_=rounds(st.one_of(SHARES, TINY)))
def test_shapes_ranges_and_supports(name, round_):
    p, q, tokens = [law(row) for row in round_[0]], [law(row) for row in round_[1]], round_[2]
    assume(all(q[i].weights[x] > 0 for i, x in enumerate(tokens)))
    rule = RULES[name]
    h = rule.thresholds(p, q, tokens)
    assert len(h) == len(tokens)
    assert all(0 <= threshold <= 1 for threshold in h)  # false for NaN
    for accepted in range(len(tokens) + 1):
        last = rule.last(p, q, tokens, accepted)
        weights = full(last)
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(1)
        assert not weights[p[accepted].weights == 0].any()


@given(name=NAMES, round_=rounds(), data=st.data())
def test_a_proposal_with_an_impossible_token_ends_before_it(name, round_, data):
    p, q, tokens = [list(row) for row in round_[0]], round_[1], round_[2]
    assume(tokens)
    place = data.draw(st.integers(0, len(tokens) - 1))
    p[place][tokens[place]] = 0
    p[place][(tokens[place] + 1) % V] += 1
    h = RULES[name].thresholds([law(row) for row in p], [law(row) for row in q], tokens)
    held = [threshold > 0 for threshold in h]  # the luckiest draws
    assert RULES[name].accepted(held) <= place


@given(name=NAMES, held=st.lists(st.booleans(), max_size=6))
def test_accepted_counts_the_first_run_or_the_longest_part(name, held):
    accepted = RULES[name].accepted(held)
    if name == "token":
        assert held[:accepted] == [True] * accepted
        assert accepted == len(held) or not held[accepted]
    else:
        assert not any(held[accepted:])
        assert accepted == 0 or held[accepted - 1]


def reference_round(name, p, q, tokens):
    """Return h₁…h_k, the masses hᵢ divides by, and the last laws, by the papers' own formulas."""
    k = len(tokens)
    weights, h, masses, lasts = [Fraction(1)], [], [], []
    for i, x in enumerate(tokens):
        weights.append(min(Fraction(1), weights[-1] * p[i][x] / q[i][x]))
    for i in range(k + 1):
        scale = Fraction(1) if name == "token" else weights[i]
        gap = (
            [max(Fraction(0), scale * a - b) for a, b in zip(p[i], q[i], strict=True)]
            if i < k
            else p[i]
        )
        lasts.append([share / sum(gap) for share in gap] if sum(gap) else p[i])
        if name == "block" and 0 < i < k:
            masses.append(sum(gap) + 1 - weights[i])
            h.append(sum(gap) / masses[-1] if masses[-1] else Fraction(1))
    if name == "token":
        h = [min(Fraction(1), p[i][x] / q[i][x]) for i, x in enumerate(tokens)]
    elif k:
        h.append(weights[k])
    return h, [*masses, Fraction(1)] if name == "block" else [Fraction(1)] * k, lasts


@given(name=NAMES, round_=rounds())
def test_thresholds_and_last_laws_are_the_papers(name, round_):
    p, q, tokens = round_
    exact = [[[Fraction(share, sum(row)) for share in row] for row in rows] for rows in (p, q)]
    expected_h, masses, lasts = reference_round(name, *exact, tokens)
    rule = RULES[name]
    exact_p, exact_q = [exact_law(row) for row in p], [exact_law(row) for row in q]
    assert list(rule.thresholds(exact_p, exact_q, tokens)) == expected_h
    p, q = [law(row) for row in p], [law(row) for row in q]
    h = rule.thresholds(p, q, tokens)
    for i in range(len(tokens)):
        # Near 0/0 any threshold serves: the events that differ have probability near 0.
        if masses[i] > Fraction(1, 1000):
            assert float(abs(Fraction(float(h[i])) - expected_h[i])) <= 1e-12
    for accepted, expected in enumerate(lasts):
        assert list(full(rule.last(exact_p, exact_q, tokens, accepted))) == expected
        gap = left_over(p[accepted], q[accepted], scale=1) if accepted < len(tokens) else 1
        if gap > 1e-3 and name == "token":
            last = full(rule.last(p, q, tokens, accepted))
            assert last == pytest.approx([float(share) for share in expected], abs=1e-12)


@given(name=NAMES, round_=rounds())
def test_sparse_laws_give_what_dense_ones_give(name, round_):
    p, q, tokens = [law(row) for row in round_[0]], [law(row) for row in round_[1]], round_[2]
    rule = RULES[name]
    h = rule.thresholds(p, q, tokens)
    for sparse_p, sparse_q in ((True, True), (True, False), (False, True)):
        other_p = [sparse(row) for row in p] if sparse_p else p
        other_q = [sparse(row) for row in q] if sparse_q else q
        other_h = rule.thresholds(other_p, other_q, tokens)
        assert np.allclose(np.array(other_h, float), np.array(h, float), rtol=0, atol=1e-12)
        for accepted in range(len(tokens) + 1):
            expected = full(rule.last(p, q, tokens, accepted))
            last = rule.last(other_p, other_q, tokens, accepted)
            assert full(last) == pytest.approx(expected, abs=1e-9)


@given(name=NAMES, shares=SHARES, k=st.integers(1, 4), data=st.data())
def test_the_targets_own_proposal_is_kept_whole(name, shares, k, data):
    own = law(shares)
    tokens = data.draw(
        st.lists(st.sampled_from([x for x in range(V) if shares[x]]), min_size=k, max_size=k)
    )
    h = RULES[name].thresholds([own] * (k + 1), [own] * k, tokens)
    assert list(h) == [1] * k


@given(shares=SHARES)
def test_a_residual_without_mass_is_the_target_itself(shares):
    p = law(shares)
    assert residual(p, p, scale=1) is p
    assert residual(p, sparse(p), scale=0.5) is p


@given(shares=SHARES, token=st.integers(0, V - 1))
def test_a_rejected_point_mass_is_replaced_by_another_token(shares, token):
    assume(sum(map(bool, shares)) > 1)
    for name in ("token", "block"):
        last = RULES[name].last([law(shares)] * 2, [Law.point(token)], [token], 0)
        expected = [0 if x == token else share for x, share in enumerate(shares)]
        assert full(last) == pytest.approx(np.array(expected) / sum(expected))


@given(p=SHARES, q=SHARES, wide=st.integers(1, V), sparse_p=st.booleans(), sparse_q=st.booleans())
def test_laws_of_different_widths_are_padded_with_zeros(p, q, wide, sparse_p, sparse_q):
    assume(any(q[:wide]))
    narrow = law(q[:wide])
    expected = law([*q[:wide], *[0] * (V - wide)])
    wide_law, other = law(p), sparse(narrow) if sparse_q else narrow
    seen = sparse(wide_law) if sparse_p else wide_law
    assert seen.weights.shape == other.over(seen).shape
    assert np.array_equal(other.over(seen), expected.over(seen))
    back = wide_law.over(narrow)
    assert np.array_equal(sparse(wide_law).over(narrow), back)
    assert np.array_equal(back, wide_law.weights[:wide])
    for name in ("token", "block"):
        last = RULES[name].last([seen] * 2, [other], [int(np.flatnonzero(q[:wide])[0])], 0)
        assert full(last).sum() == pytest.approx(1)


def test_match_keeps_tokens_while_they_are_the_targets_choice():
    rule = RULES["match"]
    p = [Law.point(token) for token in (3, 1, 4, 1)]
    h = rule.thresholds(p, [Law.point(0)] * 3, [3, 1, 5])
    assert h == [1, 1, 0]
    held = [np.nextafter(1, 0) < threshold for threshold in h]
    assert rule.accepted(held) == 2
    assert rule.accepted([True, False, True]) == 1
    assert rule.last(p, [], [3, 1, 5], 2).token_at(0) == 4


def test_a_token_that_the_draft_all_but_excluded_is_kept():
    # p/q is beyond the largest double here; the product with an earlier 0 must stay 0.
    p = [Law(np.array([0.0, 1.0])), Law(np.array([0.5, 0.5])), Law(np.array([1.0, 0.0]))]
    q = [Law(np.array([0.5, 0.5])), Law(np.array([1 - 1e-16, 5e-324]))]
    assert RULES["token"].thresholds(p, q, [0, 1]) == [0, 1]
    assert RULES["block"].thresholds(p, q, [0, 1]) == [0, 0]
    assert RULES["block"].thresholds(p, q, [1, 1])[1] == 1
