"""A table of n-grams and the law it gives the next token.

In: a context. Out: the tokens that were seen after its end, and their probabilities. The table is a
trie in sorted arrays: the entries below entry i of one order are `starts[i]:starts[i + 1]` of the
next order, ascending by token.

Orders are mixed as by Witten and Bell (The zero-frequency problem, 1991): a context that was seen
C times before T different tokens gives token x the probability (c(x) + T · lower(x)) / (C + T),
`lower` being the law of the context without its oldest token. The lowest context is the last token
alone. What it leaves to tokens that never followed it is dropped, and the rest made to sum to one:
tokens without any sign in the context are not worth drafting.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_WIDEST = 256  # of longer lists of what followed, the most frequent tokens count


@dataclass(frozen=True)
class NgramTable:
    """Counted n-grams up to an order of at least 2.

    `tokens[n]` and `counts[n]` are the last tokens of the n + 1-grams and how often each was seen;
    `starts[n]`, one longer than `tokens[n - 1]`, says where the n + 1-grams of each n-gram begin
    (`starts[0]` is not used). Every n-gram's own endings are in the table too.
    """

    tokens: tuple[Array, ...]
    counts: tuple[Array, ...]
    starts: tuple[Array, ...]
    _wide: "dict[tuple[int, int], _Seen]" = field(default_factory=dict, repr=False, compare=False)

    # Of each order but the last its tokens, and the starts of what is below: a single number is
    # read faster from a view than from an array.
    _views: list[tuple["memoryview[int]", "memoryview[int]"]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        pairs = zip(self.tokens[:-1], self.starts[1:], strict=True)
        object.__setattr__(self, "_views", [(tokens.data, starts.data) for tokens, starts in pairs])

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.tokens)

    def follow(self, context: Sequence[int]) -> tuple[NDArray[np.int64], Array, Any] | None:
        """Return what may follow: tokens, ascending, their probabilities, and the share of these.

        The probabilities sum to one; the share is what all of them had before others were dropped.
        `None` when the last token was never seen before another.
        """
        ids = weights = None
        for length in range(1, min(self.order, len(context) + 1)):
            seen = self._seen(context[-length:])
            if seen is None:
                break
            if ids is None or weights is None:
                ids, weights = seen.tokens, seen.counts / (seen.total + seen.kinds)
                continue
            ids, weights, places = _widen(ids, weights, seen.tokens)
            weights = weights * seen.kinds
            weights[places] += seen.counts
            weights /= seen.total + seen.kinds
        if ids is None or weights is None:
            return None
        share = weights.sum()
        return ids, weights / share, share

    def _seen(self, context: Sequence[int]) -> "_Seen | None":
        """Return what followed this very context, if anything did."""
        first, end = 0, len(self.tokens[0])
        for order, token in enumerate(context):
            tokens, starts = self._views[order]
            place = bisect_left(tokens, token, first, end)
            if place == end or tokens[place] != token:
                return None
            first, end = starts[place], starts[place + 1]
        if first == end:
            return None
        order = len(context)
        if end - first <= _WIDEST:
            return _count(self.tokens[order][first:end], self.counts[order][first:end])
        if (order, first) not in self._wide:
            self._wide[order, first] = _count(
                self.tokens[order][first:end], self.counts[order][first:end]
            )
        return self._wide[order, first]


@dataclass(frozen=True)
class _Seen:
    """Tokens after a context, ascending, their counts, and the sum and number of all counts."""

    tokens: NDArray[np.int64]
    counts: Array
    total: Any
    kinds: int


def _count(tokens: Array, counts: Array) -> _Seen:
    total, kinds = counts.sum(), len(tokens)
    if kinds > _WIDEST:
        kept = np.sort(counts.argsort(kind="stable")[-_WIDEST:])
        tokens, counts = tokens[kept], counts[kept]
    return _Seen(tokens.astype(np.int64), counts, total, kinds)


def _widen(
    ids: NDArray[np.int64], weights: Array, tokens: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return ids and weights that hold all the tokens, and where these are."""
    places = ids.searchsorted(tokens)
    known = ids[np.minimum(places, len(ids) - 1)] == tokens
    if known.all():
        return ids, weights, places
    missing = places[~known]
    ids = np.insert(ids, missing, tokens[~known])
    return ids, np.insert(weights, missing, 0), ids.searchsorted(tokens)
