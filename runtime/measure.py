"""Time the passes of a bundle's models here and now: the seconds behind a cost table.

In: the opened models. Out: a `CostTable`, in a few seconds. Models take turns as in a round (a
draft's pass throws the target's weights out of the processor's caches), widths come in a shuffled
order in every sweep so that a slow moment spoils no one width, and of each the fastest pass counts.
A wider or deeper pass never costs less than another. The models' caches are empty afterwards.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .acceptance import RULES
from .costs import TARGET, CostTable, HostCosts, Line, Mode, PassCosts
from .drafters import Drafter, LookupDrafter, SuffixDrafter
from .law import draw
from .noise import Noise
from .providers import Threads
from .sampling import Sampler, Sampling

# Just below the sizes to which caches grow, so that none is larger than what it holds.
_DEPTH = 128
_DEEPER = (440, 1980)
_DEEPEST_BYTES = 256 << 20  # of one model's cache
_NEAR = tuple(range(1, 10))
_NARROW = tuple(range(1, 18))
_WIDE = (24, 48)
_DEEP_WIDTHS = (1, 4, 16)

# What rounds use most is timed most; the first sweep also warms up.
_SWEEPS = (_NARROW + _WIDE, _NEAR + _WIDE, _NARROW, *(_NEAR,) * 6)
_FEWEST_SWEEPS = 2
_ENOUGH_S = 5.0  # after these, no further one begins that would end later
_LIMIT_S = 12.0  # large models, or a busy machine: what is not timed by then is interpolated
_DEEP_PASSES = 3
_PLAIN_EVERY = 6

_HOST_ROWS = 5
_HOST_REPEATS = 5
_COPIED_TOKENS = 512
_COPIES = 32
_MODES: dict[Mode, tuple[Sampling, str]] = {
    "greedy": (Sampling(temperature=0.0), "match"),
    "sampled": (Sampling(temperature=1.0), "block"),
    "coupled": (Sampling(temperature=1.0, coupled=True), "match"),
}

COPIERS = (SuffixDrafter, LookupDrafter)

Clock = Callable[[], float]


class Timeable(Protocol):
    """What measuring needs of a model; see `OnnxModel`."""

    vocabulary: int
    context: int
    threads: Threads
    has_even_widths: bool

    def begin(self, tokens: Sequence[int], *, even_widths: bool) -> None:
        """Choose the widths at which passes run."""
        ...

    def score(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        """Feed what is new of `tokens`."""
        ...

    def pretend(self, length: int) -> None:
        """Let the cache hold `length` tokens of no meaning."""
        ...

    def renew(self) -> None:
        """Begin with an empty cache."""
        ...

    def cache_bytes(self, length: int) -> int:
        """Return the memory that a cache of `length` tokens takes."""
        ...


def measure_costs(
    target: Timeable,
    drafts: Mapping[str, Timeable],
    *,
    clock: Clock = perf_counter,
    cpu_clock: Clock = thread_time,
    on_pass: Callable[[], None] = lambda: None,
) -> CostTable:
    """Return what passes of these models, proposals and laws cost on this machine.

    Args:
        target: the target model.
        drafts: the draft models by name, nearest to the target first.
        clock: seconds from any start.
        cpu_clock: seconds of processor time of the calling thread, from any start.
        on_pass: called after every pass.
    """
    stack = [
        _Subject(name, model, clock, on_pass)
        for name, model in [*reversed(list(drafts.items())), (TARGET, target)]
    ]
    started, worked = clock(), cpu_clock()
    try:
        _sweep_widths(stack, clock)
        for depth in _DEEPER:
            _sweep_depth([subject for subject in stack if subject.reaches(depth)], depth)
    finally:
        for subject in stack:
            subject.model.renew()
    share = (cpu_clock() - worked) / (clock() - started)
    return CostTable(
        models={subject.name: subject.costs() for subject in reversed(stack)},
        copiers={copier.name: _time_copier(copier(), clock) for copier in COPIERS},
        host=measure_host(target.vocabulary, clock=clock),
        settings=((target.threads, 0.0),),
        share=share,
    )


def time_pass(model: Timeable, width: int, depth: int, *, clock: Clock) -> float:
    """Return the seconds of one pass over `width` tokens behind `depth` tokens of cache."""
    model.pretend(depth)
    tokens = [0] * (depth + width)
    started = clock()
    model.score(tokens, width)
    return clock() - started


def measure_host(vocabulary: int, *, clock: Clock = perf_counter) -> dict[Mode, HostCosts]:
    """Return what laws, draws and acceptance cost outside the graphs.

    Logits are noise: only arg max, softmax and sums over the vocabulary take time. Truncated laws
    (top-k, top-p) cost about as much as the full one.
    """
    rng = np.random.default_rng(0)
    rows = 3 * rng.standard_normal((_HOST_ROWS, vocabulary), np.float32)  # [rows, vocabulary]
    return {
        mode: _time_host(rows, settings, rule, clock) for mode, (settings, rule) in _MODES.items()
    }


@dataclass
class _Subject:
    """One model and the samples of its passes, in seconds."""

    name: str
    model: Timeable
    clock: Clock
    on_pass: Callable[[], None]
    by_width: dict[int, list[float]] = field(default_factory=dict)
    deep: dict[int, dict[int, list[float]]] = field(default_factory=dict)
    plain: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model.renew()
        self.model.begin([], even_widths=True)
        self.even_step = 2 if self.model.has_even_widths else 1
        self.model.begin([], even_widths=False)
        self.depth = min(_DEPTH, max(1, self.model.context // 2))

    def widths(self, of: Sequence[int]) -> list[int]:
        """Return those of the widths that the context holds."""
        return [width for width in of if self.depth + width <= self.model.context]

    def reaches(self, depth: int) -> bool:
        """Whether the cache may hold so many tokens and the widest pass behind them."""
        fits = depth + max(_DEEP_WIDTHS) <= self.model.context
        return fits and self.model.cache_bytes(depth) <= _DEEPEST_BYTES

    def time(self, width: int, depth: int) -> float:
        """Return the seconds of one pass over `width` tokens."""
        seconds = time_pass(self.model, width, depth, clock=self.clock)
        self.on_pass()
        return seconds

    def expect(self, width: int) -> float:
        """Return the seconds that a pass over `width` tokens took at best."""
        return min(self.by_width[width])

    def sample_plain(self, depth: int) -> None:
        """Take a sample of plain decoding: a second pass in a row."""
        self.time(1, depth)
        self.plain.setdefault(depth, []).append(self.time(1, depth))

    def costs(self) -> PassCosts:
        """Return the figures: the fastest of each kind, times how much slower a pass usually is."""
        cells = [*self.by_width.values(), *self.plain.values()]
        usual = median(sample / min(cell) for cell in cells for sample in cell[1:] or cell)
        own = _line((w, usual * min(cell)) for w, cell in sorted(self.by_width.items()))
        own = own.without_falls()
        return PassCosts(
            even_step=self.even_step,
            depth=self.depth,
            by_width=own,
            added=self._added(own, usual),
            plain=_line((d, usual * min(cell)) for d, cell in self.plain.items()).without_falls(),
        )

    def _added(self, own: Line, usual: float) -> tuple[tuple[int, Line], ...]:
        """Return what deeper caches add: never more than a still deeper or wider pass does."""
        raw = {
            (depth, width): max(0.0, usual * min(cell) - own.at(width))
            for depth, deep in self.deep.items()
            for width, cell in deep.items()
        }

        def least(depth: int, width: int) -> float:
            return min(s for (d, w), s in raw.items() if d >= depth and w >= width)

        return tuple(
            (depth, _line((width, least(depth, width)) for width in deep))
            for depth, deep in self.deep.items()
        )


def _line(points: Iterable[tuple[int, float]]) -> Line:
    return Line(tuple((float(x), y) for x, y in points))


def _sweep_widths(stack: Sequence[_Subject], clock: Clock) -> None:
    """Time the widths of all models, the models taking turns, in sweeps of a shuffled order."""
    rng = random.Random(0)
    started = now = clock()
    for sweep, widths in enumerate(_SWEEPS):
        orders = {subject.name: subject.widths(widths) for subject in stack}
        if sweep >= _FEWEST_SWEEPS:
            expected = sum(s.expect(width) for s in stack for width in orders[s.name])
            if now - started + expected > _ENOUGH_S:
                return
        if sweep:
            for order in orders.values():
                rng.shuffle(order)
        for turn in range(max(map(len, orders.values()))):
            _take_turns(stack, orders, turn)
            now = clock()
            if now - started > _LIMIT_S:
                return


def _take_turns(stack: Sequence[_Subject], orders: Mapping[str, Sequence[int]], turn: int) -> None:
    """Time one pass of every model, as in a round; now and then also a step of plain decoding."""
    target = stack[-1]
    if turn % _PLAIN_EVERY == 0:
        target.sample_plain(target.depth)
    for subject in stack:
        order = orders[subject.name]
        width = order[turn % len(order)]
        cell = subject.by_width.setdefault(width, [])
        cell.append(subject.time(width, subject.depth))


def _sweep_depth(stack: Sequence[_Subject], depth: int) -> None:
    """Time a few widths behind a deeper cache."""
    for _ in range(_DEEP_PASSES):
        for width in _DEEP_WIDTHS:
            for subject in stack:
                cells = subject.deep.setdefault(depth, {})
                cells.setdefault(width, []).append(subject.time(width, depth))
        for subject in stack:
            if subject.name == TARGET:
                subject.sample_plain(depth)


def _time_copier(copier: Drafter, clock: Clock) -> float:
    """Return the seconds of one proposal in the middle of a text that repeats itself a little."""
    context = random.Random(0).choices(range(40), k=_COPIED_TOKENS + _COPIES)
    copier.propose(context[:_COPIED_TOKENS], 1, noise=Noise(0))  # reads the prompt
    samples = []
    for length in range(_COPIED_TOKENS + 1, len(context) + 1):
        started = clock()
        copier.propose(context[:length], 8, noise=Noise(0))
        samples.append(clock() - started)
    return median(samples)


def _time_host(rows: NDArray[Any], settings: Sampling, rule_name: str, clock: Clock) -> HostCosts:
    noise = Noise(0)
    sampler = Sampler(settings, vocabulary=rows.shape[1], prompt_length=1, end_ids=(), noise=noise)
    rule = RULES[rule_name]
    prefix = [0] * len(rows)
    making, judging = [], []
    for _ in range(_HOST_REPEATS):
        started = clock()
        p = sampler.laws(rows, prefix)
        tokens = [draw(law, 0.5) for law in p]
        made = clock()
        rule.thresholds(p, p[:-1], tokens[:-1])
        rule.last(p, p[:-1], tokens[:-1], 0)
        judging.append(clock() - made)
        making.append(made - started)
    return HostCosts(law=min(making) / len(rows), judge=min(judging) / (len(rows) - 1))
