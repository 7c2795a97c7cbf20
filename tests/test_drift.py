"""When the machine contradicts its cost table: after a while, and not for one slow moment."""

import pytest
from fakes import TableModel
from test_costs import make_table

from runtime.drafters import Proposal
from runtime.drift import WINDOW, CostMonitor
from runtime.speculate import Verdict


def feed(monitor: CostMonitor, ratio: float, windows: float, *, name: str = "target") -> None:
    table = make_table()
    for i in range(int(windows * WINDOW)):
        width, depth = 1 + i % 8, 10 * i
        seconds = ratio * table.seconds(name, width=width, depth=depth)
        monitor.observe(name, width=width, depth=depth, seconds=seconds)


@pytest.mark.parametrize("ratio", [0.72, 1.0, 1.38])
def test_passes_about_as_long_as_predicted_contradict_nothing(ratio: float) -> None:
    monitor = CostMonitor(make_table())
    assert monitor.ratios == {"target": 1.0, "draft": 1.0}
    feed(monitor, ratio, 10)
    assert not monitor.is_contradicted
    assert monitor.ratios["target"] == pytest.approx(ratio)


@pytest.mark.parametrize("ratio", [0.5, 0.69, 1.41, 9.0])
@pytest.mark.parametrize("name", ["target", "draft"])
def test_passes_that_are_off_for_long_contradict_the_table(ratio: float, name: str) -> None:
    monitor = CostMonitor(make_table())
    feed(monitor, ratio, 2.9, name=name)
    assert not monitor.is_contradicted
    feed(monitor, ratio, 0.2, name=name)
    assert monitor.is_contradicted


def test_slow_moments_do_not_add_up() -> None:
    monitor = CostMonitor(make_table())
    for _ in range(5):
        feed(monitor, 3.0, 2)
        feed(monitor, 1.3, 1)
    assert not monitor.is_contradicted


def test_single_slow_passes_do_not_count() -> None:
    monitor = CostMonitor(make_table())
    for _ in range(5 * WINDOW):
        feed(monitor, 1.0, 2 / WINDOW)
        feed(monitor, 50.0, 1 / WINDOW)
    assert not monitor.is_contradicted


def test_a_contradiction_lasts_until_passes_are_clearly_as_predicted_again() -> None:
    monitor = CostMonitor(make_table())
    feed(monitor, 2.0, 3)
    feed(monitor, 1.3, 5)
    assert monitor.is_contradicted
    feed(monitor, 1.1, 1)
    assert not monitor.is_contradicted


def test_prompts_are_left_out() -> None:
    monitor = CostMonitor(make_table())
    for _ in range(9 * WINDOW):
        monitor.observe("target", width=300, depth=0, seconds=1e3)
    assert not monitor.is_contradicted


@pytest.mark.parametrize("has_even_widths", [True, False])
def test_a_watch_compares_what_really_ran_and_passes_verdicts_on(has_even_widths: bool) -> None:
    table = make_table(beta=0.5)
    monitor = CostMonitor(table)
    model = TableModel(0)
    model.has_even_widths = has_even_widths
    told: list[Verdict] = []
    watch = monitor.watch_with({"target": model}, told.append)
    run = 4 if has_even_widths else 3  # of three tokens
    verdict = Verdict(
        level="target",
        start=10,
        drafted=Proposal([], []),
        p=[],
        accepted=0,
        emitted=[],
        seconds=1.0,
        depth=9,
        width=3,
        verify_seconds=table.seconds("target", width=run, depth=9),
    )
    for _ in range(WINDOW):
        watch(verdict)
    assert monitor.ratios["target"] == pytest.approx(1.0)
    assert told == [verdict] * WINDOW
