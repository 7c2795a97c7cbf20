"""Models from tables: laws that depend on the context, without a graph.

`TableModel` keeps the contract of `runtime.model.Model` and complains when a caller breaks it: the
sequence must extend what was fed, the context window holds, a row needs a token that is fed now.
"""

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from runtime.law import Law


def random_weights(seed: int, context: Sequence[int], vocabulary: int, *, zeros: bool) -> list[int]:
    """Return small whole weights, a function of (seed, context); some are 0 when `zeros`."""
    rng = random.Random(f"{seed}:{list(context)}")
    low = 0 if zeros else 1
    weights = [
        rng.randint(low, 4) if rng.random() < 0.7 else rng.randint(low, 1)
        for _ in range(vocabulary)
    ]
    if not any(weights):
        weights[rng.randrange(vocabulary)] = 1
    return weights


class TableModel:
    """A model whose law after each context comes from a function of (seed, context).

    With `exact` the rows hold the probabilities themselves as rationals (for `ExactSampler`),
    otherwise the logarithms as float32 logits.
    """

    def __init__(
        self,
        seed: int,
        *,
        vocabulary: int = 3,
        context: int = 64,
        zeros: bool = False,
        exact: bool = False,
        order: int = 2,
    ) -> None:
        self.seed, self.vocabulary, self.context = seed, vocabulary, context
        self.zeros, self.exact, self.order = zeros, exact, order
        self.fed: list[int] = []
        self.passes = 0
        self.has_even_widths = False

    @property
    def length(self) -> int:
        return len(self.fed)

    def law(self, context: Sequence[int]) -> list[Fraction]:
        weights = random_weights(
            self.seed, list(context)[-self.order :], self.vocabulary, zeros=self.zeros
        )
        return [Fraction(weight, sum(weights)) for weight in weights]

    def score(self, tokens: Sequence[int], rows: int) -> Any:
        assert 1 <= rows <= len(tokens) <= self.context
        self.fed = self.fed[: len(tokens) - rows]
        assert list(tokens[: len(self.fed)]) == self.fed, "a stale token stayed in the cache"
        assert all(0 <= token < self.vocabulary for token in tokens)
        self.fed = list(tokens)
        self.passes += 1
        laws = [self.law(tokens[: len(tokens) - rows + 1 + row]) for row in range(rows)]
        if self.exact:
            return np.array(laws, dtype=object)
        with np.errstate(divide="ignore"):
            return np.log(np.array(laws, dtype=np.float64)).astype(np.float32)

    def rewind(self, *, to: int) -> None:
        del self.fed[to:]

    def begin(self, tokens: Sequence[int], *, even_widths: bool, best: object = None) -> None:
        while self.fed != list(tokens[: len(self.fed)]):
            self.fed.pop()


class ExactSampler:
    """Takes rows of an exact `TableModel`, or exact sparse weights, as the laws they are."""

    def sparse_law(self, ids: Any, weights: Any, _prefix: Sequence[int], _length: int) -> Law:
        return Law(weights, ids)

    def laws(self, rows: Any, _prefix: Sequence[int]) -> list[Law]:
        return [Law(row) for row in rows]
