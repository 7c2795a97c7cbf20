"""Rows of logits to what is kept of them, and exact draws from them.

In: `[rows, vocabulary]` float32. Out: the likeliest tokens of each row with their log-probabilities
at temperature 1, and tokens drawn at any temperature from the whole row. PyTorch does it on all
threads: for a small target this is a fifth of the time of writing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class TopLaws:
    """The likeliest tokens after some places: `ids` `[places, top]`, the likeliest first.

    `log_probs` `[places, top]` float16 are their logarithms of probability at temperature 1 among
    all tokens of the vocabulary.
    """

    ids: NDArray[Any]  # whole numbers of 16 or 32 bits
    log_probs: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, logits: NDArray[np.float32], top: int) -> "TopLaws":
        """Return the `top` likeliest tokens of each row of `logits`; all, if it has fewer."""
        rows = torch.from_numpy(logits)
        best = rows.topk(min(top, rows.shape[1]), dim=1)
        log_probs = best.values - rows.logsumexp(dim=1, keepdim=True)
        return cls(best.indices.int().numpy(), log_probs.numpy().astype(np.float16))

    @classmethod
    def join(cls, parts: "list[TopLaws]") -> "TopLaws":
        """Return the places of all parts, one after another."""
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.log_probs for part in parts]),
        )


def draw_tokens(
    logits: NDArray[np.float32],
    laws: TopLaws,
    temperatures: NDArray[np.float64],
    uniforms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return one token for each row, drawn from its law at its temperature; 0 takes the likeliest.

    The inverse of the distribution function at `uniforms`, tokens counted from the likeliest on;
    the whole row is looked at only where the draw falls behind those that `laws` lists.

    Args:
        logits: `[rows, vocabulary]`.
        laws: the same rows' likeliest tokens.
        temperatures: `[rows]`.
        uniforms: `[rows]`, in [0, 1).
    """
    best = laws.ids[:, 0]
    warmth = np.where(temperatures > 0, temperatures, 1.0)[:, None]
    rows = torch.from_numpy(logits)
    peaks = np.take_along_axis(logits, best[:, None], axis=1)
    # A row at temperature 1 and one at 0.7 differ in this sum, so it is made anew.
    scaled = (rows - torch.from_numpy(peaks)) / torch.from_numpy(warmth.astype(np.float32))
    totals = scaled.exp_().sum(dim=1, dtype=torch.float64).numpy()  # scaled holds weights now
    weights = scaled.gather(1, torch.from_numpy(laws.ids).long()).numpy().astype(np.float64)
    reached = np.cumsum(weights, axis=1)
    wanted = uniforms * totals
    places = (reached <= wanted[:, None]).sum(axis=1)
    listed = np.take_along_axis(laws.ids, places.clip(max=laws.ids.shape[1] - 1)[:, None], axis=1)
    tokens = np.where(temperatures > 0, listed[:, 0], best).astype(np.int64)
    for row in np.flatnonzero((places == laws.ids.shape[1]) & (temperatures > 0)):
        rest = scaled[row].double().numpy()
        rest[laws.ids[row]] = 0.0
        tail = np.cumsum(rest)
        place = tail.searchsorted(wanted[row] - reached[row, -1], side="right")
        tokens[row] = min(place, int(np.flatnonzero(rest)[-1])) if tail[-1] > 0 else listed[row, 0]
    return tokens
