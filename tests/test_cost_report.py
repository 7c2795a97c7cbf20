"""What `python -m runtime costs` says, over a table of known figures and over a tiny bundle."""

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from test_costs import make_table
from test_kept_costs import KEY
from tiny_bundle import make_bundle

from runtime.__main__ import main
from runtime.cost_report import CostReport, describe_costs
from runtime.pass_counter import PassCounter


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_bundle(tmp_path_factory.mktemp("costs") / "bundle", context=300))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path_factory.getbasetemp() / "kept"))


def test_the_report_holds_the_table_and_what_follows_from_it() -> None:
    text = "\n".join(describe_costs(CostReport(key=KEY, table=make_table(c=0.15))))
    lines = {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}
    first = {words[0]: words for line in reversed(text.splitlines()) if (words := line.split())}
    assert "threads   2, spinning in a run, 20.0 ms" in text
    assert "slower: 2, sleeping, 30.0 ms" in text
    assert "busy" not in text
    # v(8) = 2.4; 24 ms, and 8 ms more behind thousand tokens; the draft 0.15 of it.
    assert lines["8"] == ["2.40", "24.00", "32.00", "3.60", "11.60"]
    assert "c(draft) = 0.150" in text
    assert lines["acceptance"][-1] == "0.9"
    # k = 1: 1 + a = 1.2 + 0.15; the copier is free.
    assert lines["k"][0] == "1"
    assert first["draft"][1] == "0.35"
    assert first["suffix"][1] == "0.20"


def test_what_never_pays_and_a_busy_machine_are_said() -> None:
    table = replace(make_table(beta=0.9, c=0.5), share=0.4)
    text = "\n".join(describe_costs(CostReport(key=KEY, table=table)))
    assert "never" in text
    assert "a core for 40 % of its time" in text


def test_the_command_measures_once_then_reads(bundle: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["costs", bundle, "--json"]) == 0
    first, told = capsys.readouterr()
    assert "timed" in told
    raw = json.loads(first)
    assert first.count("\n") == 1
    assert set(raw["table"]["models"]) == {"target", "draft"}
    assert raw["v"]["4"] > 0
    assert set(raw["c"]) == {"draft", "suffix", "lookup"}
    assert main(["costs", bundle, "--json"]) == 0
    assert capsys.readouterr() == (first, "")
    assert main(["costs", bundle, "--json", "--refresh"]) == 0
    assert capsys.readouterr().out != first


def test_mode_depth_and_acceptances_can_be_asked_for(
    bundle: str, capsys: pytest.CaptureFixture
) -> None:
    asked = ["--mode", "sampled", "--depth", "200", "--acceptance", "0.25,1"]
    assert main(["costs", bundle, *asked]) == 0
    text = capsys.readouterr().out
    assert "(sampled)" in text
    assert "ms at 200" in text
    assert "0.25" in text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--mode", "fast"], "sampled"),
        (["--depth", "-1"], "number of tokens"),
        (["--acceptance", "0.5,1.5"], "numbers from 0 to 1"),
        (["--plot", "costs.txt"], ".png, .svg, .pdf"),
        (["--plot", "nowhere/costs.png"], "the folder does not exist"),
        (["--depth", "300"], "the context holds 300 tokens"),
        (["--threads", "0"], "threads"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_exit_2(
    bundle: str, wrong: list[str], named: str, capsys: pytest.CaptureFixture
) -> None:
    try:
        status = main(["costs", bundle, *wrong])
    except SystemExit as left:
        status = int(str(left.code))
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err


def test_a_plot_needs_matplotlib_and_says_so_before_measuring(
    bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["costs", bundle, "--refresh", "--plot", str(tmp_path / "costs.png")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install matplotlib" in err
    assert err.count("\n") == 1


def test_a_plot_is_drawn(bundle: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        place = tmp_path / f"costs{suffix}"
        assert main(["costs", bundle, "--plot", str(place)]) == 0
        assert place.read_bytes().startswith(start)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_counter_says_that_passes_are_timed_and_nothing_otherwise(is_terminal: bool) -> None:
    stream = StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    with PassCounter(stream):
        pass
    assert stream.getvalue() == ""
    now = iter(range(100))
    with PassCounter(stream, clock=lambda: float(next(now))) as counter:
        for _ in range(3):
            counter()
    text = stream.getvalue()
    assert "timed 3 passes" in text
    assert text.count("\n") == 1
    assert ("\r" in text) == is_terminal


def test_the_counter_says_where_an_interruption_came() -> None:
    def stop() -> None:
        with PassCounter(stream) as counter:
            counter()
            raise KeyboardInterrupt

    stream = StringIO()
    with pytest.raises(KeyboardInterrupt):
        stop()
    assert stream.getvalue().rstrip("\x1b[K\n").endswith("stopped")
