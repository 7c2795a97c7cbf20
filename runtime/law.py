"""A probability vector over the vocabulary, dense or sparse, and how to draw from it.

Laws hold float64 in the product and exact rationals in the proofs: nothing here rounds on its own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Law:
    """Probabilities of the next token.

    `weights` `[n]` are non-negative and sum to one; `ids` `[n]` int64, ascending, are the tokens
    they belong to, every other token having probability zero. `ids` is `None` when the law is
    dense: then `weights[x]` is the probability of token x. `certainty`, where it is known, is the
    probability that the model gave to the token of a point law before a choice made it certain.
    """

    weights: NDArray[Any]
    ids: NDArray[np.int64] | None = None
    certainty: float | None = None

    @classmethod
    def point(cls, token: int, certainty: float | None = None) -> "Law":
        """Return the law that always gives `token`."""
        return cls(np.ones(1), np.array([token], np.int64), certainty)

    def probability(self, token: int) -> Any:
        """Return the probability of one token."""
        if self.ids is None:
            return self.weights[token] if token < len(self.weights) else 0
        place = int(self.ids.searchsorted(token))
        hit = place < len(self.ids) and self.ids[place] == token
        return self.weights[place] if hit else 0

    def over(self, other: "Law") -> NDArray[Any]:
        """Return this law's probabilities of the tokens that `other` lists, in its order.

        The vocabularies may differ in size: a token that is unknown here has probability zero.
        """
        if other.ids is None:
            return self._dense(len(other.weights))
        if self.ids is None:
            if other.ids[-1] >= len(self.weights):
                return self._dense(int(other.ids[-1]) + 1)[other.ids]
            return self.weights[other.ids]
        places = self.ids.searchsorted(other.ids).clip(max=len(self.ids) - 1)
        return np.where(self.ids[places] == other.ids, self.weights[places], 0)

    def token_at(self, place: int) -> int:
        """Return the token whose probability is `weights[place]`."""
        return place if self.ids is None else int(self.ids[place])

    def _dense(self, size: int) -> NDArray[Any]:
        if self.ids is None and len(self.weights) == size:
            return self.weights
        dense = np.zeros(size, self.weights.dtype)
        if self.ids is None:
            dense[: len(self.weights)] = self.weights[:size]
        else:
            known = self.ids < size
            dense[self.ids[known]] = self.weights[known]
        return dense


def draw(law: Law, uniform: float) -> int:
    """Return the token that `uniform` in [0, 1) falls on: inversion in the order of the ids.

    A token of probability zero is never returned, whatever the rounding.
    """
    weights = law.weights
    starts = np.arange(0, len(weights), _BLOCK)
    ends = np.cumsum(np.add.reduceat(weights, starts))  # mass up to the end of each block
    goal = uniform * ends[-1]
    block = min(int(ends.searchsorted(goal, side="right")), len(ends) - 1)
    first = block * _BLOCK
    inside = weights[first : first + _BLOCK]
    goal -= ends[block - 1] if block else 0.0
    place = int(np.cumsum(inside).searchsorted(goal, side="right"))
    if place == len(inside):  # the block's mass rounded down: its last possible token
        place = int(np.flatnonzero(inside)[-1])
    return law.token_at(first + place)


def race(law: Law, exponentials: NDArray[np.float64]) -> int:
    """Return the token that wins the exponential race: arg min over x of E(x) / p(x).

    With independent standard exponentials the winner has the law `law`; it is the arg max of
    log p + Gumbel noise (Gumbel-max, arXiv 2408.07978). Equal times go to the lowest id.
    """
    clocks = exponentials if law.ids is None else exponentials[law.ids]
    with np.errstate(divide="ignore", over="ignore"):  # both mean: never
        return law.token_at(int(np.argmin(clocks[: len(law.weights)] / law.weights)))
