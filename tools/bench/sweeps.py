"""Sweeps: the same rows at several prompt lengths, answer lengths, thread counts, loads.

In: `--sweep prompt=32,256 output=64 concurrency=1,2 threads=1,2`. Out: points, each a plan of its
own. Prompts of a given length are pieces of our own texts' ids, one after the other, so that a
length differs from another one in nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice

from tools.errors import ToolError

from .prompts import Prompt

AXES = ("prompt", "output", "concurrency", "threads")
_PROMPTS = 2


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One value of one axis."""

    axis: str
    value: int

    @property
    def name(self) -> str:
        """The point's name in samples, such as `prompt=256`."""
        return f"{self.axis}={self.value}"


def parse_sweep(words: Sequence[str]) -> list[SweepPoint]:
    """Return the points that words such as `prompt=32,256` spell.

    Raises:
        ToolError: an axis is unknown or a value is not a whole number of at least 1.
    """
    points = []
    for word in words:
        axis, _, values = word.partition("=")
        if axis not in AXES:
            raise ToolError(f"a sweep goes along one of {', '.join(AXES)}, not {axis!r}")
        for value in values.split(","):
            if not value.strip().isdecimal() or int(value) < 1:
                raise ToolError(
                    f"--sweep {word}: {value!r} is not a whole number of at least 1; give values "
                    f"such as {axis}=1,2"
                )
            points.append(SweepPoint(axis=axis, value=int(value)))
    return points


def choose_prompts(point: SweepPoint, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts of a point: as many as its load needs, of its length if it has one."""
    count = max(_PROMPTS, point.value) if point.axis == "concurrency" else _PROMPTS
    if point.axis != "prompt":
        chosen = list(islice(cycle(prompts), count))
        return tuple(
            Prompt(name=f"{i}:{prompt.name}", category=prompt.category, ids=prompt.ids)
            for i, prompt in enumerate(chosen)
        )
    return tuple(stretch(prompts, point.value, start=i) for i in range(count))


def stretch(prompts: Sequence[Prompt], length: int, *, start: int) -> Prompt:
    """Return a prompt of exactly `length` ids: those of the prompts from `start` on, in a ring."""
    ring = cycle([*prompts[start % len(prompts) :], *prompts[: start % len(prompts)]])
    ids = tuple(islice(chain.from_iterable(prompt.ids for prompt in ring), length))
    return Prompt(name=f"{start}:{length} ids", category="stretched", ids=ids)
