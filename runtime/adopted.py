"""A pass of a graph that another exporter made: a mask says what came before, every row is scored.

In: a session, a cache, and how many tokens and rows a pass has. Out: `AdoptedStep`. The caches are
updated in place (flavour `shared`), or handed back longer (`growing`).
Source: the names that optimum, onnxruntime-genai's builder and transformers.js agree on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cache import Cache
from .errors import BundleError
from .manifest import CacheLayout
from .session import Session, Tensor, view, write

PAST, PRESENT = "past_key_values", "present"
_INT64 = np.dtype(np.int64)
_OPTIONAL = {"attention_mask", "position_ids"}


class AdoptedStep:
    """A pass over `count` new tokens of one sequence, of which the last `rows` are wanted."""

    def __init__(
        self, session: Session, cache: Cache, *, count: int, rows: int, is_growing: bool
    ) -> None:
        self._session = session
        self._cache = cache
        self._is_growing = is_growing
        self._ids = session.allocate((1, count), _INT64)
        self._steps = np.arange(count)
        self._rows = np.arange(count - rows, count)

    def run(self, new: Sequence[Sequence[int]], past: Sequence[int]) -> NDArray[np.float32]:
        """Run the pass; see `Step.run`."""
        session, cache = self._session, self._cache
        total = past[0] + len(self._steps)
        write(self._ids, np.array(new, np.int64))
        if self._is_growing:
            cache.cut(past[0])
        told = {
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.minimum(past[0] + self._steps, cache.context - 1)[None],
        }
        inputs: dict[str, Tensor] = {
            "input_ids": self._ids,
            **{name: session.place(told[name]) for name in told if name in session.inputs},
            **cache.named(PAST),
        }
        held = cache.named(PRESENT)
        outputs: dict[str, Any] = {"logits": None, **held}
        if self._is_growing:
            outputs |= dict.fromkeys(held)
        made = session.bind(inputs, outputs).run()
        if self._is_growing:
            cache.take(made, total)
        # Exporters differ in how wide logits are; the copy outlives the pass.
        return np.array(view(made["logits"])[0, self._rows], np.float32)

    def want(self, rows: Sequence[int]) -> None:
        """Choose the rows; see `Step.want`."""
        self._rows = np.array(rows)


def check_adopted(session: Session, layout: CacheLayout, graph: object) -> None:
    """Check that the graph has the inputs and outputs that such graphs have.

    Raises:
        BundleError: it does not.
    """
    parts = [f"{layer}.{part}" for layer in range(layout.layers) for part in ("key", "value")]
    inputs = {"input_ids", *(f"{PAST}.{part}" for part in parts)}
    outputs = {"logits", *(f"{PRESENT}.{part}" for part in parts)}
    odd = sorted((inputs ^ (set(session.inputs) - _OPTIONAL)) | (outputs ^ set(session.outputs)))
    if odd:
        raise BundleError(
            f"{graph} does not have the inputs and outputs that its manifest promises (first "
            f"differences: {', '.join(odd[:3])}): the bundle is damaged, export it again"
        )
