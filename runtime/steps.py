"""One pass as a cached binding: what a graph of each flavour reads, and how a pass fills it in.

In: a session, a cache, and how many tokens and rows a pass has. Out: a `Step` that is filled and
run again and again without a tensor being made or named anew; `Steps` keeps those used lately.
Source: the graph's signature, `export.attention`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .adopted import AdoptedStep, check_adopted
from .cache import SCRATCH, Cache
from .errors import BundleError
from .logits import Best, Logits, Side
from .manifest import ADOPTED_FLAVOURS, ModelEntry
from .session import Session, write

KEPT_STEPS = 48
MOST_CAPTURED = 17  # tokens of a pass that is worth recording: plain steps and proposals
_INT32, _INT64, _BOOL = (np.dtype(kind) for kind in (np.int32, np.int64, np.bool_))
# The inputs, beside ids, rows and caches, that say where the new tokens stand.
_PLACES = {
    "fused": {"seqlens_k", "total_sequence_length"},
    "portable": {"position_ids", "write_indices"},
    "trees": {"position_ids", "write_indices", "attention_mask"},
}
Read = Callable[[], NDArray[np.float32]]


class Step(Protocol):
    """A pass over `count` new tokens of every sequence, which projects `rows` of them."""

    def run(self, new: Sequence[Sequence[int]], past: Sequence[int]) -> NDArray[np.float32]:
        """Feed the tokens `new[b]` of sequence b behind the `past[b]` that its cache holds.

        A sequence with fewer than `count` tokens is filled up with idle ones, which nothing reads.

        Returns:
            `[rows, logits] float32`, of the last rows unless `want` chose others, and only what
            `Steps.best` asks of each where that is enough; they hold until the next run.
        """
        ...

    def want(self, rows: Sequence[int]) -> None:
        """Choose which rows to project: row r of sequence b is counted `b * count + r`."""
        ...


class Steps:
    """The passes of one graph over one cache, by their tokens and rows; the latest are kept.

    Attributes:
        best: the part of each row that is looked at; `None` for all of it.
    """

    def __init__(self, session: Session, cache: Cache, entry: ModelEntry, columns: int) -> None:
        self._session = session
        self._cache = cache
        self._entry = entry
        self._kept: OrderedDict[tuple[int, int], Step] = OrderedDict()
        self._generation = cache.generation
        self._side = Side(session, min(columns, entry.logits))
        self._logits: dict[int, Logits] = {}
        self.best: Best | None = None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield tokens and rows of the passes that are kept."""
        return iter(self._kept)

    def __len__(self) -> int:
        """Return how many passes are kept."""
        return len(self._kept)

    def clear(self) -> None:
        """Let go of all bindings."""
        self._kept.clear()

    def of(self, count: int, rows: int) -> Step:
        """Return the pass over `count` tokens of each sequence that projects `rows` rows."""
        if self._generation != self._cache.generation:
            self._kept.clear()
            self._generation = self._cache.generation
        if (count, rows) not in self._kept:
            self._kept[count, rows] = self._bind(count, rows)
            if len(self._kept) > KEPT_STEPS:
                self._kept.popitem(last=False)
        self._kept.move_to_end((count, rows))
        return self._kept[count, rows]

    def _bind(self, count: int, rows: int) -> Step:
        session, cache, flavour = self._session, self._cache, self._entry.flavour
        if flavour in ADOPTED_FLAVOURS:
            is_growing = flavour == "growing"
            return AdoptedStep(session, cache, count=count, rows=rows, is_growing=is_growing)
        logits = self._logits_of(rows)

        def read() -> NDArray[np.float32]:
            return logits.read(self.best)

        if flavour == "fused":
            return FusedStep(session, cache, count, logits, read)
        return PortableStep(session, cache, count, logits, read, has_mask=flavour == "trees")

    def _logits_of(self, rows: int) -> Logits:
        if rows not in self._logits:
            self._logits[rows] = Logits(self._side, rows=rows, width=self._entry.logits)
        return self._logits[rows]


class FusedStep:
    """A pass of the fused flavour: one sequence, its place told by two lengths."""

    def __init__(
        self, session: Session, cache: Cache, count: int, logits: Logits, read: Read
    ) -> None:
        self._ids = session.allocate((1, count), _INT64)
        self._last = session.allocate((1,), _INT32)
        # GroupQueryAttention reads the total on the host, whatever the provider.
        self._total = session.allocate_host((1,), _INT32)
        self._read = read
        self._rows = session.place(_last_rows(count, logits.rows))
        inputs = {
            "input_ids": self._ids,
            "seqlens_k": self._last,
            "total_sequence_length": self._total,
            "logit_rows": self._rows,
            **cache.named("past"),
        }
        outputs = {"logits": logits.tensor, **cache.named("present")}
        captured = session.captures and count <= MOST_CAPTURED
        self._binding = session.bind(inputs, outputs, captured=captured)
        # A recorded pass repeats what the host said then: the most that the cache may ever hold.
        self._constant = cache.capacity - SCRATCH if captured else None

    def run(self, new: Sequence[Sequence[int]], past: Sequence[int]) -> NDArray[np.float32]:
        """Run the pass; see `Step.run`. The one sequence is never filled up."""
        total = past[0] + len(new[0])
        write(self._ids, np.array(new, np.int64))
        write(self._last, np.array([total - 1], np.int32))
        write(self._total, np.array([self._constant or total], np.int32))
        self._binding.run()
        return self._read()

    def want(self, rows: Sequence[int]) -> None:
        """Choose the rows; see `Step.want`."""
        write(self._rows, np.array(rows, np.int64))


class PortableStep:
    """A pass of the portable flavour: any number of sequences, each with its own place.

    With `has_mask` the graph is told which columns a token sees, instead of finding it out from the
    positions.
    """

    def __init__(
        self,
        session: Session,
        cache: Cache,
        count: int,
        logits: Logits,
        read: Read,
        *,
        has_mask: bool,
    ) -> None:
        shape = (len(cache.sequences), count)
        self.has_mask = has_mask
        self._limit = cache.context - 1
        self._steps = np.arange(count)
        self._columns = np.arange(cache.capacity)
        self._ids = session.allocate(shape, _INT64)
        self._positions = session.allocate(shape, _INT64)
        self._starts = session.allocate(shape[:1], _INT64)
        self._read = read
        self._rows = session.place(_last_rows(count, logits.rows))
        inputs = {
            "input_ids": self._ids,
            "position_ids": self._positions,
            "write_indices": self._starts,
            "logit_rows": self._rows,
            **cache.named("past"),
        }
        self._mask = None
        if has_mask:
            self._mask = session.allocate((*shape, cache.capacity), _BOOL)
            inputs["attention_mask"] = self._mask
        self._binding = session.bind(
            inputs,
            {"logits": logits.tensor, **cache.named("present")},
            captured=session.captures and count <= MOST_CAPTURED,
        )

    def run(self, new: Sequence[Sequence[int]], past: Sequence[int]) -> NDArray[np.float32]:
        """Run the pass; see `Step.run`."""
        starts = np.array(past, np.int64)  # [B]
        # Idle tokens may stand beyond the context, for which no rotation is known.
        positions = np.minimum(starts[:, None] + self._steps, self._limit)  # [B, S]
        visible = None
        if self._mask is not None:
            visible = self._columns <= positions[..., None]  # [B, S, capacity]
        return self.run_at(new, starts, positions, visible)

    def run_at(
        self,
        new: Sequence[Sequence[int]],
        starts: NDArray[np.int64],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_] | None,
    ) -> NDArray[np.float32]:
        """Run the pass with tokens at any positions, which see any columns of the cache.

        Args:
            new: token ids of each sequence.
            starts: `[B]`, the column that takes a sequence's first new token.
            positions: `[B, S]`, where the tokens stand in their text.
            visible: `[B, S, capacity]`, which columns a token sees; `None` without a mask input.
        """
        ids = np.zeros(positions.shape, np.int64)
        for row, tokens in zip(ids, new, strict=True):
            row[: len(tokens)] = tokens
        write(self._ids, ids)
        write(self._positions, positions)
        write(self._starts, starts)
        if self._mask is not None and visible is not None:
            write(self._mask, visible)
        self._binding.run()
        return self._read()

    def want(self, rows: Sequence[int]) -> None:
        """Choose the rows; see `Step.want`."""
        write(self._rows, np.array(rows, np.int64))


def check_signature(session: Session, entry: ModelEntry, graph: object) -> None:
    """Check that the graph has the inputs and outputs that the manifest promises.

    Raises:
        BundleError: it does not.
    """
    if entry.flavour in ADOPTED_FLAVOURS:
        check_adopted(session, entry.cache, graph)
        return
    layers = range(entry.cache.layers)
    parts = [f"{layer}.{part}" for layer in layers for part in ("key", "value")]
    inputs = {"input_ids", "logit_rows"} | _PLACES[entry.flavour]
    expected_inputs = inputs | {f"past.{part}" for part in parts}
    expected_outputs = {"logits"} | {f"present.{part}" for part in parts}
    for side, expected, found in (
        ("inputs", expected_inputs, set(session.inputs)),
        ("outputs", expected_outputs, set(session.outputs)),
    ):
        if expected != found:
            odd = sorted(expected ^ found)[:3]
            raise BundleError(
                f"{graph} does not have the {side} that its manifest promises (first differences: "
                f"{', '.join(odd)}): the bundle is damaged, export it again"
            )


def _last_rows(count: int, rows: int) -> NDArray[np.int64]:
    return np.arange(count - rows, count, dtype=np.int64)
