"""The key-value cache of one model: in-place tensors, and which tokens they hold.

In: a session and the manifest's cache layout. Out: `Cache`, whose tensors are bound as past and as
present at once. Rolling back is a host integer: what lies beyond the length is never read.
"""

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from .errors import CapacityError
from .manifest import CacheLayout
from .session import Session, Tensor

_FIRST_CAPACITY = 256
_SCRATCH = 1  # a graph may write one position beyond its tokens, which nothing reads


class Cache:
    """Keys and values of the tokens that a model has been fed.

    Every layer holds a key and a value tensor `[1, kv_heads, capacity, head_dim]`. The capacity
    doubles when it is used up, at most to `context` and a scratch position; `generation` counts
    these moves, so that whoever bound the old tensors knows to bind the new ones.
    """

    def __init__(self, session: Session, layout: CacheLayout, *, context: int) -> None:
        self._session = session
        self._layout = layout
        self._context = context
        self.capacity = min(_FIRST_CAPACITY, context + _SCRATCH)
        self.generation = 0
        self.tokens: list[int] = []
        shape = (1, layout.kv_heads, self.capacity, layout.head_dim)
        dtype = np.dtype(layout.dtype)
        self._tensors = {
            f"{layer}.{part}": session.allocate(shape, dtype)
            for layer in range(layout.layers)
            for part in ("key", "value")
        }

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """Memory that the cache takes now, in bytes."""
        layout = self._layout
        size = layout.kv_heads * self.capacity * layout.head_dim * np.dtype(layout.dtype).itemsize
        return len(self._tensors) * size

    def named(self, side: str) -> dict[str, Tensor]:
        """Return the tensors by the graph's names, `side` being `past` or `present`."""
        return {f"{side}.{name}": tensor for name, tensor in self._tensors.items()}

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in all.

        Raises:
            CapacityError: `length` exceeds the model's context.
        """
        if length > self._context:
            raise CapacityError(
                f"the model's context holds {self._context} tokens, but {length} were to be fed"
            )
        if length + _SCRATCH <= self.capacity:
            return
        capacity = self.capacity
        while capacity < length + _SCRATCH:
            capacity *= 2
        capacity = min(capacity, self._context + _SCRATCH)
        # All of them or none: memory may run out halfway.
        self._tensors = {
            name: self._grown(tensor, capacity) for name, tensor in self._tensors.items()
        }
        self.capacity = capacity
        self.generation += 1

    def rewind(self, *, to: int) -> None:
        """Forget all but the first `to` tokens."""
        del self.tokens[to:]

    def shared_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the first `tokens` the cache holds already."""
        pairs = zip(self.tokens, tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _grown(self, tensor: Tensor, capacity: int) -> Tensor:
        old = tensor.numpy()  # [1, kv_heads, old capacity, head_dim]
        grown = np.zeros((*old.shape[:2], capacity, old.shape[3]), old.dtype)
        grown[:, :, : len(self)] = old[:, :, : len(self)]
        return self._session.place(grown)
