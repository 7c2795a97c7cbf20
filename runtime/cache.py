"""The key-value cache of one model: in-place tensors, and which tokens they hold.

In: a session and the manifest's cache layout. Out: `Cache`, whose tensors are bound as past and as
present at once. Rolling back is a host integer: what lies beyond the length is never looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import numpy as np

from .errors import CapacityError
from .manifest import CacheLayout
from .session import Session, Tensor

# By kind of device: a cache that moves passes through the host, which is far from a GPU.
FIRST_CAPACITY = {"cpu": 256, "cuda": 2048}
SCRATCH = 1  # a graph may write one position beyond its tokens, which nothing reads


def doubled(columns: int, *, first: int, most: int) -> int:
    """Return the first doubling of `first`, at most `most`, that holds so many columns.

    For kernels whose time depends on how full a cache is, and not on how large.
    """
    capacity = first
    while capacity < columns:
        capacity *= 2
    return min(capacity, most)


def stepped(columns: int, *, first: int, most: int) -> int:
    """Return the first capacity that holds so many columns, of four between each two doublings.

    For kernels that read the whole capacity: at most a fifth of it is in vain, and few shapes come.
    """
    if columns <= first:
        return min(first, most)
    step = 1 << ((columns - 1).bit_length() - 3)
    return min(-(-columns // step) * step, most)


class Cache:
    """Keys and values of the tokens that a model has been fed.

    Every layer holds a key and a value tensor `[sequences, kv_heads, capacity, head_dim]`. They
    move to larger ones when the capacity is used up; `generation` counts these moves, so that
    whoever bound the old tensors knows to bind the new ones.

    Args:
        session: where the tensors lie.
        layout: their shape, as the manifest says it.
        context: the most tokens that a sequence may have.
        sequences: how many sequences there are.
        grow: from the columns that are needed to the capacity to take; idle columns may need more.
        shrinks: give up capacity that a new text does not need.
        grows_itself: the graph hands back tensors that are longer by what a pass fed.

    Attributes:
        sequences: the tokens that each sequence holds.
        capacity: columns of each tensor, one a token.
    """

    def __init__(
        self,
        session: Session,
        layout: CacheLayout,
        *,
        context: int,
        grow: Callable[[int], int],
        sequences: int = 1,
        shrinks: bool = False,
        grows_itself: bool = False,
    ) -> None:
        self._session = session
        self._layout = layout
        self._grow = grow
        self._shrinks = shrinks
        self._grows_itself = grows_itself
        self.context = context
        self.sequences: list[list[int]] = [[] for _ in range(sequences)]
        self.generation = 0
        self.capacity = 0 if grows_itself else self._fitting(1)
        dtype = np.dtype(layout.dtype)
        self._tensors = {}
        for layer in range(layout.layers):
            heads, width = layout.shape_of(layer)
            for part in ("key", "value"):
                shape = (sequences, heads, self.capacity, width)
                self._tensors[f"{layer}.{part}"] = session.allocate(shape, dtype)

    def __len__(self) -> int:
        """Return how many tokens the longest sequence holds."""
        return max(map(len, self.sequences))

    @property
    def tokens(self) -> list[int]:
        """The tokens of the first sequence; most caches hold no other."""
        return self.sequences[0]

    @property
    def bytes(self) -> int:
        """Memory that the cache takes now, in bytes."""
        return self.column_bytes * self.capacity

    @property
    def column_bytes(self) -> int:
        """Memory that one token of every sequence takes, in bytes."""
        layout = self._layout
        shapes = map(layout.shape_of, range(layout.layers))
        column = 2 * sum(heads * width for heads, width in shapes)  # key and value
        return column * len(self.sequences) * np.dtype(layout.dtype).itemsize

    def named(self, side: str) -> dict[str, Tensor]:
        """Return the tensors by the graph's names, `side` being `past` or `present`."""
        return {f"{side}.{name}": tensor for name, tensor in self._tensors.items()}

    def reserve(self, length: int, *, idle: int = SCRATCH) -> None:
        """Make room for `length` tokens of each sequence and `idle` columns behind them.

        Raises:
            CapacityError: `length` exceeds the model's context.
        """
        if length > self.context:
            raise CapacityError(
                f"the model's context holds {self.context} tokens, but {length} were to be fed"
            )
        if length + idle > self.capacity and not self._grows_itself:
            self._move(self._fitting(length + idle))

    def cut(self, columns: int) -> None:
        """Let the tensors have as many columns as tokens that the next pass goes on from."""
        if columns != self.capacity:
            self._move(columns)

    def take(self, tensors: Mapping[str, Tensor], columns: int) -> None:
        """Hold from now on what a graph handed back, by its names, `columns` columns long."""
        self._tensors = {name: tensors[f"present.{name}"] for name in self._tensors}
        self.capacity = columns

    def trim(self, length: int) -> None:
        """Give up capacity that a text of `length` tokens does not need, if this cache shrinks."""
        capacity = self._fitting(max(length, len(self)) + SCRATCH)
        if self._shrinks and 2 * capacity <= self.capacity:
            self._move(capacity)

    def rewind(self, *, to: int) -> None:
        """Forget all but the first `to` tokens of every sequence."""
        for tokens in self.sequences:
            del tokens[to:]

    def shared_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the first `tokens` the cache holds already."""
        pairs = zip(self.tokens, tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _fitting(self, columns: int) -> int:
        return max(columns, self._grow(columns))

    def _move(self, capacity: int) -> None:
        # All of them or none: memory may run out halfway.
        self._tensors = {
            name: self._moved(tensor, capacity) for name, tensor in self._tensors.items()
        }
        self.capacity = capacity
        self.generation += 1

    def _moved(self, tensor: Tensor, capacity: int) -> Tensor:
        old = tensor.numpy()  # [sequences, kv_heads, old capacity, head_dim]
        new = np.zeros((*old.shape[:2], capacity, old.shape[3]), old.dtype)
        kept = min(len(self), old.shape[2], capacity)
        new[:, :, :kept] = old[:, :, :kept]
        return self._session.place(new)
