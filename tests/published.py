"""Bundles without a model, to be published, changed and interrupted; needs no PyTorch.

Run as a program, it kills an edit at each of its steps and prints which bundle was found then.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import export.bundle
from export.bundle import staged
from export.progress import Progress
from export.stages import remove_drafts, with_drafts
from runtime.bundle import open_bundle
from runtime.manifest import CacheLayout, Manifest, ModelEntry, Tokenizer


def manifest() -> Manifest:
    entry = ModelEntry(
        name="target",
        role="target",
        graph="target/model.onnx",
        flavour="fused",
        precision="float32",
        architecture="none",
        logits=2,
        embeddings=2,
        context=64,
        cache=CacheLayout(layers=1, kv_heads=1, head_dim=8, dtype="float32"),
        parameters=1,
        source="a test",
    )
    tokenizer = Tokenizer(file="tokenizer.json", fingerprint="0" * 64, vocabulary=2)
    return Manifest(producer="test", tokenizer=tokenizer, models=(entry,), files=(), end_ids=(1,))


def publish(output: Path, content: bytes = b"a graph") -> Manifest:
    with staged(output) as staging:
        staging.make_folder("target")
        staging.write("target/model.onnx", content)
        staging.write("tokenizer.json", b"{}")
        return staging.publish(manifest())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def draft(name: str = "draft", *, parameters: int = 1) -> ModelEntry:
    graph = f"{name}/model.onnx"
    return replace(manifest().target, name=name, role="draft", graph=graph, parameters=parameters)


def add(output: Path, name: str = "draft", *, before: Manifest | None = None) -> Manifest:
    before = before or open_bundle(output).manifest
    with staged(output) as staging:
        staging.make_folder(name)
        staging.write(f"{name}/model.onnx", b"a smaller graph")
        return staging.amend(before, with_drafts(before, [draft(name)]))


def count_steps(monkeypatch: pytest.MonkeyPatch, at: int, fail: Callable[[], None]) -> list[str]:
    """Call `fail` before the file system's step number `at`; return the steps that were reached."""
    reached: list[str] = []

    def counted(step: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            reached.append(step.__name__)
            if len(reached) == at:
                fail()
            return step(*arguments, **options)

        return run

    monkeypatch.setattr(export.bundle, "_flush", counted(export.bundle._flush))
    for name in ("rename", "replace", "write_text"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return reached


def kill_at_each_step(folder: Path, start: str, change: Callable[[Path], object]) -> list[str]:
    """Return which bundle, `old` or `new`, lies there after a kill at step 1, 2, … of `change`."""
    found = []
    wanted = {name: digests(folder / name) for name in ("old", "new")}
    for at in range(1, 100):
        output = shutil.copytree(folder / start, folder / "out")
        process = os.fork()
        if process == 0:
            count_steps(pytest.MonkeyPatch(), at, lambda: os._exit(9))
            change(output)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert code in (0, 9), code
        open_bundle(output, verify_hashes=True)
        with staged(output):
            pass  # the next edit, whatever it does, clears up
        found.append(next(name for name in wanted if digests(output) == wanted[name]))
        assert names(folder) == ["new", "old", "out"]
        shutil.rmtree(output)
        if code == 0:
            break
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    publish(place / "old")
    shutil.copytree(place / "old", place / "new")
    add(place / "new")
    quiet = Progress(quiet=True)
    found = [
        kill_at_each_step(place, "old", add),
        kill_at_each_step(place, "new", lambda out: remove_drafts(out, ["draft"], progress=quiet)),
    ]
    json.dump(found, sys.stdout)
