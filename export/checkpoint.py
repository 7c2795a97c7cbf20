"""Find the checkpoint that a name means: a recipe, a folder, a GGUF or ONNX file, or a hub id.

In: what the user wrote. Out: `Checkpoint`, files on this machine. A local path never touches the
network; only a recipe that is not in the cache, or a hub id, does.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.storage import user_path

from .errors import CheckpointError, NoNetworkError
from .fetch import fetch
from .progress import Progress
from .recipes import find_recipe, read_recipes

Form = Literal["folder", "gguf", "onnx"]

GENAI_CONFIG = "genai_config.json"  # what onnxruntime-genai writes beside a graph

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt", "README.md")
_HUB_TIMEOUT_S = 10
_PYTORCH_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint's files. `path` is a folder or a GGUF file; `source` names it in the bundle.

    One that is ONNX already has its `graph`; `path` is then the folder of its tokenizer.
    """

    reference: str
    form: Form
    path: Path
    source: str
    licence: str | None = None
    graph: Path | None = None

    def for_transformers(self) -> tuple[Path, dict[str, Any]]:
        """Return the folder and the arguments by which transformers' loaders read this."""
        if self.form == "gguf":
            return self.path.parent, {"gguf_file": self.path.name}
        return self.path, {}


def resolve(reference: str, *, progress: Progress) -> Checkpoint:
    """Return the checkpoint that `reference` means, fetching a recipe or hub files if need be.

    Raises:
        CheckpointError: nothing of that name exists.
        FetchError: it has to be fetched and cannot be.
    """
    if reference.lower() in {recipe.name for recipe in read_recipes()}:
        return _from_recipe(reference, progress)
    path = user_path(reference)
    if path.exists():
        return _from_path(reference, path)
    if _HUB_ID.fullmatch(reference) and not reference.startswith("."):
        return _from_hub(reference)
    if os.sep in reference or reference.startswith(("~", ".")) or path.suffix:
        raise CheckpointError(f"there is no folder or file {reference}")
    find_recipe(reference)  # raises, naming the recipes and the closest one
    raise AssertionError(reference)


def _from_recipe(reference: str, progress: Progress) -> Checkpoint:
    recipe = find_recipe(reference)
    return Checkpoint(
        reference=reference,
        form="gguf",
        path=fetch(recipe, progress=progress),
        source=f"{recipe.hub_id} ({recipe.file_name})",
        licence=recipe.licence,
    )


def _from_path(reference: str, path: Path) -> Checkpoint:
    name = path.resolve().name
    graph = _find_graph(path)
    if graph is not None:
        folder = _tokenizer_folder(graph)
        return Checkpoint(
            reference=reference,
            form="onnx",
            path=folder,
            source=folder.resolve().name,
            licence=_card_licence(folder),
            graph=graph,
        )
    if path.is_dir():
        licence = _card_licence(path)
        return Checkpoint(
            reference=reference, form="folder", path=path, source=name, licence=licence
        )
    if path.suffix.lower() == ".gguf":
        return Checkpoint(reference=reference, form="gguf", path=path, source=name)
    raise CheckpointError(
        f"{path} is a file, but neither .gguf nor .onnx: name a folder with config.json and "
        "*.safetensors, a GGUF file or an ONNX decoder"
    )


def _find_graph(path: Path) -> Path | None:
    """Return the ONNX graph that a path means, if it means one: weights of PyTorch come first."""
    if path.is_file():
        return path if path.suffix.lower() == ".onnx" else None
    if any(next(path.glob(pattern), None) for pattern in _PYTORCH_WEIGHTS):
        return None
    graphs = sorted((*path.glob("*.onnx"), *path.glob("onnx/*.onnx")))
    if len(graphs) > 1:
        names = ", ".join(graph.relative_to(path).as_posix() for graph in graphs)
        raise CheckpointError(
            f"{path} holds several ONNX graphs ({names}): name one of these files"
        )
    return graphs[0] if graphs else None


def _tokenizer_folder(graph: Path) -> Path:
    """Return where the tokenizer of a graph lies: beside it, or above its folder `onnx`."""
    folder = graph.resolve().parent
    is_beside = (folder / "tokenizer.json").is_file() or folder.name != "onnx"
    return folder if is_beside else folder.parent


def _from_hub(reference: str) -> Checkpoint:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        try:
            folder = huggingface_hub.snapshot_download(
                reference, allow_patterns=list(_HUB_FILES), local_files_only=True
            )
        except errors.LocalEntryNotFoundError:
            huggingface_hub.HfApi().model_info(reference, timeout=_HUB_TIMEOUT_S)
            folder = huggingface_hub.snapshot_download(reference, allow_patterns=list(_HUB_FILES))
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"the hub has no model {reference} that can be read without an account; to use a local "
            "folder, check its path"
        ) from None
    except Exception as error:  # httpx, OSError and the hub's own types, by version
        raise NoNetworkError(
            f"{reference} is no local folder, and the hub cannot be reached "
            f"({type(error).__name__}): name a local folder, a GGUF file or a recipe"
        ) from None
    path = Path(folder)
    return Checkpoint(
        reference=reference, form="folder", path=path, source=reference, licence=_card_licence(path)
    )


def _card_licence(folder: Path) -> str | None:
    """Return the licence that the head of the model card names, if there is one."""
    try:
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head = card.split("\n---", 1)[0] if card.startswith("---") else ""
    found = re.search(r"^license:[ \t]*([^\s#]+)", head, re.MULTILINE)
    return found.group(1) if found else None
