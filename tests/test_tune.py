"""Choosing threads with models whose speed depends on them, and a clock that only they move."""

from collections.abc import Sequence

import pytest
from test_measure import Clock, SlowModel
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.providers import Threads
from runtime.tune import choose_threads, list_settings

SPIN, SLEEP, HALF = Threads(count=8), Threads(count=8, spins=False), Threads(count=4)


class Threaded(SlowModel):
    """Takes as long as its present threads say."""

    def __init__(self, clock: Clock, speeds: dict[Threads, float]) -> None:
        super().__init__(clock, 0.01, context=256)
        self.speeds = speeds
        self.threads = SPIN
        self.opened: list[Threads] = []

    def reopen(self, threads: Threads) -> None:
        self.opened.append(threads)
        self.threads = threads

    def seconds(self, width: int, depth: int) -> float:
        return super().seconds(width, depth) * self.speeds[self.threads]


def choose(speeds: dict[Threads, float], share: float = 1.0) -> tuple[list[Threaded], Sequence]:
    clock = Clock()
    models = [Threaded(clock, speeds), Threaded(clock, speeds)]
    timed = choose_threads(
        models[0],
        {"draft": models[1]},
        list_settings(8),
        clock=clock,
        cpu_clock=lambda: share * clock(),
    )
    assert {model.threads for model in models} == {timed[0][0]}
    return models, timed


def test_the_settings_start_with_the_default_and_halve_where_there_are_many_cores() -> None:
    assert list_settings(8) == (SPIN, SLEEP, HALF)
    assert list_settings(2) == (Threads(count=2), Threads(count=2, spins=False))


def test_the_fastest_setting_stays_and_all_are_reported_in_order() -> None:
    _, timed = choose({SPIN: 1.0, SLEEP: 1.4, HALF: 0.8})
    assert [setting for setting, _ in timed] == [HALF, SPIN, SLEEP]
    seconds = [s for _, s in timed]
    assert seconds == sorted(seconds)
    assert seconds[2] / seconds[0] == pytest.approx(1.4 / 0.8)


def test_a_difference_within_noise_is_no_reason_to_leave_the_default() -> None:
    models, timed = choose({SPIN: 1.0, SLEEP: 0.97, HALF: 2.0})
    assert [setting for setting, _ in timed] == [SPIN, SLEEP, HALF]
    assert models[0].opened == [SLEEP, HALF, SPIN]


def test_a_busy_machine_teaches_nothing() -> None:
    models, timed = choose({SPIN: 6.0, SLEEP: 2.0, HALF: 3.0}, share=0.5)
    assert [setting for setting, _ in timed] == [SPIN]
    assert models[0].opened == []


def test_an_engine_measures_with_the_fastest_threads_and_opens_with_them_later(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    fastest = Threads(count=1, spins=False)

    def choose(target, drafts, settings, *, on_pass):
        for model in (target, *drafts.values()):
            model.reopen(fastest)
        return ((fastest, 1.0), (settings[0], 2.0))

    monkeypatch.setattr("runtime.kept_costs.choose_threads", choose)
    bundle = make_bundle(tmp_path / "bundle")
    with Engine.open(bundle) as engine:
        plain = {"max_tokens": 9, "ignore_eos": True, "speculate": "off"}
        answer = engine.complete([1, 2, 3], **plain).token_ids
        assert engine.target.threads != fastest
        assert engine.costs().threads == fastest
        assert engine.complete([1, 2, 3], **plain).token_ids == answer
    with Engine.open(bundle) as engine:
        assert {m.threads for m in (engine.target, *engine.drafts.values())} == {fastest}
    with Engine.open(bundle, threads=2) as engine:  # asked for: nothing is chosen
        assert engine.costs().threads == engine.target.threads == Threads(count=2)
