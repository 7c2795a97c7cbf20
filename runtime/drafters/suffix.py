"""Suffix drafter: propose what most often followed the longest suffix that occurred before.

In: the sequence so far. Out: a point-mass proposal, the longer the longer the match. Memory and
the time of every single token are bounded: two indexes overlap by half, and when the older one is
full the younger takes its place, so that nothing is ever built anew.
"""

import math
from collections.abc import Sequence

from ..law import Law
from ..noise import Noise
from .archive import Archive
from .automaton import SuffixAutomaton
from .base import Proposal

_LAG = 64  # the younger index waits for tokens to be settled: taking back costs as much as adding


class SuffixDrafter:
    """Copies likely continuations of what the sequence ends with.

    Args:
        shortest: a match of fewer tokens proposes nothing.
        capacity: most tokens that are searched, and at least half as many once there are
            (`python -m tools.copiers` measures what a token costs).
        archive: past sequences, which serve where more tokens match there than in this one.
    """

    name = "suffix"

    def __init__(
        self, *, shortest: int = 2, capacity: int = 1 << 16, archive: Archive | None = None
    ) -> None:
        self._shortest = shortest
        self._archive = Archive(capacity=0) if archive is None else archive
        self._half = capacity // 2
        self._older, self._younger = self._start()

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:  # noqa: ARG002 - draws nothing
        """Return at most as many tokens as the match is long, or nothing.

        A token's signal is the logarithm of how many tokens match if all before it stay.
        """
        self._append(context)
        tokens, length = self._repeat(k)
        beyond = max(length, self._shortest - 1)
        archived, matched = self._archive.recall(context, k, beyond=beyond)
        if archived:
            tokens, length = archived, matched
        laws = [Law.point(token) for token in tokens]
        return Proposal(tokens, laws, self.name, [math.log(length + i) for i in range(len(tokens))])

    def _repeat(self, k: int) -> tuple[list[int], int]:
        """Return what followed the longest match in this sequence, and how long that is."""
        index = self._older.automaton
        state = index.match
        length = index.longest[state]
        tokens: list[int] = []
        if length >= self._shortest:
            while len(tokens) < min(k, length) and (step := index.continuation(state)):
                token, state = step
                tokens.append(token)
        return tokens, length

    def rewind(self, *, to: int) -> None:
        """Forget the tokens from position `to` on."""
        if to < self._older.start:
            self._older, self._younger = self._start()
        self._older.rewind(to)
        self._younger.rewind(to)

    def _append(self, context: Sequence[int]) -> None:
        while len(context) > self._younger.start + self._half:
            self._older, self._younger = self._younger, _Index(self._younger.start + self._half)
        self._older.append(context, len(context))
        self._younger.append(context, len(context) - _LAG)

    def _start(self) -> "tuple[_Index, _Index]":
        return _Index(0), _Index(self._half)


class _Index:
    """An automaton of the sequence from position `start` on."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.automaton = SuffixAutomaton()

    def append(self, context: Sequence[int], end: int) -> None:
        for token in context[self.start + len(self.automaton.tokens) : max(end, 0)]:
            self.automaton.append(token)

    def rewind(self, to: int) -> None:
        surplus = len(self.automaton.tokens) - max(0, to - self.start)
        if surplus > 0 and not self.automaton.can_take_back(surplus):
            self.automaton = SuffixAutomaton()  # the next context fills it again
        else:
            for _ in range(surplus):
                self.automaton.take_back()
