"""The peers: what each is pinned to, how its model is made, and which rows it runs.

In: the name of a peer, a checkpoint and the bundle that it is compared with. Out: a `Launch` and
rows, or a `ToolError` that says why the peer cannot run. Models are made once, by the peer's own
converter, from the same weights and as near to the bundle's precision as the peer has it.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint import resolve
from export.progress import Progress
from export.recipes import read_recipes
from runtime.manifest import ModelEntry
from tools.errors import ToolError

from .environments import make_environment, peer_folder, run_logged
from .rows import Row
from .worker import Launch

_BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a peer's model is made from: a checkpoint, and the bundle's target to be matched."""

    checkpoint: str
    target: ModelEntry
    threads: int


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer: pins of its environment, the module that serves it, and how its model is made."""

    name: str
    pins: tuple[str, ...]
    module: str
    make_model: Callable[[Wanted, Path, Progress], Path]


def prepare_peer(name: str, wanted: Wanted, *, progress: Progress) -> tuple[Launch, list[Row]]:
    """Return how to start the peer and what to ask it, after installing and converting.

    Raises:
        ToolError: the peer is unknown, or cannot be installed or given this model.
        ExportError: there is no such checkpoint.
    """
    if name not in PEERS:
        raise ToolError(f"no peer is called {name!r}; known are {', '.join(PEERS)}")
    peer = PEERS[name]
    python = make_environment(name, peer.pins, progress=progress)
    model = peer.make_model(wanted, python, progress)
    launch = Launch(
        name=name,
        python=str(python),
        module=f"tools.bench.engines.{peer.module}",
        arguments=(str(model), str(wanted.threads)),
        threads=wanted.threads,
    )
    return launch, [Row(name=name, worker=name)]


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
        with progress.stage(f"unpacking {checkpoint.path.name}"):
            command = [sys.executable, "-m", "tools.bench.unpack", reference, str(folder)]
            run_logged(command, folder.with_suffix(".log"))
    return folder


def name_checkpoint(path: Path) -> str:
    """Return a name for what is made from `path`, another one when the file was changed."""
    stat = path.stat()
    mark = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"{path.stem}-{mark.hexdigest()[:8]}"


def make_genai_model(wanted: Wanted, python: Path, progress: Progress) -> Path:
    """Let onnxruntime-genai's model builder write the model at the bundle's precision."""
    names = {"int4": "int4", "int8": "int8", "float32": "fp32", "float16": "fp16"}
    precision = names[wanted.target.precision]
    block = wanted.target.block_size or _BLOCK
    source = unpack_checkpoint(wanted.checkpoint, progress=progress)
    base = peer_folder("onnxruntime-genai")
    folder = base / "models" / f"{name_checkpoint(source)}-{precision}-{block}"
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (builder,) = python.parents[1].glob("**/onnxruntime_genai/models/builder.py")
    # The builder wants torch and transformers, which this interpreter has.
    command = [sys.executable, str(builder), "-i", str(source), "-o", str(partial)]
    command += ["-p", precision, "-e", "cpu", "-c", str(base / "builder-cache")]
    if precision.startswith("int"):
        command += ["--extra_options", f"block_size={block}"]
    with progress.stage("building onnxruntime-genai's model"):
        run_logged(command, folder.with_suffix(".log"))
    partial.rename(folder)
    return folder


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="onnxruntime-genai",
            pins=("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "numpy==2.4.6"),
            module="genai",
            make_model=make_genai_model,
        ),
    )
}
