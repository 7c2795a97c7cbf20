"""N-gram drafter: draws from the law of a counted table, the lowest stage of staged drafting.

In: the sequence so far. Out: tokens with the laws they were drawn from, so that a level above
judges them as it judges a draft model's. Costs no model pass and keeps nothing between rounds.
Source: Spector and Ré, staged speculative decoding, arXiv 2308.04623.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ..law import Law, draw
from ..ngram import NgramTable
from ..noise import Noise, Purpose
from .base import Proposal

_MOST_CERTAIN = 1 - 1e-6


class SparseSampler(Protocol):
    """What makes laws of the table's probabilities: `runtime.sampling.Sampler`."""

    def sparse_law(
        self, ids: NDArray[Any], weights: NDArray[Any], prefix: Sequence[int], length: int
    ) -> Law | None:
        """Return the law over `ids`, or `None` when every one of them is banned."""
        ...


class NgramDrafter:
    """Drafts from a table until a token is reached that it never saw before another.

    Args:
        table: the counted n-grams.
        sampler: the settings of the request, made for this drafter alone.
    """

    name = "ngram"

    def __init__(self, table: NgramTable, sampler: SparseSampler) -> None:
        self._table = table
        self._sampler = sampler

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:
        """Return at most `k` tokens.

        A token's signal is the log-odds of the likeliest token at its place, not of itself: what is
        decided by it is decided by the law.
        """
        proposal = Proposal([], [], self.name)
        sequence = list(context)
        for position in range(len(context), len(context) + k):
            found = self._table.follow(sequence[-self._table.order + 1 :])
            if found is None:
                break
            ids, weights, share = found
            law = self._sampler.sparse_law(ids, weights, sequence, position)
            if law is None:
                break
            token = draw(law, noise.inside(position).uniform(position, Purpose.EMIT))
            sequence.append(token)
            proposal.tokens.append(token)
            proposal.laws.append(law)
            proposal.signals.append(_log_odds(float(share * weights.max())))
        return proposal

    def rewind(self, *, to: int) -> None:
        """Nothing is remembered."""


def _log_odds(chance: float) -> float:
    chance = min(chance, _MOST_CERTAIN)
    return math.log(chance / (1 - chance))
