"""The contract of a drafter, and the drafter that never proposes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..law import Law
from ..noise import Noise


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and for each the law q it was drawn from.

    A drafter that draws nothing (a lookup) names point masses. Only the very array a token was
    drawn from may stand here: exactness rests on it.

    `drafter` is the name of what proposed. `signals`, one per token or none at all, say how sure it
    was of each token; their scale is the drafter's own, a greater number is surer. They only help
    to choose how far to draft.
    """

    tokens: list[int]
    laws: list[Law]
    drafter: str = "none"
    signals: list[float] = field(default_factory=list)

    def extend(self, other: "Proposal") -> None:
        """Take over the tokens of `other`, which was proposed to follow these."""
        self.tokens.extend(other.tokens)
        self.laws.extend(other.laws)
        self.signals.extend(other.signals)


class Drafter(Protocol):
    """Anything that proposes tokens. It may keep what it learnt of the sequence so far."""

    name: str

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:
        """Return at most `k` tokens to follow `context`; none is a fair answer.

        How many are returned may depend on the context, on earlier proposed tokens and on the law
        at a place, never on the token drawn at that place: else the output is biased.

        Args:
            context: the whole sequence so far; it extends the last one up to any rewind.
            k: the most tokens wanted, ≥ 1.
            noise: the draws of this round.
        """
        ...

    def rewind(self, *, to: int) -> None:
        """Forget everything about positions from `to` on: the tokens there did not stay."""
        ...


class NoDrafter:
    """Proposes nothing: a round over it is a plain decoding step."""

    name = "none"

    def propose(self, _context: Sequence[int], _k: int, *, noise: Noise) -> Proposal:  # noqa: ARG002 - part of the contract
        """Return no tokens."""
        return Proposal([], [])

    def rewind(self, *, to: int) -> None:
        """Nothing is remembered."""
