"""A suffix automaton of a token sequence: every substring, and what followed it.

In: tokens, one by one. Out: the longest suffix of the sequence that also ended earlier, and what
followed it most often. Appending is amortised constant (Blumer et al., The smallest automaton
recognizing the subwords of a text, 1985); the newest tokens can be taken back from a journal.
"""

from dataclasses import dataclass, field
from typing import Any

ROOT = 0
_NONE = -1
_JOURNALED = 256  # newest tokens that can be taken back one by one
_COUNTED = 4  # suffixes, from the match down, whose continuation is counted with each token
_TOKEN_BITS = 32


@dataclass(slots=True)
class _Journal:
    """What appending one token changed: enough to take it back."""

    states: int
    last: int
    changes: list[tuple[Any, int, int | None]] = field(default_factory=list)

    def put(self, table: dict[int, int], key: int, value: int) -> None:
        self.changes.append((table, key, table.get(key)))
        table[key] = value

    def set(self, column: list[int], state: int, value: int) -> None:
        self.changes.append((column, state, column[state]))
        column[state] = value


class SuffixAutomaton:
    """The automaton; a state stands for a set of substrings that end at the same places.

    Attributes:
        tokens: the sequence, each token ≥ 0 and below 2^32.
        longest: per state, the length of its longest substring.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.longest = [0]
        self._after: list[dict[int, int]] = [{}]  # per state, the states its next tokens lead to
        self._best = [_NONE]  # per state, the token that followed most often, the newest on ties
        self._link = [_NONE]  # per state, the state of its longest suffix outside it
        # How often a token followed a state's substrings, as far as it was counted, less one.
        self._count: dict[int, int] = {}
        self._last = ROOT  # the state of the whole sequence
        self._journals: list[_Journal] = []

    @property
    def match(self) -> int:
        """The state of the longest suffix that also ended earlier; `ROOT` when there is none."""
        return max(self._link[self._last], ROOT)

    def can_take_back(self, count: int) -> bool:
        """Whether the last `count` tokens are still in the journal."""
        return count <= len(self._journals)

    def append(self, token: int) -> None:
        """Add a token to the sequence."""
        journal = _Journal(len(self.longest), self._last)
        self._count_continuation(token, journal)
        new = self._add_state({}, _NONE, self.longest[self._last] + 1)
        state = self._last
        while state != _NONE and token not in self._after[state]:
            journal.put(self._after[state], token, new)
            self._prefer(state, token, 0, journal)
            state = self._link[state]
        self._link[new] = ROOT if state == _NONE else self._split(state, token, journal)
        self._last = new
        self.tokens.append(token)
        self._journals.append(journal)
        if len(self._journals) > 2 * _JOURNALED:
            del self._journals[:_JOURNALED]

    def take_back(self) -> None:
        """Remove the last token."""
        journal = self._journals.pop()
        for holder, key, old in reversed(journal.changes):
            if old is None:
                del holder[key]
            else:
                holder[key] = old
        for column in (self._after, self._best, self.longest, self._link):
            del column[journal.states :]
        self._last = journal.last
        self.tokens.pop()

    def continuation(self, state: int) -> tuple[int, int] | None:
        """Return the token that followed most often, the newest on ties, and the state after it.

        Where nothing followed, a shorter suffix is asked; `None` when no suffix is left.
        """
        while state > ROOT and self._best[state] == _NONE:
            state = self._link[state]
        if state <= ROOT:
            return None
        token = self._best[state]
        return token, self._after[state][token]

    def _count_continuation(self, token: int, journal: _Journal) -> None:
        state = self.match
        for _ in range(_COUNTED):
            if state == ROOT:
                return
            if token in self._after[state]:
                key = state << _TOKEN_BITS | token
                count = self._count.get(key, 0) + 1
                journal.put(self._count, key, count)
                self._prefer(state, token, count, journal)
            state = self._link[state]

    def _prefer(self, state: int, token: int, count: int, journal: _Journal) -> None:
        best = self._best[state]
        if best != token and count >= self._count.get(state << _TOKEN_BITS | best, 0):
            journal.set(self._best, state, token)

    def _split(self, state: int, token: int, journal: _Journal) -> int:
        """Return the state of `state`'s substrings plus `token`, parted from longer ones."""
        target = self._after[state][token]
        if self.longest[state] + 1 == self.longest[target]:
            return target
        after = dict(self._after[target])
        clone = self._add_state(after, self._best[target], self.longest[state] + 1)
        for key in after:
            if count := self._count.get(target << _TOKEN_BITS | key):
                journal.put(self._count, clone << _TOKEN_BITS | key, count)
        self._link[clone] = self._link[target]
        journal.set(self._link, target, clone)
        while state != _NONE and self._after[state].get(token) == target:
            journal.put(self._after[state], token, clone)
            state = self._link[state]
        return clone

    def _add_state(self, after: dict[int, int], best: int, longest: int) -> int:
        self._after.append(after)
        self._best.append(best)
        self.longest.append(longest)
        self._link.append(ROOT)
        return len(self.longest) - 1
