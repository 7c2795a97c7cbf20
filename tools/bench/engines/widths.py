"""v(m): how long one pass over m tokens takes, the table that every speculative gain rests on.

In: a model and how many tokens its cache holds meanwhile. Out: seconds of single passes by width,
taken in turns over the widths so that drift of the machine meets all of them alike.
"""

from time import perf_counter

from runtime.model import OnnxModel

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_ROUNDS = 7
_WARM_UPS = 2
_TOKEN = 1


def time_widths(model: OnnxModel, past: int) -> dict[str, list[float]]:
    """Return the seconds of each pass by its width, for widths that fit beside `past` tokens."""
    widths = [width for width in WIDTHS if past + width <= model.context]
    model.cache.reserve(past + max(widths))
    model.score([_TOKEN] * past, 1)
    steps = {width: model.steps.of(width, width) for width in widths}
    seconds: dict[str, list[float]] = {str(width): [] for width in widths}
    for turn in range(_WARM_UPS + _ROUNDS):
        for width, step in steps.items():
            began = perf_counter()
            step.run([[_TOKEN] * width], [past])
            if turn >= _WARM_UPS:
                seconds[str(width)].append(round(perf_counter() - began, 7))
    return seconds
