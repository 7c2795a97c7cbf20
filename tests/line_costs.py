"""A cost table without a clock: passes cost 1 + slope · (width − 1), drafts a part of it."""

from collections.abc import Iterable

from runtime.costs import MODES, TARGET, CostTable, HostCosts, Line, PassCosts
from runtime.providers import Threads


def line_costs(drafts: Iterable[str] = (), *, slope: float = 0.1, draft: float = 0.1) -> CostTable:
    """Return the table of a target and drafts; a draft's step costs `draft` of a plain one."""
    return CostTable(
        models={TARGET: _passes(slope, 1.0)} | {name: _passes(slope, draft) for name in drafts},
        copiers={},
        host={mode: HostCosts(law=0.0, judge=0.0) for mode in MODES},
        settings=((Threads(count=1), 0.0),),
        share=1.0,
    )


def _passes(slope: float, step: float) -> PassCosts:
    line = Line(((1.0, step), (101.0, step * (1 + 100 * slope))))
    return PassCosts(even_step=1, depth=1, by_width=line, added=(), plain=Line(((1.0, step),)))
