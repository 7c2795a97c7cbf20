"""An archive of past sequences: what followed the last tokens there.

In: sequences that do not change. Out: the continuation of the longest earlier occurrence. Three
tokens find the places, in sorted arrays; what stood before them there decides. Sixteen bytes a
token; looking up takes the same time however much is archived.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_GRAM = 3  # tokens that find the places
_BITS = 21  # of a token in a key; no vocabulary comes near 2^21
_LONGEST = 24  # tokens that are compared
_NEWEST = 64  # places that are compared
_GAP = -1  # stands between sequences

Tokens = NDArray[np.int32]
Key = TypeVar("Key", int, NDArray[np.int64])


class Archive:
    """Past sequences and an index of every three tokens in them.

    Args:
        sequences: token sequences, the oldest first.
        capacity: most tokens; of more, the newest half stays.
    """

    def __init__(self, sequences: Iterable[Sequence[int] | Tokens] = (), *, capacity: int) -> None:
        self._capacity = capacity
        tokens = np.concatenate([_fence(()), *map(_fence, sequences)])
        self._tokens = self._newest(tokens)
        self._keys, self._ends = _index(self._tokens, 0)

    def __len__(self) -> int:
        """Return how many tokens are archived, the gaps between sequences included."""
        return len(self._tokens) - _LONGEST

    def add(self, sequence: Sequence[int] | Tokens) -> None:
        """Archive one more sequence."""
        start = len(self._tokens)
        self._tokens = np.concatenate([self._tokens, _fence(sequence)])
        if len(self) > self._capacity:
            self._tokens = self._newest(self._tokens)
            self._keys, self._ends = _index(self._tokens, 0)
            return
        keys, ends = _index(self._tokens, start)
        places = self._keys.searchsorted(keys, side="right")
        self._keys = np.insert(self._keys, places, keys)
        self._ends = np.insert(self._ends, places, ends)

    def recall(self, context: Sequence[int], k: int, *, beyond: int) -> tuple[list[int], int]:
        """Return at most `k` tokens that followed the end of `context`, and how many matched.

        Of the longest matches the most frequent continuation counts, on ties the newest. No token
        is returned where not more than `beyond` match (at most 24 are compared).
        """
        if beyond >= _LONGEST or len(context) < _GRAM or not len(self._ends):
            return [], 0
        last = np.array(context[-_LONGEST:][::-1], np.int32)  # the newest token first
        key = _key(*context[-_GRAM:])
        low, high = self._keys.searchsorted([key, key + 1])
        ends = self._ends[max(low, high - _NEWEST) : high]
        same = self._tokens[ends[:, None] - np.arange(len(last))] == last
        lengths = np.cumprod(same, axis=1).sum(axis=1)
        matched = int(lengths.max(initial=0))
        if matched <= beyond:
            return [], 0
        starts = ends[lengths == matched] + 1
        following = self._tokens[starts].tolist()
        counts = Counter(following)
        most = max(counts.values())
        newest = next(i for i in reversed(range(len(following))) if counts[following[i]] == most)
        copied = self._tokens[starts[newest] :][: min(k, matched)].tolist()
        return copied[: copied.index(_GAP)] if _GAP in copied else copied, matched

    def _newest(self, tokens: Tokens) -> Tokens:
        """Return the fenced tokens, of more than fit the newest half."""
        if len(tokens) - _LONGEST <= self._capacity:
            return tokens
        return np.concatenate([_fence(()), tokens[-(self._capacity // 2) :]])


def _fence(sequence: Sequence[int] | Tokens) -> Tokens:
    """Return the sequence with a gap after it; of none, the gap before all, as wide as a look."""
    width = 1 if len(sequence) else _LONGEST
    return np.concatenate([np.asarray(sequence, np.int32), np.full(width, _GAP, np.int32)])


def _index(tokens: Tokens, start: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the key of every three tokens from `start` on that a fourth follows, and their end.

    Sorted by key, equal ones from old to new.
    """
    window = [tokens[start + i : len(tokens) - _GRAM + i].astype(np.int64) for i in range(4)]
    places = np.flatnonzero(np.minimum.reduce(window) > _GAP)
    keys = _key(*(column[places] for column in window[:_GRAM]))
    order = np.argsort(keys, kind="stable")
    return keys[order], (start + places[order] + _GRAM - 1).astype(np.int32)


def _key(first: Key, second: Key, third: Key) -> Key:
    return (first << 2 * _BITS) | (second << _BITS) | third
