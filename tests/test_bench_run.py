"""A whole run of the benchmark on a tiny bundle: its table, its file, and what it refuses."""

import json
from pathlib import Path

import pytest
from tiny_bundle import make_bundle

from tools.bench.__main__ import main

PROMPTS = """\
{"question_id": 1, "category": "letters", "turns": ["abcabcab", "cab"]}
{"question_id": 2, "category": "letters", "turns": ["hgfhgfh"]}
{"question_id": 3, "category": "long", "turns": ["%s"]}
""" % ("ab" * 200)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle"), drafts=1, context=96, end_ids=())


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text(PROMPTS, encoding="utf-8")
    return file


def run(bundle: Path, prompts: Path, *options: str) -> int:
    return main([str(bundle), "--prompts", str(prompts), "--max-tokens", "12", "--quiet", *options])


def test_a_run_compares_raw_plain_and_speculative(
    bundle: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    options = ["--stages", "lookup", "--stages", "draft", "--k", "1,2", "--json", str(out)]
    assert run(bundle, prompts, "--repeats", "2", "--threads", "1", *options) == 0
    text = capsys.readouterr().out
    names = ["raw", "plain", "lookup k=1", "lookup k=2", "draft k=1", "draft k=2"]
    assert all(any(line.startswith(f"{name} ") for line in text.splitlines()) for name in names)
    result = json.loads(out.read_text(encoding="utf-8"))
    summary = result["summary"]
    rows = {row["name"]: row for row in summary["rows"]}
    assert list(rows) == names
    # Two prompts fit, each of 12 tokens, twice; raw passes are as many.
    assert {row["tokens"] for row in rows.values()} == {48}
    assert rows["plain"]["mean_accepted_length"] == 1.0
    assert rows["plain"]["acceptance_rate"] is None
    for row in rows.values():
        if row["drafted"]:
            assert 0 <= row["accepted"] <= row["tested"] <= row["drafted"]
    assert rows["draft k=2"]["drafted"] > 0
    assert result["complete"] is True
    ratios = {(ratio["row"], ratio["over"]): ratio for ratio in summary["ratios"]}
    assert ratios["draft k=2", "plain"]["basis"] == "same tokens"
    assert ratios["plain", "raw"]["basis"] == "per token"
    assert ratios["plain", "raw"]["total"]["median"] > 0


def test_a_stage_that_the_bundle_lacks_is_a_row_with_its_reason(
    bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle, prompts, "--repeats", "1", "--stages", "other") == 0
    text = capsys.readouterr().out
    assert "did not run" in text
    assert "RequestError: stages must name drafters of this bundle" in text


def test_an_unknown_peer_is_a_row_with_its_reason(
    bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--repeats", "1", "--peers", "nobody", "--checkpoint", "x"]
    assert run(bundle, prompts, *options) == 0
    assert "no peer is called 'nobody'; known are onnxruntime-genai" in capsys.readouterr().out


def test_a_bundle_without_a_known_source_needs_a_checkpoint_for_peers(
    bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle, prompts, "--repeats", "1", "--peers", "onnxruntime-genai") == 0
    assert "no recipe has tests: name its checkpoint with --checkpoint" in capsys.readouterr().out


def test_no_bundle_is_one_sentence(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, prompts) != 0
    assert capsys.readouterr().err.startswith("error: ")


def test_prompts_that_all_exceed_the_context_are_refused(
    bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle, prompts, "--categories", "long") == 2
    assert "no prompt fits the model's context" in capsys.readouterr().err
