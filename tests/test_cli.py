"""The commands, run in this process over a tiny bundle."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_bundle import make_bundle

from runtime.__main__ import main

PROMPT = ["--prompt", "abca"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_bundle(tmp_path_factory.mktemp("cli") / "mö dèl 模型 #1"))


def test_json_is_one_object_and_nothing_else(bundle: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["generate", bundle, *PROMPT, "--json", "--max-tokens", "5", "--k", "2"]) == 0
    out = capsys.readouterr().out
    answer = json.loads(out)
    assert out.count("\n") == 1
    assert list(answer) == [
        *("text", "token_ids", "prompt_tokens", "finish_reason", "stats", "seed"),
    ]
    assert set(answer["stats"]) == {
        *("target_passes", "drafted", "tested", "accepted", "mean_accepted_length"),
        *("acceptance_rate", "time_to_first_token_s", "decode_tokens_per_s", "stage_seconds"),
        *("levels", "choices"),
    }
    assert set(answer["stats"]["stage_seconds"]) == {"draft", "verify", "sample", "other"}
    assert answer["prompt_tokens"] == 4
    assert len(answer["token_ids"]) == 5
    assert answer["stats"]["drafted"] > 0


def test_streamed_text_equals_the_json_text(bundle: str, capsys: pytest.CaptureFixture) -> None:
    sampling = ["--temperature", "1", "--seed", "5", "--max-tokens", "12", "--ignore-eos"]
    main(["generate", bundle, *PROMPT, *sampling])
    streamed = capsys.readouterr().out
    main(["generate", bundle, *PROMPT, *sampling, "--json"])
    assert streamed == json.loads(capsys.readouterr().out)["text"] + "\n"


def test_a_prompt_comes_from_a_file_or_standard_input(
    bundle: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"abca")
    asked = ["--max-tokens", "6", "--speculate", "off"]
    main(["generate", bundle, *PROMPT, *asked])
    expected = capsys.readouterr().out
    main(["generate", bundle, "--prompt-file", str(tmp_path / "prompt.txt"), *asked])
    assert capsys.readouterr().out == expected
    for spelled in (["-"], ["--prompt-file", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abca")))
        assert main(["generate", bundle, *spelled, *asked]) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--temperature", "nan"], "temperature"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "1.5"], "top_p"),
        (["--top-k", "-1"], "top_k"),
        (["--max-tokens", "-1"], "max_tokens"),
        (["--stop", ""], "stop"),
        (["--stages", "nobody"], "nobody"),
        (["--k", "1000"], "k must be at most"),
        (["--seed", "-1"], "seed"),
        (["--logit-bias", "999=1"], "999"),
        (["--threads", "0"], "threads"),
        (["--threads", "9999"], "from 1 to 256"),
        (["--chat"], "chat template"),
        (["--system", "x"], "--chat"),
        (["--prompt-file", "/nowhere/at all"], "not allowed with"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_exit_2(
    bundle: str, wrong: list[str], named: str, capsys: pytest.CaptureFixture
) -> None:
    try:
        status = main(["generate", bundle, *PROMPT, *wrong])
    except SystemExit as left:
        status = int(str(left.code))
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize("text", ["x", "1=2=3", "0.5", ""])
def test_text_where_a_number_is_due_exits_2(
    bundle: str, text: str, capsys: pytest.CaptureFixture
) -> None:
    for option in ("--temperature", "--top-k", "--logit-bias"):
        if option == "--temperature" and text == "0.5":
            continue
        with pytest.raises(SystemExit) as left:
            main(["generate", bundle, *PROMPT, option, text])
        assert left.value.code == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert option in err


def test_a_prompt_file_must_exist_and_be_utf8(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["generate", bundle, "--prompt-file", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert main(["generate", bundle, "--prompt-file", str(tmp_path / "latin")]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_missing_bundle_or_provider_exits_1(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["generate", str(tmp_path / "none"), *PROMPT]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["generate", bundle, *PROMPT, "--provider", "npu"]) == 1
    assert "cpu, cuda, tensorrt" in capsys.readouterr().err


def test_places_are_spelled_by_name(bundle: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["info", bundle, "--provider", "cpu", "--providers", "draft=cpu"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["target: cpu, all nodes", "draft: cpu, all nodes"]
    assert main(["generate", bundle, *PROMPT, "--providers", "draft=npu"]) == 1
    assert "but is 'npu'" in capsys.readouterr().err
    assert main(["generate", bundle, *PROMPT, "--providers", "other=cpu"]) == 2
    assert "not 'other'" in capsys.readouterr().err
    assert main(["generate", bundle, *PROMPT, "--cuda-graphs"]) == 1
    assert "CUDA graphs need" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["generate", bundle, *PROMPT, "--providers", "draft"])
    assert "NAME=PROVIDER" in capsys.readouterr().err


def test_info_describes_the_bundle(bundle: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["info", bundle]) == 0
    text = capsys.readouterr().out
    assert bundle in text
    assert "target 'target'" in text
    assert "draft 'draft'" in text
    assert main(["info", bundle, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format_version"] == 1


def test_a_reader_that_goes_away_is_no_traceback(bundle: str) -> None:
    command = [sys.executable, "-m", "runtime", "generate", bundle, *PROMPT, "--ignore-eos"]
    with subprocess.Popen(
        [*command, "--max-tokens", "50"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_an_altered_file_is_refused_unless_checking_is_declined(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    tokenizer = bundle / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"{", b"{", 1).replace(b" ", b"\t", 1))
    assert main(["generate", str(bundle), *PROMPT, "--max-tokens", "2"]) == 1
    assert "was altered" in capsys.readouterr().err
    assert main(["info", str(bundle)]) == 1
    assert main(["generate", str(bundle), *PROMPT, "--max-tokens", "2", "--no-verify"]) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_one_sentence(bundle: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "runtime", "generate", bundle, *PROMPT],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "forerun: cannot write the answer: No space left on device\n"


def test_info_names_the_layers_that_are_kept_finer(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = make_bundle(tmp_path / "bundle") / "manifest.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["models"][0] |= {"precision": "int4", "block_size": 32, "int8_layers": ["head"]}
    path.write_text(json.dumps(raw), encoding="utf-8")
    assert main(["info", str(path.parent)]) == 0
    assert "int4 in blocks of 32 (head layers in int8)" in capsys.readouterr().out


def test_explain_says_what_was_chosen_and_foreseen(
    bundle: str, capsys: pytest.CaptureFixture
) -> None:
    ask = ["generate", bundle, *PROMPT, "--max-tokens", "20", "--ignore-eos"]
    assert main([*ask, "--explain"]) == 0
    said = capsys.readouterr().err
    for part in ("rounds after the first token", "tokens a round: expected", "predicted"):
        assert part in said
    assert main([*ask, "--explain", "--speculate", "off"]) == 0
    assert "nothing was chosen" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "is_known"), [("4MiB", True), ("1.5G", True), ("many", False)])
def test_a_cap_on_memory_is_spelled_with_a_unit(
    bundle: str, capsys: pytest.CaptureFixture, size: str, is_known: bool
) -> None:
    ask = ["generate", bundle, *PROMPT, "--max-tokens", "2", "--max-memory", size]
    if is_known:
        assert main(ask) == 0
    else:
        with pytest.raises(SystemExit, match="2"):
            main(ask)
        assert "SIZE" in capsys.readouterr().err


def test_a_cap_below_the_target_is_refused(bundle: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["generate", bundle, *PROMPT, "--max-memory", "1K"]) == 2
    assert "the target alone needs" in capsys.readouterr().err


def test_info_says_what_passes_cost_once_they_were_measured(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    assert main(["info", bundle]) == 0
    before = capsys.readouterr().out
    assert "not measured here yet" in before
    assert "stack      suffix|draft → target" in before
    assert main(["generate", bundle, *PROMPT, "--max-tokens", "3", "--ignore-eos"]) == 0
    capsys.readouterr()
    assert main(["info", bundle]) == 0
    after = capsys.readouterr().out
    assert "not measured here yet" not in after
    assert " ms for 1, " in after
