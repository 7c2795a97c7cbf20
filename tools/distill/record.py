"""What a training came to: its curve and figures, as JSON, as lines and as a picture.

In: the points of the curve. Out: `distil.json` beside the drafter's weights, lines for a terminal,
and with matplotlib a plot.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .forecast import Forecast
from .measure import Acceptance
from .training import Point

RECORD_FILE = "distil.json"


def describe_point(point: Point, forecasts: Mapping[float, Forecast]) -> str:
    """Return one line about a point of the curve."""
    beta = ", ".join(f"{value:.3f} at T = {t:g}" for t, value in point.acceptance.beta.items())
    gains = ", ".join(f"{f.speedup:.2f}" for f in forecasts.values())
    loss = "" if point.loss is None else f", loss {point.loss:.3f}"
    return f"{point.tokens} tokens, {point.seconds / 60:.1f} min{loss}: acceptance {beta}" + (
        f"; predicted speed-up {gains}" if gains else ""
    )


def describe_best(acceptance: Acceptance, forecasts: Mapping[float, Forecast]) -> Iterator[str]:
    """Yield a table of β by category and temperature, and what is predicted."""
    temperatures = list(acceptance.beta)
    width = max(map(len, [*acceptance.by_category, "all, tokens a pass at k = 1"]))
    yield "".join(["acceptance".ljust(width), *(f"   T = {t:<4g}" for t in temperatures)])
    for kind, own in {**acceptance.by_category, "all": acceptance.beta}.items():
        cells = (f"{own[t]:11.3f}" if t in own else f"{'n/a':>11}" for t in temperatures)
        yield "".join([kind.ljust(width), *cells])
    for k in (1, 2, 4):
        cells = (f"{1 + sum(acceptance.survival[t][:k]):11.2f}" for t in temperatures)
        yield "".join([f"all, tokens a pass at k = {k}".ljust(width), *cells])
    for t, forecast in forecasts.items():
        yield (
            f"predicted at T = {t:g}: {forecast.speedup:.2f}x with k = {forecast.k}, "
            f"{forecast.tokens:.2f} tokens a pass"
        )


def make_record(
    curve: Sequence[Point], best: Point, forecasts: Mapping[float, Forecast], **facts: Any
) -> str:
    """Return everything as JSON; `facts` say how it was made."""
    content = {
        **facts,
        "best_tokens": best.tokens,
        "forecasts": {f"{t:g}": asdict(forecast) for t, forecast in forecasts.items()},
        "curve": [asdict(point) for point in curve],
    }
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def draw_curve(curve: Sequence[Point], path: Path) -> None:
    """Draw acceptance over trained tokens to `path`, in the format of its suffix.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # only who asks for a plot needs it

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    by_temperature, by_category = figure.subplots(1, 2, sharey=True)
    tokens = [point.tokens for point in curve]
    for t in curve[-1].acceptance.beta:
        values = [point.acceptance.beta[t] for point in curve]
        by_temperature.plot(tokens, values, marker="o", label=f"T = {t:g}")
    for kind in curve[-1].acceptance.by_category:
        values = [_mean(point.acceptance.by_category[kind].values()) for point in curve]
        by_category.plot(tokens, values, marker=".", label=kind)
    for axes in (by_temperature, by_category):
        axes.set(xlabel="trained tokens", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    by_temperature.set_ylabel("acceptance on held-out prompts")
    figure.savefig(path)


def _mean(values: Any) -> float:
    found = list(values)
    return float(sum(found) / len(found))
