"""Which thread setting is the fastest for these sessions on this machine?

In: the opened models and settings to try. Out: how long a round takes with each, the models being
left with the fastest. What counts is a round of the whole stack: threads of one session get into
the way of the next one's. Only settings of a session are tried: a pool shared by all sessions would
be a setting of the whole process, which belongs to the program around the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, thread_time
from typing import Protocol

from .costs import QUIET
from .measure import Clock, Timeable, time_pass
from .providers import Threads

_DEPTH = 64
_ROUNDS = 7  # the first one warms up
_WORTH_IT = 0.95  # noise is no reason to leave the setting that is there
_HALF_FROM = 4


class Tunable(Timeable, Protocol):
    """A model whose session can be opened anew."""

    def reopen(self, threads: Threads) -> None:
        """Open the session anew with these threads; the cache is empty afterwards."""
        ...


def list_settings(cores: int) -> tuple[Threads, ...]:
    """Return the settings worth trying on so many usable cores, the default one first.

    Half the cores is what fits where a core counts twice, or every second one is a slow one.
    """
    settings = [Threads(count=cores), Threads(count=cores, spins=False)]
    if cores >= _HALF_FROM:
        settings.append(Threads(count=cores // 2))
    return tuple(settings)


def choose_threads(
    target: Tunable,
    drafts: Mapping[str, Tunable],
    settings: Sequence[Threads],
    *,
    clock: Clock = perf_counter,
    cpu_clock: Clock = thread_time,
    on_pass: Callable[[], None] = lambda: None,
) -> tuple[tuple[Threads, float], ...]:
    """Try every setting, leave the models with the fastest and return the times, fastest first.

    On a busy machine nothing is learnt about a quiet one: then the first setting stays, untried.

    Args:
        target: the target model.
        drafts: the draft models by name.
        settings: what to try; the first one stays unless another one is clearly faster.
        clock: seconds from any start.
        cpu_clock: seconds of processor time of the calling thread, from any start.
        on_pass: called after every pass.

    Returns:
        Settings with the seconds of a plain step and a round: one draft token, two verified.
    """
    stack = [*drafts.values(), target]
    seconds: dict[Threads, float] = {}
    for setting in settings:
        _use(stack, setting)
        started, worked = clock(), cpu_clock()
        seconds[setting] = _time_rounds(stack, clock, on_pass)
        share = (cpu_clock() - worked) / (clock() - started)
        if setting.spins and share < QUIET:
            _use(stack, settings[0])
            return ((settings[0], seconds[settings[0]]),)
    best = min(seconds, key=lambda setting: seconds[setting])
    if seconds[best] > _WORTH_IT * seconds[settings[0]]:
        best = settings[0]
    _use(stack, best)
    others = sorted((s for s in seconds if s != best), key=lambda setting: seconds[setting])
    return tuple((setting, seconds[setting]) for setting in (best, *others))


def _use(stack: Sequence[Tunable], setting: Threads) -> None:
    for model in stack:
        if model.threads != setting:
            model.reopen(setting)


def _time_rounds(stack: Sequence[Tunable], clock: Clock, on_pass: Callable[[], None]) -> float:
    """Return the seconds of the fastest plain step and the fastest round."""
    *_, target = stack

    def time(model: Tunable, width: int) -> float:
        on_pass()
        return time_pass(model, width, _depth(model), clock=clock)

    for model in stack:
        model.begin([], even_widths=False)
    rounds = [
        sum(time(model, 2 if model is target else 1) for model in stack) for _ in range(_ROUNDS)
    ]
    steps = [time(target, 1) for _ in range(_ROUNDS)]
    return min(rounds) + min(steps)


def _depth(model: Tunable) -> int:
    return min(_DEPTH, model.context // 2)
