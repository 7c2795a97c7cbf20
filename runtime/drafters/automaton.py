"""A suffix automaton of a token sequence: every substring, and where its end stood before.

In: tokens, one by one. Out: the longest suffix of the sequence that also ended earlier, and what
followed it. Appending is amortised constant (Blumer et al., The smallest automaton recognizing the
subwords of a text, 1985); the newest tokens can be taken back from a journal.
"""

from dataclasses import dataclass, field

ROOT = 0
_NONE = -1
_JOURNALED = 256  # newest tokens that can be taken back one by one
_COUNTED = 4  # suffixes, from the match down, whose continuation is counted with each token


@dataclass
class _Journal:
    """What appending one token changed: enough to take it back."""

    states: int
    last: int
    entries: list[tuple[dict[int, int], int, int | None]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)

    def put(self, table: dict[int, int], key: int, value: int) -> None:
        self.entries.append((table, key, table.get(key)))
        table[key] = value


class SuffixAutomaton:
    """The automaton; a state stands for a set of substrings that end at the same places.

    Attributes:
        tokens: the sequence.
        after: per state, the state reached by each token that followed its substrings.
        count: per state, how often each token followed, as far as it was counted; 0 means once.
        longest: per state, the length of its longest substring.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.after: list[dict[int, int]] = [{}]
        self.count: list[dict[int, int]] = [{}]
        self.longest = [0]
        self._link = [_NONE]  # per state, the state of its longest suffix outside it
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
        new = self._add_state({}, {}, self.longest[self._last] + 1)
        state = self._last
        while state != _NONE and token not in self.after[state]:
            journal.put(self.after[state], token, new)
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
        for table, key, old in reversed(journal.entries):
            if old is None:
                del table[key]
            else:
                table[key] = old
        for state, link in reversed(journal.links):
            self._link[state] = link
        for column in (self.after, self.count, self.longest, self._link):
            del column[journal.states :]
        self._last = journal.last
        self.tokens.pop()

    def continuation(self, state: int) -> tuple[int, int] | None:
        """Return the token that followed most often, the newest on ties, and the state after it.

        Where nothing followed, a shorter suffix is asked; `None` when no suffix is left.
        """
        while state > ROOT and not self.after[state]:
            state = self._link[state]
        if state <= ROOT:
            return None
        after, count = self.after[state], self.count[state]
        token = max(reversed(after), key=lambda token: count.get(token, 0))
        return token, after[token]

    def _count_continuation(self, token: int, journal: _Journal) -> None:
        state = self.match
        for _ in range(_COUNTED):
            if state == ROOT:
                return
            if token in self.after[state]:
                count = self.count[state]
                journal.put(count, token, count.get(token, 0) + 1)
            state = self._link[state]

    def _split(self, state: int, token: int, journal: _Journal) -> int:
        """Return the state of `state`'s substrings plus `token`, parted from longer ones."""
        target = self.after[state][token]
        if self.longest[state] + 1 == self.longest[target]:
            return target
        clone = self._add_state(
            dict(self.after[target]), dict(self.count[target]), self.longest[state] + 1
        )
        self._link[clone] = self._link[target]
        journal.links.append((target, self._link[target]))
        self._link[target] = clone
        while state != _NONE and self.after[state].get(token) == target:
            journal.put(self.after[state], token, clone)
            state = self._link[state]
        return clone

    def _add_state(self, after: dict[int, int], count: dict[int, int], longest: int) -> int:
        self.after.append(after)
        self.count.append(count)
        self.longest.append(longest)
        self._link.append(ROOT)
        return len(self.longest) - 1
