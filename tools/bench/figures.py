"""Figures of one answer and of a row, from ids and the times at which they came out.

Conventions: tokens are counted by their ids, a chunk is never a token. The first token's time is
that of the first chunk with an id in it. What came with that chunk is prefill's; decoding is what
came later, over the time from the first chunk to the last: with one token in the first chunk the
time per token is (E2E - TTFT) / (n - 1). A rate over nothing is None.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .wire import Answer

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one answer took.

    Attributes:
        tokens: how many came out in all.
        first_token_s: from submission to the first id; None without any.
        first_text_s: from submission to the first visible text; None without text.
        decode_tokens: tokens after the first chunk.
        decode_s: from the first chunk to the last one that holds tokens.
        gaps_s: times between chunks that hold tokens.
    """

    tokens: int
    first_token_s: float | None
    first_text_s: float | None
    decode_tokens: int
    decode_s: float
    gaps_s: tuple[float, ...]

    @property
    def token_s(self) -> float | None:
        """Seconds per decoded token."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median and what it lies between."""

    median: float
    low: float
    high: float


def read_answer(answer: Answer) -> Figures:
    """Return the figures of one answer."""
    chunks = [chunk for chunk in answer.chunks if chunk.token_ids]
    shown = (chunk.at_s for chunk in answer.chunks if chunk.shows_text)
    if not chunks:
        return Figures(
            tokens=0,
            first_token_s=None,
            first_text_s=None,
            decode_tokens=0,
            decode_s=0.0,
            gaps_s=(),
        )
    first, *later = chunks
    times = [chunk.at_s for chunk in chunks]
    return Figures(
        tokens=len(answer.token_ids),
        first_token_s=first.at_s,
        first_text_s=next(shown, None),
        decode_tokens=sum(len(chunk.token_ids) for chunk in later),
        decode_s=times[-1] - times[0],
        gaps_s=tuple(b - a for a, b in pairwise(times)),
    )


def make_spread(values: Iterable[float | None]) -> Spread | None:
    """Return median, least and greatest of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(median=statistics.median(known), low=min(known), high=max(known))


def total_rate(figures: Sequence[Figures]) -> float | None:
    """Return all decoded tokens over all decoding time, per second."""
    seconds = sum(one.decode_s for one in figures)
    return sum(one.decode_tokens for one in figures) / seconds if seconds else None


def find_percentiles(figures: Sequence[Figures]) -> dict[str, float]:
    """Return the percentiles of the times between chunks, by names such as `p95`."""
    gaps = [gap for one in figures for gap in one.gaps_s]
    if not gaps:
        return {}
    found = np.percentile(gaps, PERCENTILES)
    return {f"p{name}": float(value) for name, value in zip(PERCENTILES, found, strict=True)}
