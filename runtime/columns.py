"""Which tokens the columns of a graph's logits stand for, and rows over the whole vocabulary.

In: rows as a graph makes them. Out: rows `[rows, vocabulary]`: padding behind the vocabulary is cut
off; where a draft's head was trimmed to the most useful tokens, each of them gets its column and
every other token −inf, so that its probability is exactly zero.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .bundle import Bundle
from .errors import BundleError
from .manifest import ModelEntry

Rows = NDArray[np.float32]


def read_token_ids(bundle: Bundle, model: ModelEntry) -> NDArray[np.int64] | None:
    """Return the tokens `[logits]` that a trimmed head's columns stand for; `None` if it is whole.

    Raises:
        BundleError: the file is not an ascending list of so many tokens of the vocabulary.
    """
    if model.token_ids is None:
        return None
    path, vocabulary = bundle.folder / model.token_ids, bundle.manifest.tokenizer.vocabulary
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path} is no .npy file of token ids ({error})") from None
    fault = _find_fault(ids, model.logits, vocabulary)
    if fault:
        raise BundleError(
            f"{path} must list {model.logits} token ids below {vocabulary} in ascending order, but "
            f"{fault}: the bundle is damaged, export the draft again"
        )
    return np.asarray(ids, np.int64)


def cut_to(vocabulary: int) -> Callable[[Rows], Rows]:
    """Return the function that cuts padding off rows whose column i is token i."""
    return lambda rows: rows[:, :vocabulary]


class Widening:
    """Spreads rows of a trimmed head over the vocabulary; one call's result holds until the next.

    Args:
        token_ids: the token of each column, ascending.
        vocabulary: width of the result.
    """

    def __init__(self, token_ids: NDArray[np.int64], vocabulary: int) -> None:
        self._token_ids = token_ids
        self._wide = np.full((1, vocabulary), -np.inf, np.float32)

    def __call__(self, rows: Rows) -> Rows:
        """Return `[rows, vocabulary]`, −inf wherever no column stands for the token."""
        if len(rows) > len(self._wide):
            self._wide = np.full((len(rows), self._wide.shape[1]), -np.inf, np.float32)
        wide = self._wide[: len(rows)]
        wide[:, self._token_ids] = rows
        return wide


def _find_fault(ids: NDArray[np.int64], columns: int, vocabulary: int) -> str | None:
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        return "holds something else"
    if len(ids) != columns:
        return f"lists {len(ids)}"
    if not (ids[:-1] < ids[1:]).all():
        return "is not in that order"
    if not 0 <= ids[0] <= ids[-1] < vocabulary:
        return f"holds ids from {ids[0]} to {ids[-1]}"
    return None
