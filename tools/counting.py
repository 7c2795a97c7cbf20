"""Counting n-grams into a table, and dropping the rarest until it is small enough.

In: token sequences. Out: a `runtime.ngram.NgramTable`. Every n-gram in a table keeps its beginnings
and its endings there, because none of them is rarer than it is.
"""

from collections.abc import Sequence
from itertools import count

import numpy as np

from runtime.ngram import NgramTable

from .errors import ToolError

_GAP = -1  # stands between sequences
_MOST_COUNT = np.iinfo(np.uint16).max


def count_ngrams(sequences: Sequence[Sequence[int]], *, order: int, vocabulary: int) -> NgramTable:
    """Return the table of all n-grams up to `order` in the sequences; none crosses two of them.

    Takes about 60 bytes of memory a token.
    """
    gap = np.array([_GAP], np.int64)
    text = np.concatenate(
        [gap, *(part for sequence in sequences for part in (np.asarray(sequence, np.int64), gap))]
    )
    first = np.flatnonzero(text > _GAP)  # where the n-grams counted now begin
    above = np.zeros(len(first), np.int64)  # the entry of each one's first n - 1 tokens
    size = 1  # of the order below
    tokens, counts, starts = [], [], []
    for length in range(order):
        last = text[first + length]
        inside = last > _GAP
        first, keys = first[inside], (above * vocabulary + last)[inside]
        found, above, seen = np.unique(keys, return_inverse=True, return_counts=True)
        tokens.append((found % vocabulary).astype(_token_type(vocabulary)))
        counts.append(seen.clip(max=_MOST_COUNT).astype(np.uint16))
        starts.append((found // vocabulary).searchsorted(np.arange(size + 1)).astype(np.uint32))
        size = len(found)
    return NgramTable(tuple(tokens), tuple(counts), tuple(starts))


def prune(table: NgramTable, *, most_bytes: int) -> NgramTable:
    """Return the table without its rarest n-grams, the longest first, so that its arrays fit.

    All n-grams of an order that were seen equally often stay or go together.

    Raises:
        ToolError: not even the pairs that were seen most often fit.
    """
    ordered = [np.sort(counts) for counts in table.counts]
    entry_bytes = [tokens.itemsize + 2 + 4 for tokens in table.tokens]  # with count and start
    least = [1] * table.order  # of how often the n-grams that stay were seen, by order
    for step in count():
        kept = [len(o) - int(o.searchsorted(c)) for o, c in zip(ordered, least, strict=True)]
        if kept[1] == 0:
            raise ToolError(
                f"{most_bytes} bytes hold no n-gram of this text: allow more with --max-size"
            )
        if sum(n * size for n, size in zip(kept, entry_bytes, strict=True)) <= most_bytes:
            return _keep(table, least)
        least[table.order - 1 - step % (table.order - 1)] += 1
    raise AssertionError("counts without end")


def _keep(table: NgramTable, least: Sequence[int]) -> NgramTable:
    """Return the n-grams that were seen at least so often, by order; longer ones not less."""
    tokens, counts, starts = [], [], []
    moved = np.zeros(1, np.int64)  # where each entry of the order below is now
    size = 1
    for order, fewest in enumerate(least):
        above = np.repeat(np.arange(len(table.starts[order]) - 1), np.diff(table.starts[order]))
        stays = table.counts[order] >= fewest
        tokens.append(table.tokens[order][stays])
        counts.append(table.counts[order][stays])
        starts.append(moved[above[stays]].searchsorted(np.arange(size + 1)).astype(np.uint32))
        moved = np.cumsum(stays) - 1
        size = len(tokens[-1])
    return NgramTable(tuple(tokens), tuple(counts), tuple(starts))


def _token_type(vocabulary: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32
