"""Several drafters side by side: the first that has something to propose.

Which one proposes depends on the tokens before the proposal alone, so the output's law is
untouched. A model among them catches up with the rounds that it sat out when it is asked again.
"""

from collections.abc import Sequence

from ..noise import Noise
from .base import Drafter, Proposal


class FirstOf:
    """Ask each drafter in turn until one proposes.

    Args:
        drafters: the first is preferred; at least one.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.name = "|".join(drafter.name for drafter in drafters)
        self._drafters = drafters

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:
        """Return the first proposal that is not empty, or an empty one."""
        for drafter in self._drafters:
            proposal = drafter.propose(context, k, noise=noise)
            if proposal.tokens:
                return proposal
        return Proposal([], [])

    def rewind(self, *, to: int) -> None:
        """Rewind every drafter."""
        for drafter in self._drafters:
            drafter.rewind(to=to)
