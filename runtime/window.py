"""A draft model that reads the end of a long prompt first, and the rest when that is earned.

Reading a prompt takes a draft as long as many plain steps, and whether it pays shows only after. So
a draft that would have much to read begins with the prompt's last tokens, as if nothing stood
before them: its laws are then poorer guesses, which exactness does not mind. `Window` is a `Model`
whose positions stay those of the whole sequence.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .logits import Best
from .model import Model

# Tokens of the prompt that are read at once, about two plain steps' worth for a draft of a third
# of the target's size. More than a round's rows, which must all lie in the window.
AT_FIRST = 32


class Window:
    """A model behind a window that hides the first `unread` tokens of the sequence.

    Args:
        model: the draft.
        keeps_known: read on from what an earlier request left in the cache, if that is much. Only
            where the text does not depend on what is drafted: it would depend on that request.
    """

    def __init__(self, model: Model, *, keeps_known: bool) -> None:
        self._model = model
        self._keeps_known = keeps_known
        self.vocabulary = model.vocabulary
        self.has_even_widths = False
        self.unread = 0

    @property
    def context(self) -> int:
        """Most tokens of a sequence whose end the model can hold."""
        return self._model.context + self.unread

    @property
    def length(self) -> int:
        """Number of tokens up to the last one that the cache holds, unread ones included."""
        return self.unread + self._model.length

    def score(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        """Feed what is new and not hidden of `tokens`; see `Model.score`."""
        return self._model.score(tokens[self.unread :], rows)

    def rewind(self, *, to: int) -> None:
        """Forget all but the first `to` tokens."""
        self._model.rewind(to=max(0, to - self.unread))

    def begin(self, tokens: Sequence[int], *, even_widths: bool, best: Best | None = None) -> None:
        """Get ready for a request; hide what would have to be read, unless that is little."""
        self._model.begin(tokens, even_widths=even_widths, best=best)
        self.has_even_widths = self._model.has_even_widths
        known = self._model.length if self._keeps_known else 0
        self.unread = 0
        if len(tokens) - known > AT_FIRST and known < 2 * AT_FIRST:
            self._model.rewind(to=0)
            self.unread = len(tokens) - AT_FIRST

    def fits(self, length: int) -> bool:
        """Return whether a sequence of `length` tokens could be read from its start."""
        return length <= self._model.context

    def open(self) -> None:
        """Hide nothing any more: the next pass reads the sequence from its start."""
        self._model.rewind(to=0)
        self.unread = 0
