"""Axes of a plot: where a value lies, and which values are marked.

In: the values to be shown. Out: `Axis`, linear from zero or logarithmic.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Maps values between `low` and `high` to places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return where `value` lies; what is out of range lies at the edge."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_logarithmic:
            low, high, here = math.log(low), math.log(high), math.log(here)
        return self.start + (self.end - self.start) * (here - low) / (high - low)


def make_linear(values: Iterable[float], *, start: float, end: float) -> Axis:
    """Return an axis from zero to a round number that holds all values."""
    most = max(values, default=0.0) or 1.0
    step = _round_step(most / 4)
    count = math.ceil(most / step - 1e-9)
    ticks = tuple(round(i * step, 10) for i in range(count + 1))
    return Axis(low=0.0, high=ticks[-1], start=start, end=end, ticks=ticks)


def make_logarithmic(values: Iterable[float], *, start: float, end: float) -> Axis:
    """Return a logarithmic axis that holds all values, marked at 1, 2 and 5 or at tens alone."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = min(known) / 1.15, max(known) * 1.15
    if high / low < 4:  # a narrow range would be left without marks
        low, high = low / 1.5, high * 1.5
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = _STEPS[:3] if high / low < 300 else _STEPS[:1]
    marks = (step * 10.0**ten for ten in tens for step in steps)
    ticks = tuple(mark for mark in marks if low <= mark <= high)
    return Axis(low=low, high=high, start=start, end=end, ticks=ticks, is_logarithmic=True)


def format_tick(value: float) -> str:
    """Return a mark's text: no more digits than it needs."""
    return f"{value:g}" if value < 1e4 else f"{value / 1e3:g}k"


def _round_step(least: float) -> float:
    ten = 10.0 ** math.floor(math.log10(least))
    return next(step * ten for step in _STEPS if step * ten >= least * (1 - 1e-9))
