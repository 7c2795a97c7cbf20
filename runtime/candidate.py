"""A drafter on offer to a controller: what its signals are worth, and when it is asked again.

In: its proposals and what became of them. Out: chances of tokens. What it starts with is what was
usual; what its rounds taught counts more and more.
"""

from dataclasses import dataclass

from .drafters import Drafter, Proposal
from .survival import Prior, Survival

_SHORTEST_REST, _LONGEST_REST = 8, 64  # rounds
_FORECAST_TOKENS = 64.0  # as many tested tokens make the forecast of a model's next one
_PRIOR_TOKENS = 10.0  # its first guess weighs as much as so many

# What was usual over chat, code, editing, arithmetic, translation, summaries and questions with a
# 135M and a 1.5B target: a draft's own log-odds nearly are those of acceptance, when it chooses its
# best token; a drawn token stays more often than its probability says. A copier's odds grow with
# the length of the match.
COPIER_PRIOR = Prior(offset=-0.4, slope=1.05, offset_weight=4.0, slope_weight=8.0)
MODEL_PRIOR = Prior(offset=-0.6, slope=1.05, offset_weight=2.0, slope_weight=8.0)
NGRAM_PRIOR = Prior(offset=-1.2, slope=0.4, offset_weight=2.0, slope_weight=8.0)
SAMPLED_PRIOR = Prior(offset=1.7, slope=0.3, offset_weight=2.0, slope_weight=8.0)
MODEL_ACCEPTANCE = 0.75
WINDOW_ACCEPTANCE = 0.65  # of a draft that sees only the prompt's end
NGRAM_ACCEPTANCE = 0.2


@dataclass
class Candidate:
    """A drafter on offer, and what its rounds taught.

    Attributes:
        drafter: proposes.
        survival: what its signals mean.
        acceptance: forecast for a token whose signal is not known yet.
        tested: tokens that made the forecast.
        rested: rounds since it was last used.
        rest: rounds that it rests when it does not pay.
        missed: seconds that it is foreseen to have gained so far, had it read the prompt.
    """

    drafter: Drafter
    survival: Survival
    acceptance: float = MODEL_ACCEPTANCE
    tested: float = _PRIOR_TOKENS
    rested: int = 0
    rest: int = _SHORTEST_REST
    missed: float = 0.0

    def chances(self, proposal: Proposal) -> list[float]:
        """Return for each token the probability that it stays if all before it do."""
        return [self.survival.probability(signal) for signal in proposal.signals]

    def foresee(self, offer: Proposal, most: int) -> list[float]:
        """Return the chances of drawn tokens, and the forecast for those after them."""
        known = self.chances(offer)
        return known and [*known, *[self.acceptance] * (most - len(known))]

    def learn(self, drafted: Proposal, accepted: int) -> None:
        """Take in what became of a proposal."""
        for place, signal in enumerate(drafted.signals[: accepted + 1]):
            stayed = place < accepted
            self.survival.learn(signal, accepted=stayed)
            self.tested = min(self.tested + 1, _FORECAST_TOKENS)
            self.acceptance += (stayed - self.acceptance) / self.tested
        self.rest = _SHORTEST_REST if accepted else min(2 * self.rest, _LONGEST_REST)
