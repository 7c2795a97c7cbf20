"""One engine's cost table: found or measured when first asked for, and doubted when passes differ.

In: an engine's models. Out: the table, and a watch that compares it with passes as they happen. An
engine keeps its table for life, for else the same request would choose otherwise; a contradicted
one is measured anew at the next start.
"""

import logging
import math
from collections.abc import Callable, Mapping

from .costs import CostTable
from .drift import CostMonitor
from .kept_costs import CostKey, forget_costs, obtain_costs
from .model import Model
from .speculate import Watch
from .tune import Tunable

_log = logging.getLogger(__name__)


class CostKeeper:
    """Keeps the cost table of an engine, but not its models: those are freed when it is closed.

    Args:
        key: what the table holds for.
    """

    def __init__(self, key: CostKey) -> None:
        self.key = key
        self._table: CostTable | None = None
        self._monitor: CostMonitor | None = None

    def obtain(
        self,
        target: Tunable,
        drafts: Mapping[str, Tunable],
        *,
        refresh: bool = False,
        on_pass: Callable[[], None] = lambda: None,
    ) -> CostTable:
        """Return the table; see `obtain_costs`."""
        if refresh or self._table is None:
            self._table = obtain_costs(self.key, target, drafts, refresh=refresh, on_pass=on_pass)
            self._monitor = CostMonitor(self._table)
        return self._table

    def watch_with(self, models: Mapping[str, Model], watch: Watch) -> Watch:
        """Return `watch`, after a comparison of each pass with the table if there is one.

        Args:
            models: by the name of their level.
            watch: told of every round.
        """
        return watch if self._monitor is None else self._monitor.watch_with(models, watch)

    def doubt(self) -> None:
        """Forget the kept table if passes have contradicted it for long; say so once."""
        if self._monitor is None or not self._monitor.is_contradicted:
            return
        ratio = max(self._monitor.ratios.values(), key=lambda ratio: abs(math.log(ratio)))
        _log.info(
            "passes take %.1f times what they did when they were measured: they are measured anew "
            "at the next start",
            ratio,
        )
        forget_costs(self.key)
        self._monitor = None
