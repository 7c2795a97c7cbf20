"""The main job on real weights: SmolLM2 fetched, exported, generating; speculation changes nothing.

Uses the user's cache folder for the fetched file; the bundle is made anew.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import Engine
from runtime.bundle import open_bundle
from tools import certify
from tools.parity import compare_answers, encode_questions

pytestmark = pytest.mark.real
RECIPE = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("real") / "smollm2"
    command = [sys.executable, "-m", "export", "--target", RECIPE, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def engine(bundle: Path):
    with Engine.open(bundle) as opened:
        yield opened


def test_the_bundle_is_small_and_faithful(bundle: Path) -> None:
    opened = open_bundle(bundle, verify_hashes=True)
    target = opened.manifest.target
    assert target.parity["max_error"] < 1e-4
    assert target.parity["block_error"] == 0
    assert target.parity["mean_kl"] < 0.25
    # One tied table: 135 million weights, some in int8, with their scales and zero points.
    weights = next(f for f in opened.manifest.files if f.path.endswith(".weights"))
    whole = sum(file.bytes for file in opened.manifest.files)
    assert whole < 1.1 * weights.bytes
    assert weights.bytes < 0.9 * target.parameters


def test_greedy_answers_are_the_same_with_speculation_on_and_off(engine: Engine) -> None:
    prompts = encode_questions(engine, None, limit=7)
    stacks = [{"stages": [name], "k": k} for name in ("suffix", "lookup") for k in (1, 2, 4, 8)]
    found = compare_answers(engine, prompts, stacks, max_tokens=48)
    assert {name: [str(d) for d in differences] for name, differences in found.items()} == {
        name: [] for name in found
    }


def test_coupled_answers_are_the_same_under_every_setting(engine: Engine) -> None:
    prompts = encode_questions(engine, None, limit=3)
    for settings in (
        {},
        {"top_p": 0.9, "repetition_penalty": 1.2},
        {"top_k": 40, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    ):
        shared = {"temperature": 0.8, "coupled": True, "seed": 11, "max_tokens": 40} | settings
        found = compare_answers(engine, prompts, [{"stages": ["suffix"], "k": 4}], **shared)
        assert list(found.values()) == [[]]


def test_a_second_turn_is_as_good_warm_as_cold(bundle: Path) -> None:
    first = [{"role": "user", "content": "Name three colours."}]
    with Engine.open(bundle) as engine:
        answer = engine.complete(messages=first, max_tokens=30)
        second = [
            *first,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "Name three more."},
        ]
        warm = engine.complete(messages=second, max_tokens=30)
        assert engine.target.length > 0
    with Engine.open(bundle) as engine:
        cold = engine.complete(messages=second, max_tokens=30)
    assert warm.token_ids == cold.token_ids


def test_the_command_answers_in_json(bundle: Path) -> None:
    command = [sys.executable, "-m", "runtime", "generate", str(bundle), "--json", "--ignore-eos"]
    done = subprocess.run(
        [*command, "--prompt", "red green blue " * 4 + "red", "--max-tokens", "24"],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["stats"]["drafted"] > 0
    assert answer["stats"]["mean_accepted_length"] > 1
    assert len(answer["token_ids"]) == 24


def test_a_short_certificate_holds(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    name = "temperature 0.7"
    monkeypatch.setattr(certify, "SETTINGS", {name: certify.SETTINGS[name]})
    prompts = str(Path(certify.__file__).parent / "prompts" / "code_editing.jsonl")
    arguments = ["--tokens", "1500", "--parity-prompts", "2", "--prompts", prompts, "--quiet"]
    assert certify.main([str(bundle), *arguments]) == 0
    assert "everything holds" in capsys.readouterr().out
