"""The file of an n-gram table: a NumPy archive of plain arrays, without pickles.

In: a table and the tokenizer whose tokens it counts. Out: `table.npz` with `format`, `fingerprint`,
`vocabulary`, `order`, and per order n (from 1) the `tokens_n`, `counts_n` and `starts_n` of
`runtime.ngram`. What is read is checked: another tokenizer's table, or arrays that do not fit each
other, are refused.
"""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bundle import Bundle
from .errors import BundleError
from .ngram import NgramTable

_FORMAT = 1
_LONGEST_ORDER = 8
_NATIVE = {np.dtype(kind).str[:2] for kind in (np.uint8, np.uint16)}  # whole numbers, not below 0
_COLUMNS = ("tokens", "counts", "starts")
_SCALARS = {"format", "fingerprint", "vocabulary", "order"}
_AGAIN = ": build it again with  python -m tools.ngram"
# What zipfile and NumPy raise on a damaged archive.
_DAMAGE = (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def open_table(bundle: Bundle) -> NgramTable | None:
    """Return the n-gram table of a bundle, if it has one.

    Raises:
        BundleError: it cannot be used with the bundle.
    """
    entry, words = bundle.manifest.ngram, bundle.manifest.tokenizer
    if entry is None:
        return None
    return read_table(
        bundle.folder / entry.file, fingerprint=words.fingerprint, vocabulary=words.vocabulary
    )


def write_table(path: Path, table: NgramTable, *, fingerprint: str, vocabulary: int) -> None:
    """Write the table; the same table gives the same bytes."""
    arrays: dict[str, Any] = {
        "format": np.int64(_FORMAT),
        "fingerprint": np.array(fingerprint),
        "vocabulary": np.int64(vocabulary),
        "order": np.int64(table.order),
    }
    for order in range(table.order):
        arrays[f"tokens_{order + 1}"] = table.tokens[order]
        arrays[f"counts_{order + 1}"] = table.counts[order]
        arrays[f"starts_{order + 1}"] = table.starts[order]
    np.savez(path, allow_pickle=False, **arrays)


def read_table(path: Path, *, fingerprint: str, vocabulary: int) -> NgramTable:
    """Return the table at `path`.

    Args:
        path: the file.
        fingerprint: of the tokenizer it must count.
        vocabulary: how many tokens that has.

    Raises:
        BundleError: no table, damaged, of a newer format, or of another tokenizer.
    """
    arrays = _read_arrays(path)
    number = _scalar(arrays, "format")
    if number != _FORMAT:
        raise BundleError(
            f"{path} has format {number!r}, but this forerun reads {_FORMAT}: update forerun, or "
            "build the table again with  python -m tools.ngram"
        )
    if (_scalar(arrays, "fingerprint"), _scalar(arrays, "vocabulary")) != (fingerprint, vocabulary):
        raise BundleError(f"{path} counts the tokens of another tokenizer{_AGAIN}")
    fault = _find_fault(arrays, vocabulary)
    if fault:
        raise BundleError(f"{path} is no n-gram table ({fault}){_AGAIN}")
    orders = range(1, arrays["order"].item() + 1)
    return NgramTable(
        tuple(arrays[f"tokens_{n}"] for n in orders),
        tuple(arrays[f"counts_{n}"] for n in orders),
        tuple(arrays[f"starts_{n}"] for n in orders),
    )


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("one array, no archive")
            return {name: archive[name] for name in archive.files}
    except _DAMAGE as error:
        raise BundleError(f"{path} cannot be read as an n-gram table ({error}){_AGAIN}") from None


def _scalar(arrays: Mapping[str, NDArray[Any]], name: str) -> object:
    array = arrays.get(name)
    return array.item() if array is not None and array.shape == () else None


def _find_fault(arrays: Mapping[str, NDArray[Any]], vocabulary: int) -> str | None:
    """Return what is wrong with the arrays, if anything is."""
    orders = _scalar(arrays, "order")
    if not isinstance(orders, int) or not 2 <= orders <= _LONGEST_ORDER:
        return f"its order is {orders!r}"
    named = {f"{kind}_{n}" for kind in _COLUMNS for n in range(1, orders + 1)}
    if set(arrays) != named | _SCALARS:
        return f"unknown or missing arrays {', '.join(sorted(set(arrays) ^ (named | _SCALARS)))}"
    below = np.zeros(0, np.int64)  # the keys of the order below: entry above, then token
    endings = np.zeros(1, np.int64)  # where in the order below each entry's ending stands
    for n in range(1, orders + 1):
        columns = [arrays.get(f"{kind}_{n}") for kind in ("tokens", "counts", "starts")]
        if any(
            column is None or column.ndim != 1 or column.dtype.str[:2] not in _NATIVE
            for column in columns
        ):
            return f"order {n} is incomplete"
        tokens, counts, starts = (c.astype(np.int64) for c in columns if c is not None)
        if len(starts) != len(endings) + 1 or starts[0] != 0 or starts[-1] != len(tokens):
            return f"orders {n - 1} and {n} do not fit"
        if (np.diff(starts) < 0).any() or len(counts) != len(tokens) or (counts < 1).any():
            return f"order {n} is out of order"
        above = np.repeat(np.arange(len(endings)), np.diff(starts))
        keys = above * vocabulary + tokens
        if (tokens >= vocabulary).any() or (np.diff(keys) < 1).any():
            return f"order {n} is out of order"
        if n == 1:
            endings = np.zeros(len(tokens), np.int64)
        else:
            wanted = endings[above] * vocabulary + tokens
            endings = below.searchsorted(wanted).clip(max=len(below) - 1)
            if not np.array_equal(below[endings], wanted):
                return f"order {n - 1} lacks endings of order {n}"
        below = keys
    return None
