"""The demo and the set-up script: what they say, what they reuse, and how they fail."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import tools.demo
from runtime import Completion, StageSeconds, Stats
from runtime.errors import BundleError
from tools.demo import Measured, compare_tokens, make_bundle, render_table

TOOLS = Path(__file__).parents[1] / "tools"


def make_completion(ids: Sequence[int], *, rate: float | None, length: float | None) -> Completion:
    stats = Stats(
        target_passes=1,
        drafted=0,
        tested=0,
        accepted=0,
        mean_accepted_length=length,
        acceptance_rate=None,
        time_to_first_token_s=0.5,
        decode_tokens_per_s=rate,
        stage_seconds=StageSeconds(draft=0.0, verify=0.0, sample=0.0, other=0.0),
    )
    return Completion(
        text="", token_ids=tuple(ids), prompt_tokens=3, finish_reason="stop", stats=stats, seed=0
    )


def test_the_table_compares_medians_over_the_same_tokens() -> None:
    plain = [make_completion([1, 2, 3], rate=rate, length=1.0) for rate in (90.0, 100.0, 500.0)]
    fast = [make_completion([1, 2, 3], rate=rate, length=1.5) for rate in (10.0, 150.0, 151.0)]
    table = render_table(Measured(tuple(plain), tuple(fast)), 0.1234)
    lines = [line.split() for line in table.splitlines()]
    assert lines[1] == ["tokens", "per", "second", "100.0", "150.0"]
    assert lines[2] == ["mean", "accepted", "length", "1.00", "1.50"]
    assert lines[3] == ["time", "to", "first", "token", "0.123", "s"]
    assert "the same 3 tokens both ways" in table
    assert table.endswith("speculative decoding ran at 1.50 times plain decoding")


def test_an_answer_of_one_token_has_no_rate() -> None:
    one = (make_completion([1], rate=None, length=None),)
    table = render_table(Measured(one, one), None)
    assert table.count("n/a") == 5
    assert "times plain" not in table


@pytest.mark.parametrize(
    ("plain", "speculative", "said"),
    [
        ([1, 2, 3], [1, 2, 3], "the same 3 tokens"),
        ([1, 2, 3], [1, 9, 3], "NOT the same tokens: they part at token 2 of 3"),
        ([1, 2, 3], [1, 2], "NOT the same tokens: they part at token 3 of 3"),
    ],
)
def test_different_tokens_are_not_hidden(
    plain: list[int], speculative: list[int], said: str
) -> None:
    assert compare_tokens(plain, speculative).startswith(said)


def test_a_sound_bundle_is_reused_and_another_is_exported_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    monkeypatch.setattr(tools.demo, "fetch", lambda recipe, progress: None)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr(tools.demo, "open_bundle", lambda _: None)
    bundle = make_bundle()
    assert bundle == tmp_path / "bundles" / "smollm2-135m-instruct-int4"
    assert commands == []

    def refuse(_: Path) -> None:
        raise BundleError("incomplete")

    monkeypatch.setattr(tools.demo, "open_bundle", refuse)
    assert make_bundle() == bundle
    assert commands[0][1:4] == ["-m", "export", "--target"]
    assert {"--overwrite", str(bundle)} <= set(commands[0])


@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), (-2, 130)])
def test_a_failed_export_ends_the_demo_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int
) -> None:
    def fail(_: str) -> None:
        raise subprocess.CalledProcessError(code, ["export"])

    monkeypatch.setattr(tools.demo, "run_demo", fail)
    assert tools.demo.main(["a prompt"]) == exit_code


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout with the set-up script alone, and a PATH with just what it calls."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(TOOLS / "setup.sh", tmp_path / "tools")
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    write_script(tmp_path / "tools" / "any", '. "$(dirname "$0")/setup.sh"; echo "ran $python"')
    for name in ("sh", "dirname", "cat", "cksum"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def write_script(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    file.chmod(0o755)


def set_up(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "tools" / "any"],
        env=os.environ | {"PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_python_that_is_too_old_is_named(checkout: Path) -> None:
    old = 'case "$1" in --version) echo "Python 3.9.2";; *) exit 1;; esac'
    write_script(checkout / "bin" / "python3", old)
    run = set_up(checkout)
    assert run.returncode == 1
    assert run.stderr == (
        "error: forerun needs Python 3.11 or newer, and python3 here is: Python 3.9.2\n"
    )


def test_no_python_at_all_is_said(checkout: Path) -> None:
    run = set_up(checkout)
    assert run.returncode == 1
    assert run.stderr == (
        "error: forerun needs Python 3.11 or newer, and python3 here is: not installed\n"
    )


def test_a_python_without_venv_is_told_what_to_install(checkout: Path) -> None:
    write_script(checkout / "bin" / "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    run = set_up(checkout)
    assert run.returncode == 1
    assert run.stderr.endswith("type: sudo apt install python3-venv\n")
    assert not (checkout / ".venv").exists()


def test_packages_are_installed_once_and_again_when_pyproject_changes(checkout: Path) -> None:
    calls = checkout / "calls"
    write_script(
        checkout / ".venv" / "bin" / "python", f'echo "$@" >>"{calls}"; echo "Python 3.12"'
    )
    for times in (1, 1):
        run = set_up(checkout)
        assert (run.returncode, run.stdout) == (0, "ran .venv/bin/python\n")
        assert calls.read_text().count("pip install") == times
    (checkout / "pyproject.toml").write_text("[project]\nversion = '2'\n", encoding="utf-8")
    set_up(checkout)
    assert calls.read_text().count("-e .[dev]") == 2


def test_a_failed_installation_is_tried_again(checkout: Path) -> None:
    broken = 'case "$*" in *install*) exit 1;; *) echo "Python 3.12";; esac'
    write_script(checkout / ".venv" / "bin" / "python", broken)
    for _ in range(2):
        run = set_up(checkout)
        assert run.returncode == 1
        assert run.stderr.endswith(
            "error: pip could not install what pyproject.toml names; its own words stand above\n"
        )
