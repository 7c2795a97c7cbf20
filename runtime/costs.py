"""What passes cost on one machine, and what speculation can gain at these costs.

In: measured seconds (`measure.py`). Out: `CostTable`, which answers for every width and depth, and
the arithmetic of a fixed number of drafted tokens: rate, break-even acceptance, best k. Words:
v(m) is the time of one pass over m tokens ÷ the time of a plain decoding step; c is one draft step
÷ the same. Pure functions and values.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from .providers import Threads

TARGET = "target"
Mode = Literal["greedy", "sampled", "coupled"]
MODES: tuple[Mode, ...] = ("greedy", "sampled", "coupled")
LONGEST_STATIC_K = 16
QUIET = 0.8
_READY_WIDTHS = 65
_HALVINGS = 40


@dataclass(frozen=True)
class Line:
    """Measured points `(x, y)`, x ascending; straight between them.

    Below the first point the value is the first one's; beyond the last one the line goes on, but
    not down.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, x: float) -> float:
        """Return the value at `x`."""
        points = self.points
        place = bisect_left(points, (x,))
        if place < len(points) and points[place][0] == x:
            return points[place][1]
        if place == 0 or len(points) == 1:
            return points[0][1]
        is_beyond = place == len(points)
        (x0, y0), (x1, y1) = points[-2:] if is_beyond else points[place - 1 : place + 1]
        y = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        return max(y1, y) if is_beyond else y

    def without_falls(self) -> "Line":
        """Return the line that rises, or stays level, through the same x.

        A point above a later one was held up: it is set between those that were not.
        """
        sound: list[tuple[float, float]] = []
        for x, y in reversed(self.points):
            if not sound or y <= sound[-1][1]:
                sound.append((x, y))
        line = Line(tuple(reversed(sound)))
        return Line(tuple((x, line.at(x)) for x, _ in self.points))


@dataclass(frozen=True, kw_only=True)
class PassCosts:
    """Seconds of one model's passes, this model taking turns with the others of its bundle.

    Attributes:
        even_step: 2 if even widths (`Model.begin`) make a difference to this model, else 1.
        depth: tokens in the cache when `by_width` was measured.
        by_width: seconds by the number of tokens fed.
        added: for each deeper cache, its depth and the seconds that it adds, by width.
        plain: for the target, seconds of a pass over one token in plain decoding, by depth.
        step: widths are run rounded up to a multiple of it.
    """

    even_step: int
    depth: int
    by_width: Line
    added: tuple[tuple[int, Line], ...]
    plain: Line
    step: int = 1

    def at_even_widths(self) -> "PassCosts":
        """Return the costs of this model when passes run at even widths."""
        even = replace(self, step=self.even_step)
        plain = ((depth, even.seconds(1, int(depth))) for depth, _ in self.plain.points)
        return even if self.even_step == 1 else replace(even, plain=Line(tuple(plain)))

    @property
    def widths(self) -> list[int]:
        """The widths that were measured."""
        return [int(width) for width, _ in self.by_width.points]

    def seconds(self, width: int, depth: int) -> float:
        """Return the seconds of a pass over `width` tokens behind `depth` tokens of cache.

        Straight lines between measured widths and depths: attention's part grows with both. A
        microsecond or so, for loops that ask in every round.
        """
        own = self._own[width] if width < _READY_WIDTHS else self._own_at(width)
        if depth <= self.depth:
            return own
        return own + max(0.0, self._added_at(width).at(depth))

    @cached_property
    def _own(self) -> list[float]:
        return [self._own_at(width) for width in range(_READY_WIDTHS)]

    @cached_property
    def _added(self) -> list[Line]:
        return [self._added_line(width) for width in range(_READY_WIDTHS)]

    def _added_at(self, width: int) -> Line:
        return self._added[width] if width < _READY_WIDTHS else self._added_line(width)

    def _own_at(self, width: int) -> float:
        return self.by_width.at(self._run(width))

    def _added_line(self, width: int) -> Line:
        """Return what deeper caches add to a pass over `width` tokens, by depth."""
        wide = self._run(width)
        deeper = tuple((float(depth), max(0.0, line.at(wide))) for depth, line in self.added)
        return Line(((float(self.depth), 0.0), *deeper))

    def _run(self, width: int) -> int:
        """Return the width that a pass over `width` tokens really has."""
        return -(-width // self.step) * self.step


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Seconds that a round spends outside the graphs, in one mode of drawing.

    Attributes:
        law: from one row of logits to a law, and one draw from it.
        judge: the acceptance rule, for each drafted token.
    """

    law: float
    judge: float


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """What one bundle costs on one machine.

    Attributes:
        models: passes by model name, the target first.
        copiers: seconds of one proposal, by the name of a drafter that needs no model.
        host: costs outside the graphs by mode: all laws point masses (`greedy`), drawn from
            (`sampled`), or raced by shared noise (`coupled`).
        settings: the thread setting that passes were timed with, then those that were slower,
            each with the seconds of a plain step and a round of one drafted token; 0 if untimed.
        share: how much of the time of the passes the calling thread, which takes part in them, had
            a core; less than `QUIET` says that others were at work.
    """

    models: Mapping[str, PassCosts]
    copiers: Mapping[str, float]
    host: Mapping[Mode, HostCosts]
    settings: tuple[tuple[Threads, float], ...]
    share: float

    @property
    def threads(self) -> Threads:
        """The thread setting that passes were timed with."""
        return self.settings[0][0]

    @property
    def drafters(self) -> list[str]:
        """The draft models and the copiers, by name."""
        return [*(name for name in self.models if name != TARGET), *self.copiers]

    def at_even_widths(self) -> "CostTable":
        """Return the table for requests that run passes at even widths."""
        models = {name: costs.at_even_widths() for name, costs in self.models.items()}
        return replace(self, models=models)

    @property
    def depth(self) -> int:
        """The depth at which every width of the target was measured."""
        return self.models[TARGET].depth

    def seconds(self, name: str, *, width: int, depth: int) -> float:
        """Return the seconds of a pass of model `name` in a speculative round.

        Args:
            name: of the model.
            width: tokens fed, ≥ 1.
            depth: tokens that the cache holds before the pass.
        """
        return self.models[name].seconds(width, depth)

    def plain_seconds(self, depth: int) -> float:
        """Return the seconds of the target's pass in a step of plain decoding."""
        return self.models[TARGET].plain.at(depth)

    def v(self, width: int, *, depth: int | None = None) -> float:
        """Return a pass of the target over `width` tokens ÷ a plain decoding step."""
        depth = self.depth if depth is None else depth
        return self.seconds(TARGET, width=width, depth=depth) / self.plain_seconds(depth)

    def c(self, drafter: str, *, depth: int | None = None) -> float:
        """Return c: one token of `drafter` ÷ a plain decoding step; per proposal for a copier."""
        depth = self.depth if depth is None else depth
        return self._draft_seconds(drafter, depth) / self.plain_seconds(depth)

    def step_seconds(self, *, mode: Mode = "greedy", depth: int | None = None) -> float:
        """Return the seconds of a whole step of plain decoding: the pass, the law, the draw."""
        depth = self.depth if depth is None else depth
        return self.plain_seconds(depth) + self.host[mode].law

    def round_seconds(
        self, k: int, drafter: str, *, mode: Mode = "greedy", depth: int | None = None
    ) -> float:
        """Return the seconds C(k) of a round that drafts `k` tokens; k = 0 is a plain step.

        C(k) = target's pass over k + 1 tokens + Σ drafting + laws and acceptance (FACTS of the
        field: Leviathan et al., arXiv 2211.17192, section 3.3, with v(k + 1) in place of 1).

        Args:
            k: drafted tokens.
            drafter: a draft model of the table, or a copier.
            mode: how laws are drawn from.
            depth: tokens in the caches; by default where every width was measured.
        """
        if k == 0:
            return self.step_seconds(mode=mode, depth=depth)
        depth = self.depth if depth is None else depth
        host = self.host[mode]
        drafting = self._draft_seconds(drafter, depth)
        if drafter in self.models:
            drafting = k * (drafting + host.law)
        verifying = self.seconds(TARGET, width=k + 1, depth=depth)
        return verifying + drafting + (k + 1) * host.law + k * host.judge

    def _draft_seconds(self, drafter: str, depth: int) -> float:
        if drafter in self.copiers:
            return self.copiers[drafter]
        return self.seconds(drafter, width=1, depth=depth)


def expected_tokens(survival: Sequence[float]) -> float:
    """Return E[T] = 1 + Σ sᵢ, the tokens that a round emits on average.

    Args:
        survival: sᵢ, the probability that drafted tokens 1 … i are all accepted.

    Source: arXiv 2211.17192, equation 1, which is the case sᵢ = αⁱ.
    """
    return 1.0 + sum(survival)


def constant_survival(acceptance: float, k: int) -> list[float]:
    """Return sᵢ = αⁱ for i = 1 … k: every tested token is accepted with probability α."""
    return [acceptance**i for i in range(1, k + 1)]


def predict_speedup(
    table: CostTable,
    survival: Sequence[float],
    drafter: str,
    *,
    mode: Mode = "greedy",
    depth: int | None = None,
) -> float:
    """Return the rate of rounds that draft `len(survival)` tokens ÷ the rate of plain decoding.

    It is E[T] · C(0) / C(k) (arXiv 2211.17192, theorem 3.8, with the measured C).
    """
    costs = [table.round_seconds(k, drafter, mode=mode, depth=depth) for k in (0, len(survival))]
    return expected_tokens(survival) * costs[0] / costs[1]


def break_even_acceptance(
    table: CostTable,
    k: int,
    drafter: str,
    *,
    gain: float = 1.0,
    mode: Mode = "greedy",
    depth: int | None = None,
) -> float | None:
    """Return the constant acceptance α at which drafting `k` tokens is `gain` times as fast.

    It solves 1 + α + … + αᵏ = gain · C(k) / C(0). `None`: not even α = 1 would do.
    """

    def speedup(acceptance: float) -> float:
        survival = constant_survival(acceptance, k)
        return predict_speedup(table, survival, drafter, mode=mode, depth=depth)

    if speedup(1.0) < gain:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if speedup(middle) < gain else (low, middle)
    return high


def best_static_k(
    table: CostTable,
    acceptance: float,
    drafter: str,
    *,
    mode: Mode = "greedy",
    depth: int | None = None,
) -> tuple[int, float]:
    """Return the k (0 included) of the highest rate at a constant acceptance, and its speed-up.

    Every k up to `LONGEST_STATIC_K` is tried: at measured costs the rate may have several peaks.
    """
    speedups = [
        predict_speedup(table, constant_survival(acceptance, k), drafter, mode=mode, depth=depth)
        for k in range(LONGEST_STATIC_K + 1)
    ]
    k = max(range(len(speedups)), key=lambda i: speedups[i])
    return k, speedups[k]
