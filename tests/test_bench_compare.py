"""Two results side by side: noise is not a change, and what was not the same is named."""

from dataclasses import replace
from typing import Any

import pytest
from test_bench_record import HEADER, make_record

from tools.bench.compare import compare_records, render_changes
from tools.bench.markdown import make_table, render_brief, render_markdown
from tools.bench.record import Record
from tools.bench.rows import Row
from tools.bench.summary import summarise
from tools.bench.wire import Hello


def scale(record: Record, factors: tuple[float, ...]) -> Record:
    """Return the record with the time of its samples scaled, factor by factor in turn."""
    samples = []
    for i, sample in enumerate(record.samples):
        factor = factors[i % len(factors)]
        chunks = tuple(replace(chunk, at_s=chunk.at_s * factor) for chunk in sample.answer.chunks)
        samples.append(replace(sample, answer=replace(sample.answer, chunks=chunks)))
    return replace(record, samples=tuple(samples))


def test_the_same_result_twice_has_no_change() -> None:
    comparison = compare_records(make_record(), make_record())
    assert [change.row for change in comparison.changes] == ["plain", "fast"]
    assert all(change.ratio.mean == pytest.approx(1) for change in comparison.changes)
    assert not any(change.is_real for change in comparison.changes)
    assert comparison.differences == ()
    assert render_changes(comparison).count("within noise") == 2


def test_a_change_beyond_all_repeats_counts_in_either_direction() -> None:
    old, slow = make_record(), scale(make_record(), (1.5,))
    (plain, _) = compare_records(old, slow).changes
    assert plain.is_real
    assert plain.ratio.mean == pytest.approx(1 / 1.5)
    assert "SLOWER" in render_changes(compare_records(old, slow))
    assert "faster" in render_changes(compare_records(slow, old))


def test_a_change_within_the_spread_of_the_repeats_is_noise() -> None:
    # The old repeats themselves lie 40 % apart, so 10 % between the runs says nothing.
    old = scale(make_record(), (1.0, 1.0, 1.0, 1.0, 1.4, 1.4, 1.4, 1.4))
    new = scale(make_record(), (1.1,))
    assert not any(change.is_real for change in compare_records(old, new).changes)


def test_what_was_not_the_same_is_named() -> None:
    old = make_record()
    header: dict[str, Any] = {**HEADER, "machine": {**HEADER["machine"], "memory": "2 GiB"}}  # type: ignore[dict-item]
    new = make_record(
        header=header,
        workers={"forerun": Hello(versions={"onnxruntime": "2"}, threads=2, load_s=0.1)},
        rows=(Row(name="plain", worker="forerun"), Row(name="new", worker="forerun")),
    )
    text = render_changes(compare_records(old, new))
    assert "not the same: machine, memory: 1 GiB before, 2 GiB now" in text
    assert "not the same: forerun, onnxruntime: 1 before, 2 now" in text
    assert "only in the old result: fast" in text
    assert "only in the new result: new" in text


def test_results_without_a_common_row_say_so() -> None:
    other = make_record(rows=(Row(name="x", worker="y"),), samples=())
    assert render_changes(compare_records(make_record(), other)).startswith("no row is in both")


def test_markdown_holds_the_tables_the_machine_and_the_reasons() -> None:
    record = make_record()
    text = render_markdown(record, summarise(record))
    assert "| row | tokens |" in text
    assert "| fast | plain | 2.000 [2.000-2.000] |" in text
    assert "- **machine**: processor a <fast> one; memory 1 GiB" in text
    assert "- lost: cannot be <installed>" in text


def test_the_brief_table_holds_a_line_a_row_and_names_command_and_machine() -> None:
    record = make_record()
    text = render_brief(record, summarise(record))
    assert "| plain | 10.0 | 1 |" in text
    assert "| fast | 20.0 | 2.00 |" in text
    assert "a <fast> one" in text
    assert f"`{HEADER['command']}`" in text
    assert "lost: cannot be <installed>" in text


def test_a_bar_in_a_cell_does_not_break_the_table() -> None:
    assert make_table([["a"], ["x|y"]]) == "| a |\n| --- |\n| x\\|y |"
    assert make_table([["a"]]) == ""
