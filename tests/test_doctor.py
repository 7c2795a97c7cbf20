"""The doctor: rounds simulated from guesses, verdicts over known costs, and the command."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_costs import make_table
from tiny_bundle import make_bundle
from tiny_exports import checkpoint_of
from tiny_models import tiny_model, write_checkpoint

from export.__main__ import _make_parser as make_export_parser
from runtime import Engine
from runtime.costs import Line
from runtime.stats import Stats
from tools.doctor.__main__ import main
from tools.doctor.forecast import KS, Answer, Guess, find_best, make_forecast, simulate
from tools.doctor.sample import run_length, sample_answer
from tools.doctor.verdict import judge_drafts


def answer_with(hits: list[bool], *, prompt_length: int = 10, drafter: str = "draft") -> Answer:
    guesses = [Guess(len(hits) - i, run_length(hits[i:])) for i in range(len(hits))]
    return Answer("test", prompt_length, {drafter: guesses, "suffix": [Guess(0, 0)] * len(hits)})


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path_factory.getbasetemp() / "kept"))


def test_rounds_follow_from_what_was_right() -> None:
    hits = [True, True, False, True, True, True, True, False, True]
    rounds = list(simulate(answer_with(hits), "draft", 3))
    # Place 1 is right, 2 is not; 3 to 5 are all right and 6 is the bonus; 7 is not; 8 is the last.
    assert [(r.depth, r.drafted, r.accepted) for r in rounds] == [
        (11, 3, 1),
        (13, 3, 3),
        (17, 1, 0),
        (18, 0, 0),
    ]


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.sampled_from(KS))
def test_rounds_write_the_whole_answer_but_its_first_token(hits: list[bool], k: int) -> None:
    rounds = list(simulate(answer_with(hits), "draft", k))
    assert sum(r.accepted + 1 for r in rounds) == len(hits) - 1
    assert all(r.accepted <= r.drafted <= k for r in rounds)


def test_a_forecast_is_the_formula_where_every_guess_is_right() -> None:
    table = make_table(beta=0.0, c=0.1)
    answer = answer_with([True] * (1 + 8 * 40), prompt_length=1)
    forecast = make_forecast([answer], "draft", 7, table)
    assert forecast.acceptance == 1.0
    assert forecast.tokens == pytest.approx(8.0)
    shallow = make_forecast([answer_with([True] * 9, prompt_length=1)], "draft", 7, table)
    assert shallow.speedup == pytest.approx(8 / 1.7)


def test_a_copier_that_finds_nothing_costs_nothing() -> None:
    table = make_table()
    target = table.models["target"]
    plain = Line(tuple((depth, seconds / 2) for depth, seconds in target.plain.points))
    table = replace(table, copiers={"suffix": 0.001})
    table = replace(table, models={**table.models, "target": replace(target, plain=plain)})
    forecasts = forecasts_of([False] * 50, table)
    assert [(f.acceptance, f.tokens) for f in forecasts["suffix"]] == [(None, 1.0)] * len(KS)
    assert [f.speedup for f in forecasts["suffix"]] == pytest.approx([1.0] * len(KS))
    assert (find_best(forecasts["suffix"]).k, find_best(forecasts["draft"]).k) == (0, 0)
    assert find_best(forecasts["draft"]).speedup == 1.0
    verdict = judge_drafts({"suffix": forecasts["suffix"]}, table)
    assert not verdict.is_worth_it
    assert "suffix, which needs no model, beats plain decoding with no k" in verdict.sentence


def forecasts_of(hits: list[bool], table) -> dict:
    answers = [answer_with(hits)]
    return {
        name: [make_forecast(answers, name, k, table) for k in KS] for name in ("draft", "suffix")
    }


def test_a_good_draft_is_worth_it() -> None:
    table = make_table(beta=0.05, c=0.1)
    verdict = judge_drafts(forecasts_of([True] * 100, table), table)
    assert verdict.is_worth_it
    assert verdict.sentence.startswith("worth it: draft with k = ")


def test_a_poor_draft_is_not_and_the_sentence_says_what_would_be() -> None:
    table = make_table(beta=0.2, c=0.3)
    verdict = judge_drafts(forecasts_of([True, False, False] * 40, table), table)
    assert not verdict.is_worth_it
    assert verdict.sentence.startswith("not worth it: draft beats plain decoding with no k;")
    # k = 2: 1 + a + a² = 1.2 (1.4 + 2 · 0.3).
    assert "with an acceptance of 0.78 at k = 2" in verdict.sentence
    assert "it costs 0.30" in verdict.sentence


def test_where_wide_passes_cost_too_much_no_draft_helps() -> None:
    table = make_table(beta=1.0, c=0.3)
    verdict = judge_drafts(forecasts_of([True] * 50, table), table)
    assert "wider passes of the target cost too much" in verdict.sentence


def test_a_draft_that_copying_beats_is_not_worth_it() -> None:
    table = make_table(beta=0.05, c=0.3)
    good = [Guess(8, 8)] * 100
    answers = [Answer("test", 10, {"draft": good, "suffix": good})]
    forecasts = {n: [make_forecast(answers, n, k, table) for k in KS] for n in ("draft", "suffix")}
    verdict = judge_drafts(forecasts, table)
    assert not verdict.is_worth_it
    assert verdict.sentence.startswith("worth speculating, but not with a draft")


@pytest.mark.parametrize("stage", ["draft", "suffix"])
@pytest.mark.parametrize("k", [1, 4])
def test_simulated_rounds_are_the_engines_own(tmp_path: Path, stage: str, k: int) -> None:
    bundle = make_bundle(tmp_path / "bundle", sharpness=2.0, end_ids=(), context=256)
    with Engine.open(bundle, threads=1) as engine:
        answer = sample_answer(engine, [0, 1, 2], category="test", max_tokens=120)
        told: Stats = engine.complete(
            [0, 1, 2], max_tokens=120, stages=[stage], speculate=f"k={k}"
        ).stats
    rounds = list(simulate(answer, stage, k))
    assert len(rounds) + 1 == told.target_passes
    assert sum(r.accepted for r in rounds) == told.accepted > 0
    assert sum(r.drafted for r in rounds) == told.drafted


def test_a_draft_of_short_context_drafts_nothing_beyond_it(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", end_ids=(), context=128, draft_context=16)
    with Engine.open(bundle, threads=1) as engine:
        answer = sample_answer(engine, [0, 1, 2], category="test", max_tokens=40)
        late = sample_answer(engine, [0] * 20, category="test", max_tokens=5)
    assert [guess.drafted for guess in answer.guesses["draft"][8:]] == [5, 4, 3, 2, 1, *[0] * 27]
    assert late.guesses["draft"] == (Guess(0, 0),) * 5


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    place = tmp_path / "prompts.jsonl"
    place.write_text(
        '{"question_id": 1, "category": "first", "turns": ["abca"]}\n'
        '{"question_id": 2, "category": "second", "turns": ["dbca"]}\n',
        encoding="utf-8",
    )
    return str(place)


def test_the_command_diagnoses_a_bundle(
    tmp_path: Path, prompts: str, capsys: pytest.CaptureFixture
) -> None:
    bundle = str(make_bundle(tmp_path / "bundle", end_ids=(), context=128))
    asked = ["--target", bundle, "--prompts", prompts, "--max-tokens", "24", "--quiet"]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in ("one tokenizer of 8 tokens", "KiB of cache a token", "first", "second", "worth"):
        assert word in out
    assert main([*asked, "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["is_pair"] is True
    assert raw["answer_tokens"] == 48
    assert set(raw["forecasts"]) == {"draft", "suffix"}
    assert [f["k"] for f in raw["forecasts"]["draft"]] == list(KS)


def test_checkpoints_of_other_tongues_are_told_apart_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = write_checkpoint(tmp_path / "other", tiny_model("llama"))
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    content = json.loads(text)
    vocab = content["model"]["vocab"]
    vocab["!"], vocab['"'] = vocab['"'], vocab["!"]
    (other / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    target = str(checkpoint_of("llama"))
    assert main(["--target", target, "--draft", str(other), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no pair: ")
    assert "do not speak the same language" in out
    assert main(["--target", target, "--draft", str(other), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_pair"] is False


def test_quick_looks_at_sizes_alone(capsys: pytest.CaptureFixture) -> None:
    target = str(checkpoint_of("llama"))
    assert main(["--target", target, "--draft", target, "--quick", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "a pair by its language" in out
    assert "draft 1.00" in out


def test_checkpoints_are_exported_and_measured(
    tmp_path: Path, prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    exported = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        assert command[1:3] == ["-m", "export"]
        options = make_export_parser().parse_args(command[3:])
        exported.append(options)
        if options.output.exists():
            return subprocess.CompletedProcess(command, 1)
        make_bundle(options.output, drafts=len(options.draft), distance=0.0, context=128)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    target, kept = str(checkpoint_of("llama")), tmp_path / "kept"
    asked = ["--target", target, "--draft", target, "--precision", "int8", "--quiet"]
    asked += ["--prompts", prompts, "--max-tokens", "16", "--json"]
    for more in ([], ["--output", str(kept)]):
        assert main([*asked, *more]) == 0
        raw = json.loads(capsys.readouterr().out)
        assert raw["forecasts"]["draft"][0]["acceptance"] == 1.0  # its own twin
    assert [(o.target, o.draft, o.precision, o.quiet) for o in exported] == [
        (target, [target], "int8", True)
    ] * 2
    assert [o.output.exists() for o in exported] == [False, True]
    assert main([*asked, "--output", str(kept)]) == 2  # the folder is taken
    assert "nothing can be run; see above" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "status", "named"),
    [
        (["--draft", "x"], 2, "which has its drafts"),
        (["--quick"], 2, "which has its drafts"),
        (["--prompts", "/nowhere/at all"], 2, "cannot read the prompts"),
        (["--limit", "0"], 2, "whole number of at least 1"),
        (["--threads", "0"], 2, "threads"),
        (["--target", "no such model"], 2, "no such model"),
        (["--target", "/nowhere/at/all"], 1, "there is no folder or file"),
        (["--target", "x", "--precision", "int5"], 2, "--precision must be one of"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    wrong: list[str],
    status: int,
    named: str,
    capsys: pytest.CaptureFixture,
) -> None:
    bundle = str(make_bundle(tmp_path / "bundle"))
    try:
        found = main(["--target", bundle, "--quiet", *wrong])
    except SystemExit as left:
        found = int(str(left.code))
    out, err = capsys.readouterr()
    assert (found, out) == (status, "")
    assert err.count("\n") == 1
    assert named in err
