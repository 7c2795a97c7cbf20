"""Models for the peers, each made once from the same weights by the peer's own converter.

In: a checkpoint and the bundle's target, whose precision is to be matched as nearly as the peer
can. Out: the path that the peer opens. All of it lies in the cache folder and appears whole or not
at all.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint import resolve
from export.progress import Progress
from export.recipes import read_recipes
from runtime.manifest import ModelEntry
from tools.errors import ToolError

from .environments import peer_folder, run_logged
from .worker import ROOT

GENAI = "onnxruntime-genai"
_GENAI_PRECISIONS = {"int4": "int4", "int8": "int8", "float32": "fp32", "float16": "fp16"}
_BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a peer's model is made from, and how it is to run.

    Attributes:
        checkpoint: of the target.
        draft: checkpoint of the draft; None without one.
        target: the bundle's target, to be matched.
        threads: of the peer.
        widths: tokens drafted in a round, for peers that speculate; empty for their own defaults.
    """

    checkpoint: str
    draft: str | None
    target: ModelEntry
    threads: int
    widths: tuple[int, ...] = ()


def find_checkpoint(source: str) -> str:
    """Return the recipe of the checkpoint that a bundle names as its source.

    Raises:
        ToolError: no recipe has it.
    """
    for recipe in read_recipes():
        if source.startswith((recipe.hub_id, recipe.file_name)):
            return recipe.name
    raise ToolError(f"no recipe has {source}: name its checkpoint with --checkpoint")


def unpack_checkpoint(reference: str, *, progress: Progress) -> Path:
    """Return the checkpoint as a folder of safetensors: itself, or unpacked once from its GGUF."""
    checkpoint = resolve(reference, progress=progress)
    if checkpoint.form == "folder":
        return checkpoint.path
    folder = peer_folder("checkpoints") / name_checkpoint(checkpoint.path)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tools.bench.unpack", reference, str(folder)]
        with progress.stage(f"unpacking {checkpoint.path.name}"):
            run_logged(command, log_of(folder))
    return folder


def name_checkpoint(path: Path) -> str:
    """Return a name for what is made from `path`, another one when the file was changed."""
    stat = path.stat()
    mark = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"{path.name.removesuffix('.gguf')}-{mark.hexdigest()[:8]}"


def log_of(folder: Path) -> Path:
    """Return the log of what makes `folder`."""
    return folder.with_name(f"{folder.name}.log")


def make_gguf(wanted: Wanted, _python: Path, progress: Progress) -> Path:
    """Return the GGUF file itself, for peers that read it."""
    checkpoint = resolve(wanted.checkpoint, progress=progress)
    if checkpoint.form != "gguf":
        raise ToolError(f"needs a GGUF file, and {wanted.checkpoint} is a folder of safetensors")
    return checkpoint.path


def make_genai_model(wanted: Wanted, python: Path, progress: Progress) -> Path:
    """Let onnxruntime-genai's model builder write the target at the bundle's precision."""
    return build_genai(wanted.checkpoint, wanted.target, python, progress)


def build_genai(checkpoint: str, like: ModelEntry, python: Path, progress: Progress) -> Path:
    """Let onnxruntime-genai's model builder write a model at the precision of `like`."""
    precision = _GENAI_PRECISIONS[like.precision]
    block = like.block_size or _BLOCK
    source = unpack_checkpoint(checkpoint, progress=progress)
    base = peer_folder(GENAI)
    folder = base / "models" / f"{name_checkpoint(source)}-{precision}-{block}"
    if folder.is_dir():
        return folder
    (builder,) = python.parents[1].glob("**/onnxruntime_genai/models/builder.py")
    partial = begin(folder)
    # The builder wants torch and transformers, which this interpreter has.
    command = [sys.executable, str(builder), "-i", str(source), "-o", str(partial)]
    command += ["-p", precision, "-e", "cpu", "-c", str(base / "builder-cache")]
    if precision.startswith("int"):
        command += ["--extra_options", f"block_size={block}"]
    with progress.stage(f"building {GENAI}'s model"):
        run_logged(command, log_of(folder))
    partial.rename(folder)
    return folder


def make_genai_pair(wanted: Wanted, python: Path, progress: Progress) -> Path:
    """Return a folder that joins the target's and the draft's models.

    The peer opens nothing outside the folder, so that both stand in it, by hard links where that
    can be.
    """
    if wanted.draft is None:
        raise ToolError("the bundle has no draft model: name one with --draft-checkpoint")
    target = build_genai(wanted.checkpoint, wanted.target, python, progress)
    draft = build_genai(wanted.draft, wanted.target, python, progress)
    folder = peer_folder(GENAI) / "pairs" / f"{target.name}+{draft.name}"
    if folder.is_dir():
        return folder
    partial = begin(folder)
    shutil.copytree(target, partial, copy_function=link_file)
    shutil.copytree(draft, partial / "draft", copy_function=link_file)
    name = "genai_config.json"
    whole = json.loads((target / name).read_text(encoding="utf-8"))
    lesser = json.loads((draft / name).read_text(encoding="utf-8"))["model"]["decoder"]
    whole["model"]["draft"] = {**lesser, "filename": f"draft/{lesser['filename']}"}
    (partial / name).unlink()  # it is the target's own
    (partial / name).write_text(json.dumps(whole, indent=2), encoding="utf-8")
    partial.rename(folder)
    return folder


def link_file(source: str, place: str) -> None:
    """Give a file a second name, or copy it where the file system has no such thing."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)


def make_optimum_model(wanted: Wanted, python: Path, progress: Progress) -> Path:
    """Let optimum-onnx export the checkpoint in its own environment, in float32."""
    source = unpack_checkpoint(wanted.checkpoint, progress=progress)
    folder = peer_folder("optimum-onnx") / "models" / name_checkpoint(source)
    if folder.is_dir():
        return folder
    partial = begin(folder)
    command: Sequence[str] = [
        *(str(python), "-P", "-m", "tools.bench.engines.optimum"),
        *("export", str(source), str(partial)),
    ]
    with progress.stage("exporting by optimum-onnx"):
        run_logged(command, log_of(folder), variables={"PYTHONPATH": str(ROOT)})
    partial.rename(folder)
    return folder


def begin(folder: Path) -> Path:
    """Return the path under which `folder` is to be written before it gets its name."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return partial
