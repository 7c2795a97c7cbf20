"""How much faster one row decodes than another, with how sure that is.

In: samples of two rows over the same prompts and repeats. Out: `Ratio`: total tokens / total time,
and the geometric mean over prompts with a bootstrap interval. Greedy rows of one engine must emit
the same ids: prompts where they do not are left out and counted. Rows of different engines (other
kernels, other rounding) are compared per token.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .figures import Figures, Spread, make_spread, total_rate

_DRAWS = 4000
_CONFIDENCE = 95

# Figures by prompt, then by repeat.
Table = Mapping[str, Mapping[int, Figures]]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Decoding rate of `row` over that of `over`: above 1, `row` is faster.

    Attributes:
        total: (tokens / time of all prompts) ÷ (the same of `over`): median, least and greatest
            over the repeats.
        mean: geometric mean over prompts of the median ratio of their repeats.
        low, high: 95 % bootstrap interval of `mean`, prompts drawn with replacement.
        prompts: how many were compared.
        parted: how many had other ids.
        basis: `same tokens`, or `per token`.
    """

    row: str
    over: str
    total: Spread
    mean: float
    low: float
    high: float
    prompts: int
    parted: int
    basis: str


def compare_rows(
    row: str,
    over: str,
    mine: Table,
    theirs: Table,
    *,
    parted: Sequence[str] | None,
    same_engine: bool,
) -> Ratio | None:
    """Return the ratio of two rows, or None where nothing can be compared.

    Args:
        row: name of the row.
        over: name of the row it is compared with.
        mine: figures of `row`.
        theirs: figures of `over`.
        parted: prompts that the two answered with other ids; None if one of them emits no answer.
        same_engine: whether other ids are a reason to leave a prompt out.
    """
    left_out = set(parted or ()) if same_engine else set()
    prompts = [name for name in mine if name in theirs and name not in left_out]
    ratios: dict[str, float] = {}
    for name in prompts:
        repeats = sorted(set(mine[name]) & set(theirs[name]))
        pairs = [(mine[name][i].token_s, theirs[name][i].token_s) for i in repeats]
        known = [b / a for a, b in pairs if a and b]
        if known:
            ratios[name] = statistics.median(known)
    total = make_spread(total_ratios(mine, theirs, list(ratios)))
    if total is None:
        return None
    mean, low, high = bootstrap(np.log(list(ratios.values())))
    return Ratio(
        row=row,
        over=over,
        total=total,
        mean=mean,
        low=low,
        high=high,
        prompts=len(ratios),
        parted=len(parted or ()),
        basis="per token" if parted is None or (parted and not same_engine) else "same tokens",
    )


def total_ratios(mine: Table, theirs: Table, prompts: Sequence[str]) -> list[float]:
    """Return, for each repeat, the ratio of all tokens over all time of both rows."""
    repeats = {i for name in prompts for i in set(mine[name]) & set(theirs[name])}
    found = []
    for i in sorted(repeats):
        both = [name for name in prompts if i in mine[name] and i in theirs[name]]
        a = total_rate([mine[name][i] for name in both])
        b = total_rate([theirs[name][i] for name in both])
        if a and b:
            found.append(a / b)
    return found


def bootstrap(logarithms: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the geometric mean and its interval; the draws are the same on every call."""
    draws = np.random.default_rng(0).integers(len(logarithms), size=(_DRAWS, len(logarithms)))
    means = logarithms[draws].mean(axis=1)  # [draws]
    tail = (100 - _CONFIDENCE) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(np.exp(logarithms.mean())), float(np.exp(low)), float(np.exp(high))
