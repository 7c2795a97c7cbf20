"""The page: sound, self-contained, and every plot stands above the table of its figures."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from test_bench_record import make_answer, make_record

from tools.bench.axes import format_tick, make_linear, make_logarithmic
from tools.bench.page import render_page
from tools.bench.plots import COLOURS, WIDTH, Dot, draw_bars, draw_dots, draw_lines
from tools.bench.summary import summarise
from tools.bench.turns import Sample


@pytest.fixture
def page() -> str:
    sweep = [
        Sample(row=row, prompt="0:p", repeat=0, answer=make_answer(0.1), point=f"{axis}={value}")
        for axis in ("prompt", "output", "concurrency", "threads")
        for value in (1, 2)
        for row in ("plain", "fast")
    ]
    record = make_record(samples=(*make_record().samples, *sweep))
    return render_page(record, summarise(record))


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script|<link", page)


def test_the_page_is_well_formed_and_escapes_what_it_was_told(page: str) -> None:
    body = page.partition("<body>")[2].partition("</body>")[0]
    root = ElementTree.fromstring(f"<body>{body}</body>")
    assert "a &lt;fast&gt; one" in page
    assert "lost: cannot be &lt;installed&gt;" in page
    for section in root.iter("section"):
        plots = section.findall(".//svg")
        tables = section.findall(".//table")
        assert len(plots) <= 1 <= len(tables)
        assert all(len(table.findall(".//tr")) >= 2 for table in tables)


def test_the_page_has_every_section(page: str) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Decoding rate",
        "Speed over plain decoding, by kind of text",
        "Time between chunks",
        "Decoding rate by length of the prompt",
        "Sweep: tokens of the prompt",
        "Sweep: tokens of the answer",
        "Sweep: requests at once on one engine",
        "Sweep: threads",
        "v(m): the cost of a wider pass",
        "Tokens of a round",
        "Memory",
        "How it was measured",
    ]
    assert 'name="viewport"' in page


def test_a_page_of_next_to_nothing_is_still_a_page() -> None:
    record = make_record(samples=(), widths={})
    assert "How it was measured" in render_page(record, summarise(record))
    one = replace(make_record().samples[0], answer=make_answer(0.1, tokens=1))
    record = make_record(samples=(one,), widths={})
    assert "How it was measured" in render_page(record, summarise(record))


def test_a_linear_axis_begins_at_zero_and_ends_at_a_round_number() -> None:
    axis = make_linear([3.0, 9.4], start=100, end=0)
    assert axis.ticks == (0, 5, 10)
    assert (axis.place(0), axis.place(10), axis.place(5)) == (100, 0, 50)
    assert make_linear([0.3], start=0, end=1).ticks == (0, 0.1, 0.2, 0.3)
    assert make_linear([], start=0, end=1).high >= 1


def test_a_logarithmic_axis_holds_its_values_and_has_marks() -> None:
    axis = make_logarithmic([0.5, 8], start=0, end=100)
    assert axis.ticks == (0.5, 1, 2, 5)
    assert 0 < axis.place(0.5) < axis.place(2) < axis.place(8) < 100
    middle = (axis.place(2) - axis.place(1)) / (axis.place(1) - axis.place(0.5))
    assert middle == pytest.approx(1)
    for values in ([1.0, 1.0], [1.1], [0.001, 9000.0], [0.0], []):
        assert make_logarithmic(values, start=0, end=1).ticks
    assert axis.place(-1) == 0


def test_marks_are_short() -> None:
    assert [format_tick(x) for x in (0.5, 1.0, 20.0, 20000.0)] == ["0.5", "1", "20", "20k"]


def test_a_dot_lies_where_its_value_is() -> None:
    dot = Dot(label="a<b", value=2, low=1, high=4, text="2")
    svg = ElementTree.fromstring(draw_dots({"": [dot]}, title="t", unit="u"))
    (line,) = [el for el in svg.iter("line") if el.get("class") == "line0"]
    (circle,) = svg.iter("circle")
    low, high, x = float(line.get("x1", 0)), float(line.get("x2", 0)), float(circle.get("cx", 0))
    assert x == pytest.approx((low + high) / 2, abs=0.2)  # 1, 2, 4 are even steps of a logarithm
    assert 0 < low < high < WIDTH


def test_names_after_the_last_colour_are_told_apart() -> None:
    series = {f"row {i}": [(1.0, 1.0), (2.0, 2.0)] for i in range(COLOURS + 1)}
    svg = draw_lines(series, title="t", x_unit="x", y_unit="y")
    assert "line0 dashed" in svg
    assert 'class="hollow line0"' in svg


def test_bars_are_stacked_to_their_whole() -> None:
    bars = {"a": {"x": 10.0, "y": 30.0}, "b": {"x": 20.0}}
    svg = ElementTree.fromstring(draw_bars(bars, title="t", unit="u", texts={"a": "40"}))
    first, second, third = svg.iter("rect")
    ends = [float(r.get("x", 0)) + float(r.get("width", 0)) for r in (first, second, third)]
    assert float(second.get("x", 0)) == pytest.approx(ends[0], abs=0.2)
    assert float(second.get("width", 0)) == pytest.approx(3 * float(first.get("width", 0)), abs=0.3)
    assert float(third.get("width", 0)) == pytest.approx(2 * float(first.get("width", 0)), abs=0.3)
