"""Rows of logits: bound where a pass writes them, read on the host.

In: a session and how many rows. Out: `Logits`. On a CPU reading costs nothing. On a device a small
graph behind the model's brings the rows over, or, where a request's laws look at no others, the few
best of each row. Nothing is lost by that: where a law could tell the difference, the rows are read
whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .providers import Threads
from .session import Binding, Session, view, write
from .side_graphs import best_graph, copy_graph

Rows = NDArray[np.float32]
_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The part of a row that laws look at: its `count` largest logits, divided by `temperature`."""

    count: int
    temperature: float = 1.0

    def is_clear(self, values: Rows) -> bool:
        """Whether no other token could stand among the best: `values` [rows, count + 1] fall."""
        with np.errstate(over="ignore", invalid="ignore"):  # as laws are made
            scaled = np.subtract(values, values[:, :1], dtype=np.float64) / self.temperature
        return bool((scaled[:, -2] > scaled[:, -1]).all())


class Side:
    """The small graphs that read logits, opened where the model runs when first needed.

    Args:
        session: the model's.
        columns: logits of a row that stand for tokens; the others behind them are padding.
    """

    def __init__(self, session: Session, columns: int) -> None:
        self.session = session
        self.columns = columns

    @cached_property
    def copy(self) -> Session:
        """Passes `logits` on as `rows`."""
        return self._open(copy_graph())

    @cached_property
    def best(self) -> Session:
        """Finds `values` and `ids` of the `count` largest, and `sums` of whole rows."""
        return self._open(best_graph(self.columns))

    def _open(self, graph: bytes) -> Session:
        provider = self.session.provider.for_small_graphs()
        return Session(graph, provider=provider, threads=Threads(count=1))


class Logits:
    """Rows that passes write and the host reads.

    Args:
        side: the model's session and the small graphs beside it.
        rows: how many.
        width: logits of a row.

    Attributes:
        tensor: `[1, rows, width] float32`, where passes write them.
        crossed: bytes that the last reading brought from the device.
    """

    def __init__(self, side: Side, *, rows: int, width: int) -> None:
        self.rows, self.crossed = rows, 0
        self._side = side
        shape, session = (1, rows, width), side.session
        self._is_near = session.provider.device == "cpu"
        host = session.allocate_host(shape, _FLOAT32)
        self.tensor = host if self._is_near else session.allocate(shape, _FLOAT32)
        self._host = host
        self._whole: Rows = view(host)[0]
        self._sparse = np.full((rows, 0 if self._is_near else width), -np.inf, np.float32)
        self._filled: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self._best: dict[int, Callable[[], tuple[NDArray[Any], ...]]] = {}

    def read(self, best: Best | None) -> Rows:
        """Return `[rows, width]`, which holds until the next call.

        With `best` a row may be −inf but at its `best.count + 1` largest logits, if that changes no
        law.
        """
        if self._is_near:
            return self._whole
        self.crossed = 0
        if best is not None and best.count < self._side.columns:
            values, ids, sums = self._find(best.count + 1)
            self.crossed = values.nbytes + ids.nbytes + sums.nbytes
            # A sum that is no number tells of an odd logit somewhere in the row.
            if np.isfinite(sums).all() and best.is_clear(values):
                return self._spread(values, ids)
        self._copy.run()
        self.crossed += self._whole.nbytes
        return self._whole

    @cached_property
    def _copy(self) -> Binding:
        return self._side.copy.bind({"logits": self.tensor}, {"rows": self._host})

    def _find(self, count: int) -> tuple[NDArray[Any], ...]:
        if count not in self._best:
            self._best[count] = self._bind_best(count)
        return self._best[count]()

    def _bind_best(self, count: int) -> Callable[[], tuple[NDArray[Any], ...]]:
        session, shape = self._side.best, (1, self.rows, count)
        found = {
            "values": session.allocate_host(shape, _FLOAT32),
            "ids": session.allocate_host(shape, _INT64),
            "sums": session.allocate_host(shape[:2], _FLOAT32),
        }
        wanted = session.allocate_host((1,), _INT64)
        write(wanted, np.array([count], np.int64))
        binding = session.bind({"logits": self.tensor, "count": wanted}, found)
        arrays = tuple(view(tensor)[0] for tensor in found.values())

        def run() -> tuple[NDArray[Any], ...]:
            binding.run()
            return arrays

        return run

    def _spread(self, values: Rows, ids: NDArray[np.int64]) -> Rows:
        np.put_along_axis(self._sparse, self._filled, np.float32(-np.inf), axis=1)
        np.put_along_axis(self._sparse, ids, values, axis=1)
        self._filled = ids.copy()
        return self._sparse
