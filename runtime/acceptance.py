"""The law of acceptance: which drafted tokens stay, and what replaces the first that does not.

A round drafts tokens x₁…x_k, token xᵢ drawn from qᵢ, and verifies them in one target pass, which
gives p₁…p_k₊₁. Words used here and everywhere:

    accepted   drafted and kept                    recovered  replaces the first rejected token
    bonus      drawn after a fully kept proposal   tested     accepted, or the first rejected
    law        a probability vector after all sampling settings; p the target's, q the drafter's

Each rule is three pure functions of (p, q, tokens): the thresholds h₁…h_k that uniform draws are
compared with, how many tokens stay given which comparisons held, and the law of the token after
them. Randomness enters in `speculate` alone, so that a rule can be enumerated with rationals.

A rule is exact iff for every prefix Pr(L ≥ i, x₁…xᵢ) = Pr(L ≥ i, x₁…xᵢ₋₁) · p(xᵢ | x₁…xᵢ₋₁), L
being the number of emitted tokens; `tests/test_acceptance_law.py` checks this with difference 0.
Arrays are 0-based: `p[i]`, `q[i]` and `tokens[i]` stand at the same place.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .law import Law

Laws = Sequence[Law]


class Rule(Protocol):
    """How drafted tokens are tested against the target's laws."""

    name: str

    def thresholds(self, p: Laws, q: Laws, tokens: Sequence[int], /) -> Sequence[Any]:
        """Return h: the i-th test holds when a uniform draw is below h[i]; `[k]`."""
        ...

    def accepted(self, held: Sequence[bool]) -> int:
        """Return how many drafted tokens stay, given which tests held."""
        ...

    def last(self, p: Laws, q: Laws, tokens: Sequence[int], accepted: int, /) -> Law:
        """Return the law of the token after the accepted ones: recovered, or bonus."""
        ...


class TokenRule:
    """Test each token by itself, stop at the first rejection.

    Source: Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.
    """

    name = "token"

    def thresholds(self, p: Laws, q: Laws, tokens: Sequence[int], /) -> Sequence[Any]:
        """hᵢ = min(1, pᵢ(xᵢ) / qᵢ(xᵢ))."""
        return [
            _capped_ratio(p[i].probability(x), q[i].probability(x)) for i, x in enumerate(tokens)
        ]

    def accepted(self, held: Sequence[bool]) -> int:
        """Return the number of tests before the first that failed."""
        return next((i for i, held_here in enumerate(held) if not held_here), len(held))

    def last(self, p: Laws, q: Laws, tokens: Sequence[int], accepted: int, /) -> Law:
        """norm(max(0, p − q)) at the first rejection, else the bonus from p."""
        if accepted == len(tokens):
            return p[accepted]
        return residual(p[accepted], q[accepted], scale=1)


class BlockRule:
    """Test the proposal as a whole, keep the longest part whose test held.

    Never keeps fewer tokens on average than the token rule. With X the proposal and P₀ = 1:

        Pᵢ = min(1, Pᵢ₋₁ · pᵢ(Xᵢ) / qᵢ(Xᵢ))                         weight of the first i tokens
        zᵢ = Σₓ max(0, Pᵢ · pᵢ₊₁(x) − qᵢ₊₁(x))                      mass the draft leaves over
        hᵢ = zᵢ / (zᵢ + 1 − Pᵢ) for i < k (1 for 0/0),  h_k = P_k

    Source: Sun et al., Block Verification, arXiv 2403.10444, algorithm 2.
    """

    name = "block"

    def thresholds(self, p: Laws, q: Laws, tokens: Sequence[int], /) -> Sequence[Any]:
        """Return h₁…h_k as above."""
        weights = _prefix_weights(p, q, tokens)  # P₁…P_k
        inner = [
            _fraction(left_over(p[i], q[i], scale=weights[i - 1]), 1 - weights[i - 1])
            for i in range(1, len(tokens))
        ]
        return [*inner, *weights[-1:]]

    def accepted(self, held: Sequence[bool]) -> int:
        """Return the number of tokens up to the last test that held."""
        return max((i + 1 for i, held_here in enumerate(held) if held_here), default=0)

    def last(self, p: Laws, q: Laws, tokens: Sequence[int], accepted: int, /) -> Law:
        """norm(max(0, P_τ · p − q)) after τ < k accepted tokens, else the bonus from p."""
        if accepted == len(tokens):
            return p[accepted]
        scale = _prefix_weights(p, q, tokens[:accepted])[-1] if accepted else 1
        return residual(p[accepted], q[accepted], scale=scale)


class MatchRule:
    """Keep drafted tokens while they equal the target's own choices.

    For laws that are point masses: the arg max when greedy, or the winner of the noise that draft
    and target share when coupled. The text is then the target's own, whatever was drafted.
    """

    name = "match"

    def thresholds(self, p: Laws, _q: Laws, tokens: Sequence[int], /) -> Sequence[Any]:
        """1 where the drafted token is the target's choice, else 0."""
        return [int(p[i].token_at(0) == x) for i, x in enumerate(tokens)]

    def accepted(self, held: Sequence[bool]) -> int:
        """Return the number of tests before the first that failed."""
        return TokenRule().accepted(held)

    def last(self, p: Laws, _q: Laws, _tokens: Sequence[int], accepted: int, /) -> Law:
        """Return the target's choice after the accepted tokens."""
        return p[accepted]


RULES: dict[str, Rule] = {rule.name: rule for rule in (TokenRule(), BlockRule(), MatchRule())}


def left_over(p: Law, q: Law, *, scale: Any) -> Any:
    """Return Σₓ max(0, scale · p(x) − q(x))."""
    return _gap(p, q, scale).sum()


def residual(p: Law, q: Law, *, scale: Any) -> Law:
    """Return norm(max(0, scale · p − q)).

    Rounding can leave no mass where p and q agree to the last bit; then p itself is the limit.
    """
    gap = _gap(p, q, scale)
    mass = gap.sum()
    if not mass > 0:
        return p
    gap /= mass
    return Law(gap, p.ids)


def _gap(p: Law, q: Law, scale: Any) -> Any:
    gap = scale * p.weights  # [n], the only new array: the vocabulary may be long
    gap -= q.over(p)
    return np.maximum(gap, 0, out=gap)


def _capped_ratio(part: Any, whole: Any) -> Any:
    """Return min(1, part / whole) without a quotient that no float holds."""
    return part / whole if part < whole else 1


def _prefix_weights(p: Laws, q: Laws, tokens: Sequence[int]) -> list[Any]:
    weights: list[Any] = []
    for i, token in enumerate(tokens):
        mass = (weights[-1] if weights else 1) * p[i].probability(token)
        weights.append(_capped_ratio(mass, q[i].probability(token)))
    return weights


def _fraction(part: Any, rest: Any) -> Any:
    return part / (part + rest) if part + rest > 0 else 1
