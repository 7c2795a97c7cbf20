"""Progress: what a terminal, a log file and a quiet run see of one and the same job."""

import io
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from export.progress import Progress, StageState, render_end, render_state


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticking(*, step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def test_a_log_gets_few_lines_and_the_time_of_each_stage() -> None:
    stream = io.StringIO()
    progress = Progress(stream, clock=ticking(step=1.0).__next__)
    with progress.stage("quantise", total=30) as stage:
        for _ in range(30):
            stage.advance()
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 8
    assert lines[0].startswith("quantise: ")
    assert "of 30" in lines[0]
    assert lines[-1].startswith("quantise: 30 in ")
    assert progress.seconds["quantise"] > 30
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    stream = Terminal()
    progress = Progress(stream, clock=ticking(step=1.0).__next__)
    with progress.stage("fetch", total=4_000_000, unit="bytes") as stage:
        stage.advance(1_000_000)
        progress.note("a word in between")
        stage.move_to(4_000_000)
    assert stream.getvalue().startswith("\rfetch: 0 %, 0.0 MB of 4.0 MB")
    assert "\ra word in between\x1b[K\n" in stream.getvalue()
    assert stream.getvalue().count("\n") == 2
    assert stream.getvalue().endswith("s\x1b[K\n")


def test_a_quiet_run_writes_nothing_and_still_keeps_the_times() -> None:
    stream = Terminal()
    progress = Progress(stream, quiet=True)
    with progress.stage("trace") as stage:
        stage.advance()
    progress.note("unseen")
    assert stream.getvalue() == ""
    assert list(progress.seconds) == ["trace"]


def test_a_stage_that_fails_says_where_it_stood() -> None:
    stream = io.StringIO()
    progress = Progress(stream, clock=lambda: 0.0)

    def fail() -> None:
        with progress.stage("parity", total=6) as stage:
            stage.advance(2)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert stream.getvalue() == "parity: 33 %, 2 of 6, 0.0 s, 0.0 s left, stopped\n"
    assert progress.seconds == {}


def test_time_left_counts_only_what_this_run_did() -> None:
    clock = chain([0.0], repeat(10.0))
    progress = Progress(io.StringIO(), clock=clock.__next__)
    with progress.stage("fetch", total=100, done=50) as stage:
        stage.move_to(75)
        assert stage.state().left_s == 10.0


def test_amounts_are_written_in_their_units() -> None:
    state = StageState("x", 1_500_000_000, 3_000_000_000, "bytes", 61.0, 3.04)
    assert render_state(state) == "x: 50 %, 1.50 GB of 3.00 GB, 1 min 01 s, 3.0 s left"
    assert render_state(StageState("x", 0, None, "steps", 0.5, None)) == "x: 0.5 s"
    assert render_state(StageState("x", 7, None, "steps", 0.5, None)) == "x: 7, 0.5 s"
    assert render_end(StageState("x", 12, 12, "steps", 2.0, 0.0)) == "x: 12 in 2.0 s"
    assert render_end(StageState("x", 0, None, "steps", 2.0, None)) == "x: 2.0 s"


def test_no_stage_begins_after_an_interruption_that_a_library_swallowed() -> None:
    came = False
    progress = Progress(quiet=True, is_cancelled=lambda: came)
    with progress.stage("first"):
        came = True
    with pytest.raises(KeyboardInterrupt), progress.stage("second"):
        pass
