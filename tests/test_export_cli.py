"""`python -m export`: what it prints where, and how it ends."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_exports import checkpoint_of, export_of

from export.__main__ import main
from export.errors import PlanError
from export.plan import Plan, make_plan
from export.report import render_report

ROOT = Path(__file__).parents[1]


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    how = ["-c", code] if code else ["-m", "export"]
    command = [sys.executable, *how, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def plan(**options: object) -> Plan:
    return make_plan(**({"target": "t", "output": Path("out")} | options))


def test_help_answers_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from export.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: print('code', end.code)\n"
        "print(sorted({'torch', 'transformers', 'onnx', 'onnx_ir'} & sys.modules.keys()))"
    )
    done = run(code=code)
    assert done.stderr == ""
    assert done.stdout.startswith("usage: python -m export ")
    assert done.stdout.endswith("code 0\n[]\n")
    for option in ("--target", "--draft", "--draft-precision", "--block-size", "--context"):
        assert option in done.stdout


def test_a_whole_export_prints_one_object_and_the_same_bytes_as_another_process(
    tmp_path: Path,
) -> None:
    output = tmp_path / "bundle"
    target = str(checkpoint_of("llama"))
    done = run("--target", target, "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bundle"] == str(output)
    (model,) = report["models"]
    assert (model["name"], model["precision"]) == ("target", "int4")
    assert model["parity"]["max_error"] < 1e-5
    assert model["parity"]["block_error"] < 1e-6
    assert 0 < model["parity"]["mean_kl"] < 0.5
    assert report["end_ids"] == [1]
    assert set(report["seconds"]) >= {"target: trace", "target: check int4", "publish"}
    assert "target: trace:" in done.stderr
    other = export_of("llama", "int4").output
    for file in ("manifest.json", "target/model.onnx", "target/target.weights"):
        first, second = (hashlib.sha256((f / file).read_bytes()) for f in (output, other))
        assert first.hexdigest() == second.hexdigest(), file


def test_the_summary_says_what_a_person_wants_to_know() -> None:
    text = render_report(export_of("llama", "int4"))
    for words in ("target: llama-checkpoint, int4", "nats per token", "same first choice", "limit"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--target", "nonesuch"], 2, "no recipe is called 'nonesuch'"),
        (["--target", "./absent"], 1, "there is no folder or file ./absent"),
        (["--target", "x", "--precision", "bf16"], 2, "no bfloat16 kernels on the CPU"),
        (["--target", "x", "--precision", "int3"], 2, "one of int4, int8, float32, float16"),
        (["--target", "x", "--flavour", "flat"], 2, "one of fused, portable, trees, but is 'flat'"),
        (
            ["--target", "x", "--flavour", "portable", "--precision", "int8"],
            2,
            "--precision int8 needs --flavour fused",
        ),
        (
            ["--target", "x", "--flavour", "trees", "--block-size", "256"],
            2,
            "--block-size must be at most 128 with --flavour trees, but is 256",
        ),
        (["--target", "x", "--provider", "npu"], 2, "one of cpu, cuda, tensorrt, but is 'npu'"),
        (
            ["--target", "x", "--provider", "cuda", "--precision", "float32"],
            2,
            "--precision float32 does not go with --provider cuda",
        ),
        (
            ["--target", "x", "--provider", "tensorrt", "--flavour", "fused"],
            2,
            "--provider tensorrt needs --flavour portable",
        ),
        (["--target", "x", "--provider", "tensorrt"], 2, "--provider tensorrt needs --context"),
        (["--target", "x", "--block-size", "48"], 2, "one of 16, 32, 64, 128, 256, but is 48"),
        (["--target", "x", "--context", "8"], 2, "--context must be at least 64, but is 8"),
        (["--target", " "], 2, "--target is empty"),
    ],
)
def test_a_wrong_option_is_one_line_and_a_code(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*arguments, "--output", str(tmp_path / "out"), "--json"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("forerun-export: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_bad_checkpoint_is_refused_without_touching_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    output = tmp_path / "out"
    assert main(["--target", str(tmp_path / "model"), "--output", str(output), "--quiet"]) == 1
    assert "holds no config.json" in capsys.readouterr().err
    assert not output.exists()


def test_a_plan_names_its_models_nearest_to_the_target_first() -> None:
    made = plan(drafts=["a", "b"], precision="int8", draft_precision="int4", context=100)
    assert [model.name for model in made.models] == ["target", "draft", "draft2"]
    assert [model.role for model in made.models] == ["target", "draft", "draft"]
    assert [model.precision for model in made.models] == ["int8", "int4", "int4"]
    assert {model.context for model in made.models} == {100}
    assert [model.reference for model in made.models] == ["t", "a", "b"]


def test_an_option_that_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(PlanError, match="--draft-precision is given, but no --draft"):
        plan(draft_precision="int8")
    with pytest.raises(PlanError, match="--draft-precision must be one of"):
        plan(drafts=["d"], draft_precision="int2")
    with pytest.raises(PlanError, match="--draft is empty"):
        plan(drafts=[""])
