"""Drafts come and go in a bundle that is there; its other files, and whoever reads them, stay."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published import add, count_steps, digests, draft, manifest, names, publish
from tiny_exports import checkpoint_of, export_of, traces_kept

from export.__main__ import main
from export.checkpoint import resolve
from export.errors import PairMismatchError, PlanError, PublishError
from export.language import language_of, read_language
from export.pipeline import add_drafts, export_bundle
from export.plan import TAKEN_NAMES, AddPlan, check_stage_name, make_add_plan, make_plan
from export.progress import Progress
from export.stages import remove_drafts, with_drafts
from runtime.bundle import open_bundle
from runtime.errors import BundleError
from runtime.manifest import MANIFEST_NAME
from runtime.stack import TARGET
from runtime.stages import COPIERS, NGRAM

QUIET = Progress(quiet=True)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    publish(tmp_path / "out")
    return tmp_path / "out"


def plan(output: Path, *drafts: str, **options: Any) -> AddPlan:
    return make_add_plan(output=output, drafts=drafts or [str(checkpoint_of("llama"))], **options)


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(export_of("llama", "float32").output, tmp_path / "out")
    with traces_kept("llama"):
        yield tmp_path / "out"


# --- what moves, and when -------------------------------------------------------------------------


def test_a_stage_joins_and_leaves_and_nothing_else_is_touched(bundle: Path) -> None:
    before, inode = digests(bundle), (bundle / "target" / "model.onnx").stat().st_ino
    listed = add(bundle)
    assert [file.path for file in listed.files] == [
        "draft/model.onnx",
        "target/model.onnx",
        "tokenizer.json",
    ]
    assert open_bundle(bundle, verify_hashes=True).manifest == listed
    assert (bundle / "target" / "model.onnx").stat().st_ino == inode
    remove_drafts(bundle, ["draft"], progress=QUIET)
    assert digests(bundle) == before
    assert names(bundle.parent) == ["out"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt()])
def test_whatever_step_fails_the_bundle_is_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    publish(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    add(tmp_path / "new")
    seen = {"old": 0, "new": 0}

    def fail() -> None:
        raise error

    for at in range(1, 100):
        output = tmp_path / "out"
        shutil.copytree(tmp_path / "old", output)
        with monkeypatch.context() as patch:
            reached = count_steps(patch, at, fail)
            try:
                add(output)
            except (PublishError, KeyboardInterrupt):
                assert len(reached) >= at
        open_bundle(output, verify_hashes=True)
        which = next(name for name in seen if digests(output) == digests(tmp_path / name))
        seen[which] += 1
        assert names(tmp_path) == ["new", "old", "out"]
        shutil.rmtree(output)
        if len(reached) < at:
            break
    assert seen["old"] >= 8
    assert seen["new"] >= 2  # the flush after the last rename may fail, too


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_killed_at_whatever_step_it_opens_and_the_next_edit_clears_up(tmp_path: Path) -> None:
    # In a process of its own: it is forked, and has no threads then.
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "published.py", tmp_path],
        env={"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for reached, states in zip(json.loads(done.stdout), ["old new", "new old"], strict=True):
        before, after = states.split()
        assert reached == sorted(reached, key=[before, after].index)
        assert reached.count(before) >= 7
        assert reached[-1] == after


def test_a_bundle_that_another_program_changed_meanwhile_is_left_as_it_is(bundle: Path) -> None:
    before = replace(open_bundle(bundle).manifest, producer="another program")
    with pytest.raises(PublishError, match="changed by another program meanwhile"):
        add(bundle, before=before)
    assert names(bundle) == ["manifest.json", "target", "tokenizer.json"]
    assert names(bundle.parent) == ["out"]


def test_a_folder_that_no_manifest_lists_is_never_taken_over(bundle: Path) -> None:
    (bundle / "draft").mkdir()
    (bundle / "draft" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match="holds draft already, which its manifest does not list"):
        add(bundle)
    assert (bundle / "draft" / "mine.txt").read_text(encoding="utf-8") == "mine"


# --- names and places -----------------------------------------------------------------------------


def test_the_largest_draft_stands_nearest_to_the_target() -> None:
    made = manifest()
    for name, parameters in (("b", 20), ("d", 5), ("a", 30), ("c", 20)):
        made = with_drafts(made, [draft(name, parameters=parameters)])
    assert [model.name for model in made.models] == ["target", "a", "b", "c", "d"]


def test_names_that_the_runtime_knows_by_other_means_are_taken() -> None:
    assert {TARGET, NGRAM, *COPIERS} <= set(TAKEN_NAMES)
    for name in TAKEN_NAMES:
        with pytest.raises(PlanError, match=f"--name must not be {name!r}"):
            check_stage_name(name)
    for name in ("", "Draft", "a/b", "..", "a,b", "2nd", "a|b", "x" * 33):
        with pytest.raises(PlanError, match="--name must be up to 32 lower-case letters"):
            check_stage_name(name)
    check_stage_name("draft-32k_2")


# --- real exports ---------------------------------------------------------------------------------


def test_a_draft_that_joins_later_makes_the_bundle_of_one_export(
    exported: Path, tmp_path: Path
) -> None:
    target = checkpoint_of("llama")
    other = shutil.copytree(target, tmp_path / "other" / target.name)  # two folders of one name
    before = digests(exported)
    report = add_drafts(plan(exported, str(other), precision="int4"), progress=QUIET)
    stored = [file.path for file in report.manifest.files if file.path.endswith(".weights")]
    assert stored == ["draft/draft.weights", "target/target.weights"]
    whole = make_plan(
        target=str(target),
        drafts=[str(other)],
        precision="float32",
        draft_precision="int4",
        output=tmp_path / "whole",
    )
    export_bundle(whole, progress=QUIET)
    assert digests(exported) == digests(tmp_path / "whole")
    remove_drafts(exported, ["draft"], progress=QUIET)
    assert digests(exported) == before


def test_a_bundle_speaks_its_targets_language(exported: Path) -> None:
    checkpoint = resolve(str(checkpoint_of("llama")), progress=QUIET)
    assert language_of(open_bundle(exported)) == replace(read_language(checkpoint), eos_id=None)
    file = exported / MANIFEST_NAME
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"is_rebuilt": false', '"is_rebuilt": true'), encoding="utf-8")
    assert language_of(open_bundle(exported)).is_rebuilt


def test_a_draft_of_another_language_is_refused_and_nothing_changes(
    exported: Path, tmp_path: Path
) -> None:
    before = digests(exported)
    other = shutil.copytree(checkpoint_of("llama"), tmp_path / "other")
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    swapped = text.replace('"er"', '"er "').replace('"th"', '"er"').replace('"er "', '"th"')
    (other / "tokenizer.json").write_text(swapped, encoding="utf-8")
    with pytest.raises(PairMismatchError, match=r'is "er" in the first, "th" in the second'):
        add_drafts(plan(exported, str(other)), progress=QUIET)
    assert digests(exported) == before


def test_an_altered_bundle_is_refused_before_anything_is_done(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = exported / "target" / "target.weights"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    before = digests(exported)
    for change in (["--add-draft", str(checkpoint_of("llama"))], ["--remove-draft", "draft"]):
        assert main([*change, "--output", str(exported), "--quiet"]) == 1
        printed = capsys.readouterr().err
        assert "the bundle was altered" in printed
        assert printed.count("\n") == 1
    assert digests(exported) == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--add-draft", "x", "--overwrite"], 2, "--overwrite does not go with --add-draft"),
        (["--add-draft", "x", "--draft", "y"], 2, "--draft does not go with --add-draft"),
        (["--target", "x", "--name", "y"], 2, "--name does not go with --target"),
        (["--remove-draft", "x", "--context", "0"], 2, "--context does not go with --remove-draft"),
        (["--add-draft", "x", "--add-draft", "y", "--name", "z"], 2, "--name names one draft"),
        (["--add-draft", " "], 2, "--add-draft is empty"),
        (["--add-draft", "x", "--name", "suffix"], 2, "--name must not be 'suffix'"),
        (["--add-draft", "x"], 2, "no recipe is called 'x'"),
        (["--add-draft", "x", "--name", "first"], 2, "'first' already: give another --name, or"),
        (["--remove-draft", "x"], 2, "has no draft called 'x': its drafts are first"),
        (["--remove-draft", "target"], 2, "no draft called 'target'"),
    ],
)
def test_a_wrong_option_is_one_line_and_the_bundle_stays(
    bundle: Path,
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add(bundle, "first")
    before = digests(bundle)
    assert main([*arguments, "--output", str(bundle), "--quiet"]) == code
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1
    assert digests(bundle) == before
    assert names(bundle.parent) == ["out"]


def test_drafts_need_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        remove_drafts(tmp_path / "none", ["draft"], progress=QUIET)


def test_a_removal_by_command_reports_what_is_left(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(bundle)
    add(bundle, "draft2")
    assert main(["--remove-draft", "draft", "--output", str(bundle)]) == 0
    printed = capsys.readouterr().out
    assert "draft2: a test" in printed
    assert "draft:" not in printed
    assert names(bundle) == ["draft2", "manifest.json", "target", "tokenizer.json"]
