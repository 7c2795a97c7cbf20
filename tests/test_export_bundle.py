"""A bundle appears whole or not at all, and the same bytes each time."""

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from published import digests, manifest, names, publish
from tiny_exports import checkpoint_of, export_of, traces_kept

import export.bundle
from export import build
from export.__main__ import main
from export.bundle import check_output, check_space, staged, writing
from export.errors import PublishError
from export.pipeline import export_bundle
from export.plan import make_plan
from export.progress import Progress
from runtime.bundle import open_bundle

QUIET = Progress(quiet=True)


def test_a_bundle_lists_every_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    listed = publish(tmp_path / "deep" / "down" / "out")
    assert [file.path for file in listed.files] == ["target/model.onnx", "tokenizer.json"]
    assert listed.files[0].bytes == 7
    assert listed.files[0].sha256 == hashlib.sha256(b"a graph").hexdigest()
    assert names(tmp_path / "deep" / "down") == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, PublishError])
def test_what_was_there_survives_whatever_fails(tmp_path: Path, error: type[BaseException]) -> None:
    publish(tmp_path / "out")
    before = digests(tmp_path / "out")

    def fail_half_way() -> None:
        with staged(tmp_path / "out") as staging:
            staging.write("tokenizer.json", b"half")
            raise error("in the middle")

    with pytest.raises(error):
        fail_half_way()
    assert digests(tmp_path / "out") == before
    assert names(tmp_path) == ["out"]


def test_folders_made_for_a_bundle_that_failed_are_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), staged(tmp_path / "new" / "deep" / "out"):
        raise RuntimeError("in the middle")
    assert names(tmp_path) == []


def test_a_new_bundle_replaces_the_old_one_wholly(tmp_path: Path) -> None:
    publish(tmp_path / "out")
    with staged(tmp_path / "out") as staging:
        staging.make_folder("target")
        staging.write("target/model.onnx", b"smaller")
        staging.publish(manifest())
    assert sorted(digests(tmp_path / "out")) == ["manifest.json", "target/model.onnx"]
    assert names(tmp_path) == ["out"]


def test_a_rename_that_fails_puts_the_old_bundle_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "out")
    before = digests(tmp_path / "out")
    rename = Path.rename

    def fail_once(self: Path, target: Path) -> Path:
        if "partial" in self.name:
            raise OSError(errno.EIO, "input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(PublishError, match="input/output error"):
        publish(tmp_path / "out", b"other")
    assert digests(tmp_path / "out") == before
    assert names(tmp_path) == ["out"]


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    flush = export.bundle._flush
    monkeypatch.setattr(
        export.bundle, "_flush", lambda path: (order.append(path.name), flush(path))[1]
    )
    publish(tmp_path / "out")
    files = [name for name in order if "." in name and not name.startswith(".")]
    assert files == ["model.onnx", "tokenizer.json", "manifest.json"]


def test_an_output_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "out"
    check_output(output, overwrite=False)
    output.mkdir()
    check_output(output, overwrite=False)
    (output / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match=r"is not empty.*--overwrite"):
        check_output(output, overwrite=False)
    with pytest.raises(PublishError, match=r"holds notes\.txt, which no bundle put there"):
        check_output(output, overwrite=True)
    with pytest.raises(PublishError, match="is a file; name a folder"):
        check_output(output / "notes.txt", overwrite=True)


def test_only_a_bundle_and_nothing_else_is_overwritten(tmp_path: Path) -> None:
    publish(tmp_path / "out")
    check_output(tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "target" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match=r"holds target/mine\.txt"):
        check_output(tmp_path / "out", overwrite=True)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EFBIG, "no space left"),
        (errno.EACCES, "not allowed"),
        (errno.EROFS, "not allowed"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_failure_to_write_names_the_path_and_the_reason(number: int, words: str) -> None:
    expected = pytest.raises(PublishError, match=rf"cannot write .*weights: {words}")
    with expected, writing(Path("/somewhere/weights")):
        raise OSError(number, os.strerror(number))


def test_too_little_space_is_said_before_anything_is_done(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "there", 1)
    with pytest.raises(PublishError, match=r"needs about 1000000\.00 GB"):
        check_space(tmp_path / "not" / "there", 10**15)


@pytest.mark.skipif(os.name != "posix", reason="process ids are looked up as POSIX does")
def test_what_a_killed_export_left_is_cleared_and_what_runs_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".out.partial-{dead.pid}").mkdir()
    (tmp_path / f".out.partial-{os.getppid()}").mkdir()
    (tmp_path / ".out.partial-mine").mkdir()
    publish(tmp_path / "out")
    kept = [".out.partial-mine", f".out.partial-{os.getppid()}", "out"]
    assert names(tmp_path) == sorted(kept)


@pytest.mark.skipif(os.name != "posix", reason="process ids are looked up as POSIX does")
def test_a_bundle_moved_aside_by_a_killed_export_comes_back(tmp_path: Path) -> None:
    publish(tmp_path / "out")
    before = digests(tmp_path / "out")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "out").rename(tmp_path / f".out.replaced-{dead.pid}")
    with pytest.raises(RuntimeError), staged(tmp_path / "out"):
        raise RuntimeError("fails too")
    assert digests(tmp_path / "out") == before


def test_a_second_export_is_the_same_to_the_byte_and_so_is_a_third_over_it(tmp_path: Path) -> None:
    first = export_of("llama", "int4").output
    plan = make_plan(target=str(checkpoint_of("llama")), output=tmp_path / "out" / "")
    with traces_kept("llama"):
        export_bundle(plan, progress=QUIET)
        assert digests(tmp_path / "out") == digests(first)
        again = make_plan(
            target=str(checkpoint_of("llama")), output=tmp_path / "out", overwrite=True
        )
        export_bundle(again, progress=QUIET)
    assert digests(tmp_path / "out") == digests(first)
    assert names(tmp_path) == ["out"]


def test_a_bundle_opens_wherever_it_is_moved(tmp_path: Path) -> None:
    moved = tmp_path / "mö dèl 模型 #1"
    shutil.copytree(export_of("llama", "int4").output, moved)
    bundle = open_bundle(moved, verify_hashes=True)
    assert bundle.manifest.target.graph == "target/model.onnx"
    assert sorted(names(moved / "target")) == ["model.onnx", "target.weights"]


@pytest.mark.skipif(os.name != "posix", reason="file size limits are POSIX's")
def test_a_disk_that_fills_up_is_named_and_nothing_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    target, output = checkpoint_of("llama"), tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with traces_kept("llama"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
        try:
            code = main(["--target", str(target), "--output", str(output), "--quiet"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out == ""
    assert printed.err.startswith(f"forerun-export: cannot write {tmp_path}")
    assert "no space left" in printed.err
    assert printed.err.count("\n") == 1
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_nothing(
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build, "trace", lambda *_: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    target, output = checkpoint_of("llama"), tmp_path / "out"
    assert main(["--target", str(target), "--output", str(output), "--quiet"]) == 130
    assert capsys.readouterr().err == "forerun-export: interrupted; nothing was published\n"
    assert names(tmp_path) == []
    assert signal.getsignal(number) is before
