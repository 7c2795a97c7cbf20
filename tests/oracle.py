"""Enumerate every outcome of code that draws at random, with its exact probability.

The code under test runs again and again; each run follows one path through its random choices.
`Coin` stands in for a uniform number, `OracleNoise` for `runtime.noise.Noise`; drawing from a law
is a choice among its tokens (`Oracle.draw` replaces `runtime.speculate.draw`).
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from runtime.law import Law

T = TypeVar("T")


class Oracle:
    """One run's choices: a replayed beginning, then the first possible option each time."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.options: list[list[int]] = []
        self.probability: Any = Fraction(1)

    def choose(self, weights: Sequence[Any]) -> int:
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        step = len(self.options)
        self.options.append(possible)
        if step == len(self.path):
            self.path.append(0)
        chosen = possible[self.path[step]]
        self.probability *= weights[chosen]
        return chosen

    def draw(self, law: Law, _uniform: object) -> int:
        return law.token_at(self.choose(list(law.weights)))


class Coin:
    """A uniform number that is only ever compared: each comparison is a choice."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def __lt__(self, threshold: Any) -> bool:
        return self.oracle.choose([threshold, 1 - threshold]) == 0


class OracleNoise:
    """The noise of one run."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def inside(self, _start: int) -> "OracleNoise":
        return self

    def uniform(self, _position: int, _purpose: int) -> Coin:
        return Coin(self.oracle)


def enumerate_runs(run: Callable[[Oracle], T]) -> Iterator[tuple[Any, T]]:
    """Yield (probability, result) of every path through `run`."""
    path: list[int] = []
    while True:
        oracle = Oracle(path)
        result = run(oracle)
        yield oracle.probability, result
        path = oracle.path
        while path and path[-1] + 1 == len(oracle.options[len(path) - 1]):
            path.pop()
        if not path:
            return
        path[-1] += 1
