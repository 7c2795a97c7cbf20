"""What a drafter of some acceptance would gain at the costs of a bundle on this machine.

In: an acceptance, the drafter's weights as a share of the target's, and the bundle's cost table.
Out: the best number of drafted tokens, tokens a pass and speed-up by temperature. A draft's pass is
taken to cost its share of the target's, which holds where reading weights takes the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runtime.costs import TARGET, CostTable, Line, Mode, PassCosts, expected_tokens, predict_speedup

from .measure import LONGEST_RUN, Acceptance

_DRAFTER = "drafter"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The best k (0: plain decoding), the mean accepted length (MAT) and the speed-up at it."""

    k: int
    tokens: float
    speedup: float


def add_drafter(table: CostTable, share: float) -> CostTable:
    """Return the table with a draft whose passes cost this share of the target's."""
    target = table.models[TARGET]
    scaled = replace(
        target,
        by_width=_scale(target.by_width, share),
        added=tuple((depth, _scale(line, share)) for depth, line in target.added),
        plain=_scale(target.plain, share),
    )
    models: dict[str, PassCosts] = {TARGET: target, _DRAFTER: scaled}
    return replace(table, models=models)


def make_forecasts(acceptance: Acceptance, table: CostTable) -> Mapping[float, Forecast]:
    """Return the forecast at each temperature; `table` is one of `add_drafter`."""
    found = {}
    for temperature, survival in acceptance.survival.items():
        mode: Mode = "greedy" if temperature == 0 else "sampled"
        speedups = [
            predict_speedup(table, survival[:k], _DRAFTER, mode=mode)
            for k in range(LONGEST_RUN + 1)
        ]
        k = max(range(len(speedups)), key=speedups.__getitem__)
        found[temperature] = Forecast(
            k=k, tokens=expected_tokens(survival[:k]), speedup=speedups[k]
        )
    return found


def _scale(line: Line, share: float) -> Line:
    return Line(tuple((x, y * share) for x, y in line.points))
