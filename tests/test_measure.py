"""Measuring with models of known delays and a clock that only they move."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.costs import TARGET
from runtime.measure import measure_costs, measure_host
from runtime.providers import Threads


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowModel:
    """Takes `unit` × (1 + 0.2 (width − 1)) seconds and 1 ms a thousand cells of attention."""

    vocabulary = 50
    threads = Threads(count=2)

    def __init__(
        self, clock: Clock, unit: float, *, context: int = 4096, is_steady: bool = True
    ) -> None:
        self.clock, self.unit, self.context, self.is_steady = clock, unit, context, is_steady
        self.has_even_widths = False
        self.length = 0
        self.passes: list[tuple[int, int]] = []
        self.noise = np.random.default_rng(1)
        self.largest_noise = 0.0

    def begin(self, tokens: Sequence[int], *, even_widths: bool, best: object = None) -> None:
        assert not tokens
        self.has_even_widths = even_widths and not self.is_steady
        self.length = 0

    def renew(self) -> None:
        self.length = 0

    def pretend(self, length: int) -> None:
        assert length <= self.context
        self.length = length

    def cache_bytes(self, length: int) -> int:
        return 1000 * length

    def seconds(self, width: int, depth: int) -> float:
        return self.unit * (1 + 0.2 * (width - 1)) + 1e-6 * width * depth

    def score(self, tokens: Sequence[int], rows: int) -> None:
        width = len(tokens) - self.length
        assert width == rows
        assert len(tokens) <= self.context
        self.passes.append((width, self.length))
        if self.has_even_widths:
            width += width % 2
        slow = 1 + self.largest_noise * self.noise.random() ** 3  # most passes are good ones
        self.clock.now += slow * self.seconds(width, self.length)
        self.length = len(tokens)


def test_the_table_holds_what_passes_take() -> None:
    clock = Clock()
    target, draft = SlowModel(clock, 0.03), SlowModel(clock, 0.003)
    counted = []
    table = measure_costs(target, {"draft": draft}, clock=clock, on_pass=lambda: counted.append(1))
    for name, model in ((TARGET, target), ("draft", draft)):
        for width in (1, 2, 3, 5, 17, 20, 48):
            for depth in (128, 440, 1000, 1980, 4000):
                assert table.seconds(name, width=width, depth=depth) == pytest.approx(
                    model.seconds(width, depth)
                )
    assert table.plain_seconds(1000) == pytest.approx(target.seconds(1, 1000))
    assert len(counted) == len(target.passes) + len(draft.passes)
    assert (target.length, draft.length) == (0, 0)
    assert set(table.copiers) == {"suffix", "lookup"}


def test_models_that_round_single_rows_otherwise_cost_more_at_even_widths() -> None:
    clock = Clock()
    target, draft = SlowModel(clock, 0.03, is_steady=False), SlowModel(clock, 0.003)
    table = measure_costs(target, {"draft": draft}, clock=clock)
    even = table.at_even_widths()
    assert table.seconds(TARGET, width=5, depth=128) == pytest.approx(target.seconds(5, 128))
    assert even.seconds(TARGET, width=5, depth=128) == pytest.approx(target.seconds(6, 128))
    assert even.seconds("draft", width=5, depth=128) == pytest.approx(draft.seconds(5, 128))
    assert even.plain_seconds(128) == pytest.approx(target.seconds(2, 128))


def test_models_take_turns_and_plain_steps_follow_plain_steps() -> None:
    clock = Clock()
    order: list[str] = []

    class Told(SlowModel):
        name = ""

        def score(self, tokens: Sequence[int], rows: int) -> None:
            order.append(self.name)
            super().score(tokens, rows)

    target, draft = Told(clock, 0.03), Told(clock, 0.003)
    target.name, draft.name = "target", "draft"
    measure_costs(target, {"draft": draft}, clock=clock)
    text = "".join(name[0] for name in order)  # d, t; a step is a second t in a row
    assert re.fullmatch("((tt)?dt)*(tt)?", text[: text.rindex("d")].removesuffix("d"))
    assert 10 < text.count("ttd") < text.count("dt") / 4


def test_noise_moves_all_widths_alike() -> None:
    clock = Clock()
    target = SlowModel(clock, 0.01)
    target.largest_noise = 1.0
    table = measure_costs(target, {}, clock=clock)
    ratios = [
        table.seconds(TARGET, width=width, depth=128) / target.seconds(width, 128)
        for width in range(1, 18)
    ]
    assert max(ratios) / min(ratios) < 1.25  # single samples: up to 2
    assert 1.05 < np.mean(ratios) < 1.25  # what a pass takes as a rule, not at its best


class Stalled(SlowModel):
    """Stands still in some passes, as they come: `(width, depth, how many of them)`."""

    stalls: dict[tuple[int, int], int]

    def score(self, tokens: Sequence[int], rows: int) -> None:
        place = (rows, self.length)
        super().score(tokens, rows)
        if self.stalls.get(place, 0):
            self.stalls[place] -= 1
            self.clock.now += 3.0


@pytest.mark.parametrize("width", [17, 24, 48])
def test_one_stall_spoils_no_width(width: int) -> None:
    target = Stalled(Clock(), 0.01)
    target.stalls = {(width, 128): 1}
    table = measure_costs(target, {}, clock=target.clock)
    for wide in (*range(1, 18), 24, 48, 90, 300):
        seconds = table.seconds(TARGET, width=wide, depth=128)
        assert seconds == pytest.approx(target.seconds(wide, 128), rel=0.01)


def test_seconds_never_fall_with_width_or_depth_whatever_stalls() -> None:
    target = Stalled(Clock(), 0.01)
    stalls = {(w, 128): 99 for w in (3, 24)} | {(w, 440): 99 for w in (1, 4)}
    target.stalls = dict(stalls)
    table = measure_costs(target, {}, clock=target.clock)
    by_width = [table.seconds(TARGET, width=w, depth=128) for w in range(1, 300)]
    by_depth = [table.seconds(TARGET, width=4, depth=d) for d in range(128, 40_000, 100)]
    plain = [table.plain_seconds(d) for d in range(128, 40_000, 100)]
    for seconds in (by_width, by_depth, plain):
        assert seconds == sorted(seconds)
        assert 0 < seconds[0] < 0.03
    assert by_width[3 - 1] == pytest.approx(target.seconds(3, 128), rel=0.01)


def test_large_models_are_timed_for_a_limited_time() -> None:
    clock = Clock()
    target = SlowModel(clock, 2.0)
    table = measure_costs(target, {}, clock=clock)
    narrow = [width for width, depth in target.passes if depth == 128]
    assert sum(2.0 * (1 + 0.2 * (width - 1)) for width in narrow) < 20
    assert table.seconds(TARGET, width=16, depth=128) == pytest.approx(
        target.seconds(16, 128), rel=0.02
    )


@pytest.mark.parametrize("context", [2, 20, 130, 300])
def test_a_short_context_is_enough(context: int) -> None:
    clock = Clock()
    target = SlowModel(clock, 0.01, context=context, is_steady=context > 20)
    table = measure_costs(target, {}, clock=clock)
    assert table.plain_seconds(1) > 0
    assert table.seconds(TARGET, width=4, depth=1) > 0


def test_a_cache_that_would_take_much_memory_is_not_filled() -> None:
    class Large(SlowModel):
        def cache_bytes(self, length: int) -> int:
            return length << 20

    target = Large(Clock(), 0.01)
    measure_costs(target, {}, clock=target.clock)
    assert max(depth for _, depth in target.passes) == 128


def test_host_costs_are_those_of_the_vocabulary() -> None:
    small, large = measure_host(1000), measure_host(200_000)
    assert set(small) == {"greedy", "sampled", "coupled"}
    assert large["sampled"].law > 5 * small["sampled"].law
    assert large["sampled"].judge > large["greedy"].judge
    assert large["sampled"].law > large["greedy"].law


def test_real_sessions_are_timed_and_left_empty(tmp_path) -> None:
    with Engine.open(make_bundle(tmp_path / "bundle", drafts=2, context=300)) as engine:
        before = engine.complete([1, 2, 3], max_tokens=20, ignore_eos=True).token_ids
        models = {TARGET: engine.target, **engine.drafts}
        table = measure_costs(engine.target, engine.drafts)
        assert set(table.models) == set(models)
        assert all(table.seconds(name, width=4, depth=100) > 0 for name in models)
        assert [model.length for model in models.values()] == [0, 0, 0]
        assert {model.cache.capacity for model in models.values()} == {256}
        assert engine.complete([1, 2, 3], max_tokens=20, ignore_eos=True).token_ids == before
