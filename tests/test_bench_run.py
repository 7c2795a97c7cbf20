"""A whole run of the benchmark on a tiny bundle: its table, its file, and what it refuses."""

import json
from pathlib import Path

import pytest
from tiny_bundle import LETTERS, make_bundle

from runtime.bundle import open_bundle
from runtime.manifest import MANIFEST_NAME
from tools.bench.__main__ import main
from tools.bench.journal import Journal
from tools.bench.prompts import Encoder
from tools.bench.turns import Sample
from tools.prompt_sets import Question

TEMPLATE = (
    "{% for m in messages %}{{ 'm' if m.role == 'user' else 'n' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}n{% endif %}"
)
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


def add_template(folder: Path) -> None:
    """Give a bundle a chat template of letters: m before a question, n before an answer."""
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    raw = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    raw["tokenizer"]["chat_template"] = "chat_template.jinja"
    entry = {"path": "chat_template.jinja", "bytes": len(TEMPLATE), "sha256": "0" * 64}
    raw["files"].append(entry)
    (folder / MANIFEST_NAME).write_text(json.dumps(raw), encoding="utf-8")


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


def test_a_run_is_shown_again_compared_and_put_on_a_page(
    bundle: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    sweep = ["--sweep", "prompt=8,16", "output=4", "concurrency=3", "threads=1"]
    files = ["--json", str(out), "--html", str(page)]
    assert run(bundle, prompts, "--repeats", "1", *sweep, *files) == 0
    first = capsys.readouterr().out
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out == first
    points = [line.split()[:3] for line in first.splitlines() if line.startswith("concurrency 3")]
    assert points == [["concurrency", "3", "plain"], ["concurrency", "3", "auto"]]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    for form in ("--markdown", "--brief"):
        assert main(["report", str(out), form]) == 0
        assert "| plain |" in capsys.readouterr().out
    assert main(["compare", str(out), str(out)]) == 0
    assert "within noise" in capsys.readouterr().out
    samples = json.loads(out.read_text(encoding="utf-8"))["samples"]
    long = [s for s in samples if s["point"] == "concurrency=3"]
    assert {chunk["request"] for s in long for chunk in s["answer"]["chunks"]} == {0, 1, 2}
    short = [s for s in samples if s["point"] == "output=4"]
    assert {sum(len(c["token_ids"]) for c in s["answer"]["chunks"]) for s in short} == {4}


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(
    bundle: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "r.json"
    options = ["--repeats", "2", "--json", str(out)]
    add, added = Journal.add, []

    def add_five(journal: Journal, sample: Sample) -> None:
        if len(added) == 5:
            raise KeyboardInterrupt
        added.append(sample.place)
        add(journal, sample)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", add_five)
        assert run(bundle, prompts, *options) == 130
    said = capsys.readouterr().out
    assert "not complete" in said
    assert "the same command with --resume goes on" in said
    assert len(json.loads(out.read_text(encoding="utf-8"))["samples"]) == 5
    assert run(bundle, prompts, *options) == 2
    assert "add --resume" in capsys.readouterr().err
    assert run(bundle, prompts, *options, "--resume") == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    places = [(s["row"], s["prompt"], s["repeat"]) for s in result["samples"]]
    assert len(places) == len(set(places)) == 2 * 2 * 3
    assert result["complete"]
    assert [file.name for file in tmp_path.glob("r.*")] == ["r.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sweep", "size=3"], "a sweep goes along one of"),
        (["--resume"], "give the same --json"),
        (["--json", "/no/such/folder/r.json"], "there is no folder /no/such/folder"),
        (["--html", "/no/such/folder/r.html"], "there is no folder /no/such/folder"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(
    options: list[str],
    said: str,
    bundle: Path,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("tools.bench.measuring.Pool", never)
    assert run(bundle, prompts, *options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--repeats", "0"], ["--k", "a"], ["--max-tokens", "-1"]])
def test_numbers_are_checked_when_they_are_read(
    options: list[str], bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(bundle, prompts, *options)
    assert stop.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_a_second_turn_goes_on_from_the_plain_answer(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "chat", vocabulary=16, context=256, end_ids=())
    add_template(folder)
    encoder = Encoder(open_bundle(folder))
    question = Question(1, "c", ("ab", "cd"))
    assert encoder.turns(question) == 2
    first = encoder.encode(question, [], max_tokens=4)
    second = encoder.encode(question, [(4, 5)], max_tokens=4)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("1", "1.2")
    assert "".join(LETTERS[i] for i in first.ids) == "mabn"
    assert "".join(LETTERS[i] for i in second.ids) == "mabnefmcdn"
    assert encoder.encode(question, [], max_tokens=255) is None


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
