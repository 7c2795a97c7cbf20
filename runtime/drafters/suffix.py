"""Suffix drafter: propose what most often followed the longest suffix that occurred before.

In: the sequence so far. Out: a point-mass proposal, the longer the longer the match. Memory is
bounded: when the index is full it is built anew over the newest half.
"""

import math
from collections.abc import Sequence

from ..law import Law
from ..noise import Noise
from .automaton import SuffixAutomaton
from .base import Proposal


class SuffixDrafter:
    """Copies likely continuations of what the sequence ends with.

    Args:
        shortest: a match of fewer tokens proposes nothing.
        capacity: most tokens in the index (about half a kilobyte each).
    """

    name = "suffix"

    def __init__(self, *, shortest: int = 2, capacity: int = 1 << 16) -> None:
        self._shortest = shortest
        self._capacity = capacity
        self._index = SuffixAutomaton()
        self._dropped = 0  # tokens at the sequence's start that left the index

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:  # noqa: ARG002 - draws nothing
        """Return at most as many tokens as the match is long, or nothing.

        A token's signal is the logarithm of how many tokens match if all before it stay.
        """
        self._append(context)
        index = self._index
        state = index.match
        length = index.longest[state]
        tokens: list[int] = []
        if length >= self._shortest:
            while len(tokens) < min(k, length) and (step := index.continuation(state)):
                token, state = step
                tokens.append(token)
        laws = [Law.point(token) for token in tokens]
        return Proposal(tokens, laws, self.name, [math.log(length + i) for i in range(len(tokens))])

    def rewind(self, *, to: int) -> None:
        """Forget the tokens from position `to` on."""
        kept = max(0, to - self._dropped)
        surplus = len(self._index.tokens) - kept
        if surplus > 0 and not self._index.can_take_back(surplus):
            self._rebuild(self._index.tokens[:kept])
        while len(self._index.tokens) > kept:
            self._index.take_back()

    def _append(self, context: Sequence[int]) -> None:
        for token in context[self._dropped + len(self._index.tokens) :]:
            self._index.append(token)
        surplus = len(self._index.tokens) - self._capacity
        if surplus > 0:
            cut = surplus + self._capacity // 2
            self._dropped += cut
            self._rebuild(self._index.tokens[cut:])

    def _rebuild(self, tokens: Sequence[int]) -> None:
        self._index = SuffixAutomaton()
        for token in tokens:
            self._index.append(token)
