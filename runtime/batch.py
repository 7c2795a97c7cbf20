"""Several sequences in one graph: ragged passes, and a rollback for each.

In: a graph of the portable flavour. Out: `BatchModel`, which scores sequences as `OnnxModel` scores
one. Rows of a pass are as long as its longest; shorter ones are filled up with tokens that nothing
reads.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .columns import Widening, cut_to
from .errors import BundleError, CapacityError
from .manifest import ModelEntry
from .model import ATTENTION_CELLS, PREFILL_CHUNK, make_cache
from .session import Session
from .steps import Steps


class BatchModel:
    """A fixed number of sequences, each with its own tokens in one cache.

    Args:
        session: the graph, of which other models may make use too.
        entry: what the manifest says of it.
        sequences: how many there are.
        vocabulary: number of ids that may be fed; logits beyond are padding.
        token_ids: the tokens that the columns of a trimmed head stand for.

    Raises:
        BundleError: the graph is of a flavour that holds one sequence.
    """

    def __init__(
        self,
        session: Session,
        entry: ModelEntry,
        *,
        sequences: int,
        vocabulary: int,
        token_ids: NDArray[np.int64] | None = None,
    ) -> None:
        if entry.flavour not in ("portable", "trees"):
            raise BundleError(
                f"model {entry.name} holds one sequence (flavour {entry.flavour}), but "
                f"{sequences} were asked for: export with --flavour portable"
            )
        self.vocabulary = vocabulary
        self.context = entry.context
        self.cache = make_cache(session, entry, sequences=sequences)
        self._widen = cut_to(vocabulary) if token_ids is None else Widening(token_ids, vocabulary)
        self._steps = Steps(session, self.cache, entry, vocabulary)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens that the cache holds of each sequence."""
        return [len(tokens) for tokens in self.cache.sequences]

    def rewind(self, *, to: Sequence[int]) -> None:
        """Forget all but the first `to[b]` tokens of each sequence b."""
        for tokens, length in zip(self.cache.sequences, to, strict=True):
            del tokens[length:]

    def score(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Feed what is new of each sequence and return the logits of its last `rows[b]` positions.

        A sequence that has nothing new and wants no row waits.

        Returns:
            For each sequence `[rows[b], vocabulary]`; they hold until the next call.

        Raises:
            CapacityError: a sequence does not fit into the context; nothing was fed.
        """
        longest = max(map(len, sequences))
        if longest > self.context:
            raise CapacityError(
                f"the model's context holds {self.context} tokens, but {longest} were to be fed"
            )
        held = zip(self.lengths, sequences, rows, strict=True)
        self.rewind(to=[min(length, len(tokens) - want) for length, tokens, want in held])
        cells = ATTENTION_CELLS // (len(sequences) * max(longest, 1))
        chunk = max(*rows, 1, min(PREFILL_CHUNK, cells))
        while max(self._pending(sequences)) > chunk:
            heads = zip(self._pending(sequences), rows, strict=True)
            self._feed(sequences, [max(0, min(chunk, n - want)) for n, want in heads], None)
        return self._feed(sequences, self._pending(sequences), rows)

    def _pending(self, sequences: Sequence[Sequence[int]]) -> list[int]:
        return [len(a) - length for a, length in zip(sequences, self.lengths, strict=True)]

    def _feed(
        self,
        sequences: Sequence[Sequence[int]],
        counts: Sequence[int],
        rows: Sequence[int] | None,
    ) -> list[NDArray[np.float32]]:
        """Feed `counts[b]` tokens of each sequence; project `rows`, or one that nobody wants."""
        width, past = max(counts), self.lengths
        if width == 0:
            return [np.zeros((0, self.vocabulary), np.float32) for _ in sequences]
        self.cache.reserve(max(past), idle=width)
        new = [
            tokens[length : length + count]
            for tokens, length, count in zip(sequences, past, counts, strict=True)
        ]
        wanted = [
            b * width + row
            for b, (count, want) in enumerate(zip(counts, rows or [0] * len(counts), strict=True))
            for row in range(count - want, count)
        ]
        step = self._steps.of(width, max(1, len(wanted)))
        step.want(wanted or [0])
        logits = self._widen(step.run(new, past))  # [len(wanted) or 1, vocabulary]
        for tokens, fed in zip(self.cache.sequences, new, strict=True):
            tokens.extend(fed)
        cuts = np.cumsum([0, *(rows or [0] * len(counts))])
        return [logits[a:b] for a, b in pairwise(cuts)]
