"""The table on a terminal: aligned, honest about what is unknown, loud about what is wrong."""

from dataclasses import replace

from test_bench_record import HEADER, make_record

from tools.bench.busy import Clock, count_busy, read_clock, read_peak_bytes
from tools.bench.figures import Spread
from tools.bench.record import Record
from tools.bench.sections import make_table
from tools.bench.summary import summarise
from tools.bench.table import align, category_lines, number, render_result, spread


def render(record: Record) -> str:
    return render_result(record, summarise(record))


def with_answers(**changes: object) -> Record:
    record = make_record()
    samples = [replace(s, answer=replace(s.answer, **changes)) for s in record.samples]  # type: ignore[arg-type]
    return replace(record, samples=tuple(samples))


def test_columns_line_up() -> None:
    assert align([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"
    assert align([["only", "head"]]) == ""


def test_what_is_unknown_is_not_a_number() -> None:
    assert number(None, 2) == "n/a"
    assert spread(None, 2) == "n/a"
    assert spread(Spread(median=0.002, low=0.001, high=0.003), 1, scale=1e3) == "2.0 [1.0-3.0]"


def test_the_report_names_machine_versions_rows_and_reasons() -> None:
    text = render(make_record())
    assert "machine: processor a <fast> one; memory 1 GiB" in text
    assert "forerun: onnxruntime 1, 2 threads, loaded in 0.5 s" in text
    assert "lost: cannot be <installed>" in text
    assert any(line.split() == ["lost", "did", "not", "run"] for line in text.splitlines())
    ratio = ["fast", "plain", "2.000", "[2.000-2.000]"]
    assert any(line.split()[:4] == ratio for line in text.splitlines())


def test_speed_ups_stand_by_category_where_there_are_several() -> None:
    categories = summarise(make_record()).categories
    name, ratios = next(iter(categories.items()))
    assert len(category_lines(categories)) == 1 + len(categories)
    assert category_lines({name: ratios}) == []
    lines = category_lines({"empty": (), name: ratios})
    assert lines[0] == ["over plain, by category", *(ratio.row for ratio in ratios)]
    assert lines[2] == [name, *(f"{ratio.total.median:.2f}" for ratio in ratios)]
    assert set(lines[1][1:]) == {"n/a"}


def test_a_run_that_was_cut_short_says_so() -> None:
    assert "not complete" not in render(make_record())
    assert "not complete" in render(make_record(complete=False))


def test_threads_that_were_not_used_are_named() -> None:
    assert "threads, but" not in render(make_record())
    assert "fast was told to use 2 threads, but 1 did the work" in render(
        with_answers(busy_threads=1)
    )
    # A second session has a thread of its own, and takes turns with the first.
    assert "threads, but" not in render(with_answers(busy_threads=3))
    assert "but kept 3.0 cores busy" in render(with_answers(busy_threads=3, cpu_s=3.0, wall_s=1.0))


def test_a_machine_that_was_not_idle_is_named() -> None:
    machine = {"processor": "p", "memory": "m", "cores": "2", "load before": "0.90"}
    assert "not idle" not in render(make_record(header={**HEADER, "machine": machine}))
    machine["load before"] = "1.10"
    assert "the machine was not idle (load 1.10 on 2 cores" in render(
        make_record(header={**HEADER, "machine": machine})
    )


def test_other_ids_within_our_engine_are_loud() -> None:
    record = make_record()
    sample = record.samples[1]
    chunks = (*sample.answer.chunks[:-1], replace(sample.answer.chunks[-1], token_ids=(77,)))
    changed = replace(sample, answer=replace(sample.answer, chunks=chunks))
    samples = (record.samples[0], changed, *record.samples[2:])
    text = render(replace(record, samples=samples))
    assert "NOT the same tokens: fast and plain part on p; left out of the ratio" in text


def test_busy_threads_are_those_that_share_the_work() -> None:
    before = Clock(0.0, {"1": 5, "2": 0})
    after = Clock(1.0, {"1": 105, "2": 60, "3": 90, "4": 3})
    assert count_busy(before, after) == 3
    assert count_busy(before, Clock(0.0, {"1": 9, "2": 3})) is None  # too short to tell
    assert count_busy(Clock(0.0, {}), Clock(1.0, {})) is None  # the system does not say


def test_this_process_can_be_read() -> None:
    clock, peak = read_clock(), read_peak_bytes()
    assert clock.cpu_s > 0
    assert peak is None or peak > 1_000_000


def test_cells_of_a_page_are_escaped() -> None:
    assert "<b>" not in make_table([["<b>"], ["<b>"]])
