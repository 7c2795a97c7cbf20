"""Prompt lookup: propose what followed the last occurrence of the current n-gram.

In: the sequence so far. Out: a point-mass proposal. Costs no model and no memory but the sequence.
Source: Saxena, prompt lookup decoding (2023).
"""

import math
from collections.abc import Sequence

import numpy as np

from ..law import Law
from ..noise import Noise
from .base import Proposal


class LookupDrafter:
    """Copies the continuation of the most recent earlier occurrence of the longest n-gram.

    Args:
        longest: n-gram length that is tried first.
        shortest: n-gram length below which nothing is proposed.
    """

    name = "lookup"

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        self._longest = longest
        self._shortest = shortest
        self._tokens = np.zeros(256, np.int64)  # the sequence is self._tokens[:self._length]
        self._length = 0

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:  # noqa: ARG002 - draws nothing
        """Return the continuation of an earlier occurrence, or nothing.

        A token's signal is the logarithm of how many tokens match if all before it stay.
        """
        self._append(context)
        tokens, size = self._continuation(k)
        laws = [Law.point(token) for token in tokens]
        return Proposal(tokens, laws, self.name, [math.log(size + i) for i in range(len(tokens))])

    def rewind(self, *, to: int) -> None:
        """Forget the tokens from position `to` on."""
        self._length = min(self._length, to)

    def _append(self, context: Sequence[int]) -> None:
        if len(context) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros(len(context), np.int64)])
        self._tokens[self._length : len(context)] = context[self._length :]
        self._length = len(context)

    def _continuation(self, k: int) -> tuple[list[int], int]:
        """Return the continuation, and how many tokens before it matched."""
        tokens = self._tokens[: self._length]
        # Where the last `size` tokens stood before; each longer n-gram narrows the shorter one's.
        ends = np.flatnonzero(tokens[:-1] == tokens[-1])
        found: list[int] = []
        matched = 0
        for size in range(1, self._longest + 1):
            if size > 1:
                ends = ends[ends >= size - 1]
                ends = ends[tokens[ends - size + 1] == tokens[-size]]
            if len(ends) == 0 or size >= self._length:
                break
            if size >= self._shortest:
                # A match that runs into the present repeats itself, as in LZ77.
                start = int(ends[-1]) + 1
                copied = start + np.arange(k) % (self._length - start)
                found, matched = tokens[copied].tolist(), size
        return found, matched
