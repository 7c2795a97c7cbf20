"""What follows from a record: known figures, categories, sweeps and requests at once."""

from dataclasses import replace

import pytest
from test_bench_record import make_answer, make_record

from tools.bench.figures import Spread, read_answer
from tools.bench.summary import summarise
from tools.bench.turns import Sample


def test_a_row_has_the_figures_of_its_samples() -> None:
    rows = {row.name: row for row in summarise(make_record()).rows}
    plain, fast, lost = rows["plain"], rows["fast"], rows["lost"]
    assert plain.tokens == fast.tokens == 20
    assert plain.tokens_per_s == Spread(
        median=pytest.approx(10), low=pytest.approx(10), high=pytest.approx(10)
    )
    assert fast.tokens_per_s is not None
    assert fast.tokens_per_s.median == pytest.approx(20)
    assert plain.mean_accepted_length == 1.0
    assert fast.mean_accepted_length == pytest.approx(5 / 3)
    assert (fast.drafted, fast.tested, fast.accepted) == (16, 12, 8)
    assert fast.acceptance_rate == pytest.approx(2 / 3)
    assert plain.first_token_s is not None
    assert plain.first_token_s.median == pytest.approx(0.5)
    assert (lost.answers, lost.reason) == (0, "cannot be <installed>")


def test_ratios_hold_in_all_and_within_each_category() -> None:
    summary = summarise(make_record(plain_s=0.3))
    (ratio,) = summary.ratios
    assert (ratio.row, ratio.over, ratio.prompts) == ("fast", "plain", 2)
    assert ratio.mean == pytest.approx(6.0)
    assert set(summary.categories) == {"chat", "code"}
    assert all(ratios[0].prompts == 1 for ratios in summary.categories.values())
    assert summary.parted == {"fast": [], "lost": []}


def test_an_answer_that_changes_between_repeats_is_not_the_same() -> None:
    record = make_record()
    first = record.samples[1]
    assert (first.row, first.prompt) == ("fast", "p")
    changed = replace(first, answer=make_answer(0.1, tokens=6))
    summary = summarise(replace(record, samples=(record.samples[0], changed, *record.samples[2:])))
    assert summary.parted["fast"] == ["p"]
    (ratio,) = summary.ratios
    assert (ratio.prompts, ratio.parted) == (1, 1)


def test_a_wider_pass_is_told_in_passes_over_one_token() -> None:
    one, four = summarise(make_record()).widths
    assert (one.tokens, one.ratio) == (1, 1.0)
    assert (four.model, four.tokens) == ("target", 4)
    assert four.ratio == pytest.approx(0.21 / 0.11)


def test_sweep_samples_stay_out_of_the_main_figures() -> None:
    sweep = Sample(row="fast", prompt="0:p", repeat=0, answer=make_answer(9.0), point="output=8")
    record = make_record(samples=(*make_record().samples, sweep))
    summary = summarise(record)
    assert summary.rows == summarise(make_record()).rows
    (point,) = summary.points
    assert (point.axis, point.value, point.row) == ("output", 8, "fast")
    assert point.tokens_per_s is not None
    assert point.tokens_per_s.median == pytest.approx(1 / 9)


def test_requests_at_once_have_a_time_each_and_a_throughput_together() -> None:
    first, second = make_answer(0.1), make_answer(0.2, request=1)
    both = replace(first, chunks=first.chunks + second.chunks, wall_s=2.0)
    assert [read_answer(one).token_s for one in both.split()] == [
        pytest.approx(0.1),
        pytest.approx(0.2),
    ]
    sample = Sample(row="plain", prompt="0:p", repeat=0, answer=both, point="concurrency=2")
    (point,) = summarise(make_record(samples=(sample,))).points
    assert point.all_tokens_per_s is not None
    assert point.tokens_per_s is not None
    assert point.answer_s is not None
    assert point.all_tokens_per_s.median == pytest.approx(10 / 2.0)
    assert (point.tokens_per_s.low, point.tokens_per_s.high) == (
        pytest.approx(5),
        pytest.approx(10),
    )
    assert point.answer_s.high == pytest.approx(0.5 + 4 * 0.2)


def test_nothing_drafted_has_no_acceptance_rate() -> None:
    record = make_record()
    stats = {"target_passes": 5, "drafted": 0, "tested": 0, "accepted": 0}
    samples = [replace(s, answer=replace(s.answer, stats=stats)) for s in record.samples]
    rows = summarise(replace(record, samples=tuple(samples))).rows
    assert rows[0].acceptance_rate is None
    assert rows[0].drafted == 0
