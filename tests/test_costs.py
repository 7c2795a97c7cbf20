"""The cost table between its points, and the arithmetic of speculation against known values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.costs import (
    CostTable,
    HostCosts,
    Line,
    PassCosts,
    best_static_k,
    break_even_acceptance,
    constant_survival,
    expected_tokens,
    predict_speedup,
)
from runtime.providers import Threads

FREE = HostCosts(law=0.0, judge=0.0)


def make_table(
    *, beta: float = 0.2, c: float = 0.1, host: HostCosts = FREE, even_step: int = 1
) -> CostTable:
    """A target of 10 ms with v(m) = 1 + beta (m - 1), a draft of c, a free copier."""
    widths = (1, 2, 4, 8, 16)

    def passes(unit: float) -> PassCosts:
        return PassCosts(
            even_step=even_step,
            depth=128,
            by_width=Line(tuple((m, unit * (1 + beta * (m - 1))) for m in widths)),
            added=((1128, Line(((2, 0.002), (16, 0.016)))),),
            plain=Line(((128, unit), (1128, unit + 0.001))),
        )

    return CostTable(
        models={"target": passes(0.01), "draft": passes(0.01 * c)},
        copiers={"suffix": 0.0},
        host=dict.fromkeys(("greedy", "sampled", "coupled"), host),
        settings=((Threads(count=2), 0.02), (Threads(count=2, spins=False), 0.03)),
        share=0.95,
    )


def test_a_line_is_straight_between_points_flat_below_and_goes_on_beyond() -> None:
    line = Line(((2, 1.0), (4, 2.0), (8, 3.0)))
    assert [line.at(x) for x in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
    assert Line(((2, 1.0),)).at(9) == 1.0
    assert Line(((24, 9.0), (48, 3.0))).at(200) == 3.0  # never down, let alone below zero


def test_points_that_were_held_up_are_set_between_the_others() -> None:
    line = Line(((1, 1.0), (2, 9.0), (3, 2.0), (24, 90.0), (48, 4.0)))
    sound = line.without_falls()
    assert [x for x, _ in sound.points] == [1, 2, 3, 24, 48]
    assert [sound.at(x) for x in (1, 2, 3, 48)] == [1.0, 1.5, 2.0, 4.0]
    assert sound.at(24) == pytest.approx(2 + 2 * 21 / 45)
    assert sound.at(93) == pytest.approx(6.0)
    assert Line(((1, 5.0), (2, 2.0))).without_falls() == Line(((1, 2.0), (2, 2.0)))
    assert Line(()).without_falls() == Line(())


def test_seconds_grow_with_width_and_with_depth_in_proportion() -> None:
    table = make_table()
    assert table.seconds("target", width=3, depth=128) == pytest.approx(0.014)
    assert table.seconds("target", width=32, depth=0) == pytest.approx(0.01 * (1 + 0.2 * 31))
    # Attention adds 1 ms a token and thousand tokens of cache.
    for width in (2, 3, 9, 16, 20, 80):
        deep = table.seconds("target", width=width, depth=628)
        assert deep - table.seconds("target", width=width, depth=128) == pytest.approx(
            width * 0.0005
        )
    assert table.plain_seconds(3128) == pytest.approx(0.013)
    assert table.v(6) == pytest.approx(2.0)
    assert table.c("draft") == pytest.approx(0.1)
    assert table.c("suffix") == 0


def test_at_even_widths_an_odd_one_costs_as_much_as_the_next() -> None:
    table = make_table(even_step=2)
    even = table.at_even_widths()
    for width in (1, 2, 3, 7, 8):
        paid = table.seconds("target", width=width + width % 2, depth=500)
        assert even.seconds("target", width=width, depth=500) == paid
    for depth in (100, 500, 2000):
        step = table.seconds("target", width=2, depth=depth)
        assert even.plain_seconds(depth) == pytest.approx(step)
    assert table.v(1) == even.v(1) == pytest.approx(1.0)
    steady = make_table()
    assert steady.at_even_widths() == steady


def test_a_round_counts_passes_laws_and_judgements() -> None:
    table = make_table(host=HostCosts(law=0.0005, judge=0.0001))
    assert table.round_seconds(0, "draft") == pytest.approx(0.0105)
    # v(4) + three draft steps, seven laws, three judgements.
    expected = 0.016 + 3 * 0.001 + 7 * 0.0005 + 3 * 0.0001
    assert table.round_seconds(3, "draft", mode="sampled") == pytest.approx(expected)
    assert table.round_seconds(3, "suffix") == pytest.approx(0.016 + 4 * 0.0005 + 3 * 0.0001)


def test_expected_tokens_and_speedup_are_those_of_the_paper() -> None:
    # arXiv 2211.17192, equation 1 and theorem 3.8, with v = 1: (1 - a^(k+1)) / (1 - a) / (kc + 1).
    table = make_table(beta=0.0, c=0.05)
    for acceptance, k in ((0.8, 5), (0.6, 3), (0.9, 10)):
        tokens = (1 - acceptance ** (k + 1)) / (1 - acceptance)
        survival = constant_survival(acceptance, k)
        assert expected_tokens(survival) == pytest.approx(tokens)
        speedup = predict_speedup(table, survival, "draft")
        assert speedup == pytest.approx(tokens / (0.05 * k + 1))


def test_break_even_solves_its_equation() -> None:
    table = make_table(beta=0.2, c=0.1)
    # k = 1: 1 + a = 1.2 + 0.1.
    assert break_even_acceptance(table, 1, "draft") == pytest.approx(0.3)
    assert break_even_acceptance(table, 1, "suffix") == pytest.approx(0.2)
    for k in (2, 5, 8):
        acceptance = break_even_acceptance(table, k, "draft")
        assert acceptance is not None
        survival = constant_survival(acceptance, k)
        assert predict_speedup(table, survival, "draft") == pytest.approx(1.0)


def test_what_never_pays_has_no_break_even() -> None:
    table = make_table(beta=0.9, c=0.3)
    assert break_even_acceptance(table, 2, "draft") is None
    assert best_static_k(table, 0.99, "draft") == (0, 1.0)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.sampled_from([1, 2]))
def test_the_best_k_is_the_best_of_all(acceptance: float, beta: float, c: float, step: int) -> None:
    table = make_table(beta=beta, c=c, even_step=step).at_even_widths()
    k, speedup = best_static_k(table, acceptance, "draft")
    speedups = [
        predict_speedup(table, constant_survival(acceptance, k), "draft") for k in range(17)
    ]
    assert speedup == max(speedups) == speedups[k]
    assert speedup >= 1.0
