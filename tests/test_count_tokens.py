"""The command that counts a target's own tokens for a trimmed draft."""

from collections import Counter
from pathlib import Path

import pytest
from tiny_bundle import make_bundle

from runtime import Engine
from tools import count_tokens
from tools.parity import encode_questions


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("count") / "bundle", context=1024)


def test_the_counts_are_those_of_the_answers(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "counts"
    options = ["--limit", "3", "--max-tokens", "9", "--quiet", "--threads", "1"]
    assert count_tokens.main([str(bundle), "--output", str(output), *options]) == 0
    wanted = Counter[int]()
    with Engine.open(bundle, threads=1) as engine:
        for prompt in encode_questions(engine, None, limit=3):
            answer = engine.complete(prompt, max_tokens=9, speculate="off")
            wanted.update(answer.token_ids)
    lines = output.read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# tokenizer {'0' * 64}"
    found = [tuple(map(int, line.split())) for line in lines if line[0] != "#"]
    assert found == sorted(wanted.items(), key=lambda item: (-item[1], item[0]))
    assert f"{wanted.total()} tokens, {len(wanted)} different ones" in capsys.readouterr().out


def test_an_interrupted_run_writes_what_it_has(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, asked = Engine.complete, []

    def interrupted(engine: Engine, *arguments: object, **options: object) -> object:
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return complete(engine, *arguments, **options)

    monkeypatch.setattr(Engine, "complete", interrupted)
    output = tmp_path / "counts"
    arguments = [str(bundle), "--output", str(output), "--max-tokens", "5", "--quiet"]
    assert count_tokens.main(arguments) == 130
    assert len(output.read_text(encoding="utf-8").splitlines()) > 2


def test_an_output_that_cannot_be_is_refused_before_the_work(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in (tmp_path / "no" / "counts", tmp_path):
        assert count_tokens.main([str(bundle), "--output", str(output)]) != 0
        assert "must be a file in a folder that exists" in capsys.readouterr().err
