"""Does the machine still behave as its cost table says?

In: verdicts, with the seconds of passes as they happen. Out: whether they contradict the table for
so long that it should be measured anew. One slow moment does not: a whole window of passes has to
be off, several times in a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from .costs import CostTable
from .model import Model
from .speculate import Verdict, Watch

WINDOW = 32  # passes of one model
OFF = (0.7, 1.4)  # measured ÷ predicted
CALM = (0.8, 1.25)
_WINDOWS = 3


@dataclass
class _Follower:
    """One model: the ratios of the present window, and how many windows in a row were off."""

    ratios: list[float] = field(default_factory=list)
    ratio: float = 1.0
    off: int = 0
    is_contradicted: bool = False


class CostMonitor:
    """Compares passes with the table. Feeding it costs a microsecond."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._followers = {name: _Follower() for name in table.models}

    @property
    def ratios(self) -> Mapping[str, float]:
        """Measured ÷ predicted seconds by model: the median of its last full window, 1 before."""
        return {name: follower.ratio for name, follower in self._followers.items()}

    @property
    def is_contradicted(self) -> bool:
        """Whether a model was off for several windows in a row and has not calmed down since."""
        return any(follower.is_contradicted for follower in self._followers.values())

    def watch_with(self, models: Mapping[str, Model], watch: Watch) -> Watch:
        """Return a watch that feeds this monitor and then tells `watch`.

        Args:
            models: by the name of their level.
            watch: told of every round.
        """

        def both(verdict: Verdict) -> None:
            is_padded = models[verdict.level].has_even_widths
            self.observe(
                verdict.level,
                width=verdict.width + (verdict.width % 2 if is_padded else 0),
                depth=verdict.depth,
                seconds=verdict.verify_seconds,
            )
            watch(verdict)

        return both

    def observe(self, name: str, *, width: int, depth: int, seconds: float) -> None:
        """Take note of one pass; passes wider than what was measured (prompts) are left out.

        Args:
            name: of the model.
            width: tokens fed.
            depth: tokens in its cache before the pass.
            seconds: that it took.
        """
        if width > self._table.models[name].widths[-1]:
            return
        follower = self._followers[name]
        follower.ratios.append(seconds / self._table.seconds(name, width=width, depth=depth))
        if len(follower.ratios) == WINDOW:
            _close_window(follower)


def _close_window(follower: _Follower) -> None:
    follower.ratio = median(follower.ratios)
    follower.ratios.clear()
    is_off = not OFF[0] <= follower.ratio <= OFF[1]
    follower.off = follower.off + 1 if is_off else 0
    if follower.off >= _WINDOWS:
        follower.is_contradicted = True
    elif CALM[0] <= follower.ratio <= CALM[1]:
        follower.is_contradicted = False
