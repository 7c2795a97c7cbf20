"""How likely a drafted token is to stay, learnt from what stayed before.

In: a drafter's signal for a token, and later whether the token was accepted. Out: a probability.
A logistic curve over the signal starts from what is usual for the kind of drafter and follows the
text at hand, forgetting slowly. No randomness and no clock: the same rounds teach the same.
"""

import math
from dataclasses import dataclass

# Old rounds fade by this factor a token: about the last hundred count.
_KEPT = 0.99
_STEEPEST = 30.0  # exp() of more tells nothing


@dataclass(frozen=True)
class Prior:
    """Log-odds of acceptance = `offset` + `slope` · signal, held with the weight of some tokens."""

    offset: float
    slope: float
    offset_weight: float
    slope_weight: float


class Survival:
    """Acceptance as a function of a signal: Bayesian logistic regression, one step per token.

    The state is the curve's two parameters and their precision (inverse covariance); each token is
    one Newton step on its own likelihood, and the precision fades towards the prior's.
    Source: online Laplace approximation, Chapelle & Li, NIPS 2011, algorithm 3, with forgetting.
    """

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._offset, self._slope = prior.offset, prior.slope
        # Precision [[a, b], [b, c]] of (offset, slope).
        self._a, self._b, self._c = prior.offset_weight, 0.0, prior.slope_weight

    def probability(self, signal: float) -> float:
        """Return the probability that a token with this signal is accepted, if all before are."""
        odds = self._offset + self._slope * signal
        return 1.0 / (1.0 + math.exp(-max(-_STEEPEST, min(_STEEPEST, odds))))

    def learn(self, signal: float, *, accepted: bool) -> None:
        """Take in one tested token."""
        prior = self._prior
        chance = self.probability(signal)
        weight = chance * (1.0 - chance)
        self._a += (1 - _KEPT) * (prior.offset_weight - self._a) + weight
        self._b += (1 - _KEPT) * -self._b + weight * signal
        self._c += (1 - _KEPT) * (prior.slope_weight - self._c) + weight * signal * signal
        error = accepted - chance
        size = self._a * self._c - self._b * self._b
        self._offset += error * (self._c - self._b * signal) / size
        self._slope += error * (self._a * signal - self._b) / size
